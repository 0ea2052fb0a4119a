"""From an optimizer's configuration to the ``torch.optim`` object that trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

import lesam
from lesam.lab.config.optimizer import PLAIN, OptimizerConfig, budget_name, own_settings
from lesam.lab.tasks.schedule import Schedule


def build_base(config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The base optimizer over all parameters; weight decay acts on every one of them, as in the paper."""
    if config.base in ("adam", "adamw"):
        kind = torch.optim.Adam if config.base == "adam" else torch.optim.AdamW
        betas = (config.momentum, config.beta2)
        return kind(parameters, lr=config.lr, betas=betas, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        parameters,
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
    )


def build_optimizer(
    config: OptimizerConfig,
    model: nn.Module,
    *,
    budget: Callable[[float], Schedule] | None = None,
    line: Callable[[float, float], Schedule] | None = None,
    when: Callable[[int], bool] | None = None,
) -> torch.optim.Optimizer:
    """The optimizer of a run.

    Args:
        config: Which method and its settings.
        model: The module whose parameters are trained, as the strategy wrapped it.
        budget: Turns the budget's peak value into a schedule over steps; None keeps it constant.
        line: A schedule from one value to another over the whole run; None keeps the first.
        when: Which steps are the method's, the others being plain ones of the base; None makes all of them its.
    """
    base = build_base(config, model.parameters())
    if config.method in PLAIN:
        return base
    options = own_settings(config)
    name = budget_name(config)
    if name is not None and not 0.0 <= options[name] < math.inf:  # a schedule is asked for its values step by step
        raise ValueError(f"optimizer.{name} must be a number >= 0, got {options[name]}")
    rho_min = options.pop("rho_min", None)
    if rho_min is not None:
        options["rho"] = lesam.schedules.proportional_to_lr(base, rho_max=options["rho"], rho_min=rho_min)
    elif budget is not None and name is not None:
        options[name] = budget(options[name])
    threshold_end = options.pop("threshold_end", None)
    if threshold_end is not None and line is not None:
        options["threshold"] = line(options["threshold"], threshold_end)
    if when is not None:
        options["when"] = when
    if config.perturb == "norms":
        options["perturb"] = lesam.norm_parameters(model)
    if config.batch_norm == "clean":
        options["model"] = model
    method: torch.optim.Optimizer = lesam.METHODS[config.method](
        base, perturbation=config.perturbation, max_norm=config.max_norm, **options
    )
    return method

"""One optimizer step on one batch, for every kind of optimizer: the only place where the passes are called."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lesam.lab.config.optimizer import PLAIN, OptimizerConfig
from lesam.lab.tasks.metrics import Seen
from lesam.lab.tasks.objective import Objective

Outcome = tuple[Seen, Tensor]
"""What a step saw, and the number of right answers of its clean pass, both on the device and unread."""
Stepper = Callable[[], Outcome]


def make_stepper(
    config: OptimizerConfig, optimizer: torch.optim.Optimizer, objective: Objective, scaler: Any | None
) -> Stepper:
    """The way to take a step: plain, with a closure, with sample losses, or in two contexts for fp16."""
    if config.method in PLAIN:
        return _plain(config, optimizer, objective, scaler)
    _refuse_other_ascent(config, optimizer, objective)
    whole = type(objective).part is Objective.part or objective.ascent_loss is not None  # no part of these losses
    if climbs_a_part(config) and (whole or config.micro_batches > 1):
        raise ValueError(
            f"{config.method} climbs on a part of the batch (optimizer.share={getattr(config, 'share', 1)}), for which "
            "this task and micro-batches have no path here: set optimizer.share=1"
        )
    if scaler is not None and config.micro_batches > 1:
        raise ValueError("optimizer.micro_batches has no fp16 path; use --precision bf16-mixed")
    if scaler is not None:
        return _scaled(config, optimizer, objective, scaler)
    if config.method == "esam":
        return _sampled(optimizer, objective)
    if climbs_a_part(config):
        return _partial(optimizer, objective)
    if config.micro_batches > 1:
        return _divided(optimizer, objective, config.micro_batches)
    return _closure(optimizer, objective)


def _passing(
    optimizer: Any, objective: Objective, loss: Callable[[], Tensor], of: Sequence[Tensor] | None = None
) -> Callable[[], Tensor]:
    """A closure as optimizers want it."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        return objective.backward(loss(), of)

    return closure


def _closure(optimizer: Any, objective: Objective) -> Stepper:
    descend = _passing(optimizer, objective, objective.loss)

    def climb() -> Tensor:
        optimizer.zero_grad()
        return objective.climb()

    ascent = None if objective.ascent_loss is None else climb

    def step() -> Outcome:
        optimizer.step(descend, ascent=ascent)
        return _outcome(objective, seen(optimizer))

    return step


def climbs_a_part(config: OptimizerConfig) -> bool:
    """Whether the first pass of a step is on less than the batch."""
    return bool(getattr(config, "share", 1.0) < 1)


def _partial(optimizer: Any, objective: Objective) -> Stepper:
    descend = _passing(optimizer, objective, objective.loss)

    def step() -> Outcome:
        loss, share = objective.part(optimizer.few)
        climb = _passing(optimizer, objective, loss, _climbed(optimizer, objective))
        optimizer.step(descend, ascent=climb, share=share)
        return _outcome(objective, seen(optimizer))

    return step


def _climbed(optimizer: Any, objective: Objective) -> Sequence[Tensor] | None:
    """What alone needs a gradient of a part; None for everything, which processes that exchange gradients wait for."""
    return optimizer.perturbable if objective.fabric.world_size == 1 else None


def _divided(optimizer: Any, objective: Objective, parts: int) -> Stepper:
    def step() -> Outcome:
        optimizer.step([_passing(optimizer, objective, loss) for loss in objective.divided(parts)])
        return _outcome(objective, seen(optimizer))

    return step


def _sampled(optimizer: Any, objective: Objective) -> Stepper:
    def step() -> Outcome:
        optimizer.step(sample_losses=objective.sample_losses)
        return _outcome(objective, seen(optimizer))

    return step


def _refuse_other_ascent(config: OptimizerConfig, optimizer: Any, objective: Objective) -> None:
    """Before a run begins, what the optimizer would refuse in its first step."""
    if objective.ascent_loss is None:
        return
    if optimizer.parts.direction.passes == 1:
        raise ValueError(f"{config.method} has no first pass that could climb another loss: set task.ascent=full")
    if optimizer.parts.gate is not None:
        raise ValueError(
            f"{config.method} may descend with its first gradient, and this task climbs another loss: set "
            "task.ascent=full"
        )


def _scaled(config: OptimizerConfig, optimizer: Any, objective: Objective, scaler: Any) -> Stepper:
    if config.method == "esam":
        raise ValueError("esam chooses samples by their losses and has no fp16 path; use --precision bf16-mixed")
    if optimizer.parts.combine.mirrors:
        raise ValueError(f"{config.method} takes three passes and has no fp16 path; use --precision bf16-mixed")

    def unscaled() -> Tensor:
        optimizer.zero_grad()
        loss = objective.loss()
        torch.autograd.backward(loss)
        return loss.detach()

    def step() -> Outcome:
        if optimizer.refresh_due:
            optimizer.refresh(unscaled)
            objective.correct = None
        optimizer.zero_grad()
        clean = second = None
        if optimizer.passes == 2 and climbs_a_part(config):
            loss, share = objective.part(optimizer.few)
            with optimizer.clean(scaler=scaler, share=share):
                objective.backward(loss(), _climbed(optimizer, objective))
        elif optimizer.passes == 2:
            with optimizer.clean(scaler=scaler):
                clean = objective.climb()
        if clean is None or optimizer.passes == 2:  # else a gate has decided that one pass is enough
            with optimizer.perturbed(scaler=scaler):
                second = objective.backward(objective.loss())
        scaler.step(optimizer)
        scaler.update()
        return _outcome(objective, _with_losses(seen(optimizer), clean, second))

    return step


def _with_losses(seen: Seen, clean: Tensor | None, second: Tensor | None) -> Seen:
    """Fill the losses in: without a closure the optimizer does not see them.

    The only pass of a step is at the weights themselves where nothing was perturbed, that is, where there is no radius.
    """
    if second is None:
        return seen if clean is None else seen._replace(loss=clean)
    if clean is not None:
        return seen._replace(loss=clean, perturbed_loss=second)
    nothing = torch.full_like(second, math.nan)
    plain = torch.as_tensor(seen.rho).isnan()
    return seen._replace(loss=torch.where(plain, second, nothing), perturbed_loss=torch.where(plain, nothing, second))


def _plain(
    config: OptimizerConfig, optimizer: torch.optim.Optimizer, objective: Objective, scaler: Any | None
) -> Stepper:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    limit = math.inf if config.max_norm is None else config.max_norm

    def step() -> Outcome:
        optimizer.zero_grad()
        loss = objective.backward(objective.loss())
        if scaler is not None:
            scaler.unscale_(optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if config.max_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        return _outcome(objective, Seen(loss=loss, grad_norm=whole(norm), cost=1.0))

    return step


def seen(optimizer: Any) -> Seen:
    """What the optimizer's last step saw."""
    last = optimizer.last
    return Seen(**{name: last[name] for name in Seen._fields})


def _outcome(objective: Objective, seen: Seen) -> Outcome:
    if objective.correct is None:
        raise RuntimeError("the optimizer took a step without a forward pass")
    return seen, objective.correct


def whole(value: Tensor) -> Tensor:
    """A sharded scalar as an ordinary tensor."""
    full = getattr(value, "full_tensor", None)
    return value if full is None else full()

"""What an optimizer and its passes refuse, and how they say so."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ._arithmetic import Space
from ._gradients import EntryCheck
from ._run import Phase

if TYPE_CHECKING:
    from ._loop import Loop


def usable_base(base: object) -> torch.optim.Optimizer:
    """``base``, if it can be wrapped."""
    if not isinstance(base, torch.optim.Optimizer):
        hint = " Give an instance, SGD(model.parameters(), lr=0.1), not the class" if isinstance(base, type) else ""
        raise ValueError(f"base must be a torch.optim.Optimizer, got {base!r}.{hint}")
    if isinstance(base, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS calls the closure itself, many times a step, and cannot be the base of another optimizer"
        )
    real_parameters(base)
    return base


def real_parameters(base: torch.optim.Optimizer) -> None:
    """Refuse parameters that are not real floating-point numbers."""
    for group in base.param_groups:
        for parameter in group["params"]:
            if not parameter.is_floating_point():
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} is {parameter.dtype}; sharpness-aware steps need "
                    "real floating-point parameters (use torch.view_as_real for complex ones)"
                )


def members(perturb: Iterable[Tensor], base: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters to perturb, each once; refuses any that ``base`` does not train."""
    if isinstance(perturb, Tensor):
        raise ValueError("perturb must be a list of parameters, got a single tensor: write perturb=[tensor]")
    wanted: dict[int, Tensor] = {}
    known = {id(p) for group in base.param_groups for p in group["params"]}
    for parameter in perturb:
        if not isinstance(parameter, Tensor):
            raise ValueError(f"perturb must be a list of parameters, got {parameter!r} in it")
        if id(parameter) not in known:
            raise ValueError(f"perturb has a tensor of shape {tuple(parameter.shape)} that base does not train")
        wanted[id(parameter)] = parameter
    if not wanted:
        raise ValueError("perturb is empty: use the base optimizer alone, or when=lambda step: False")
    return list(wanted.values())


def unchanged_by_lightning(closure: object) -> None:
    """Refuse the closure of a Lightning Trainer that clips in it, or divides the loss of micro-batches."""
    if not isinstance(closure, partial) or closure.func.__name__ != "_wrap_closure" or not closure.args:
        return
    trainer = getattr(closure.args[0], "trainer", None)
    for option, harmless in (("gradient_clip_val", (None, 0)), ("accumulate_grad_batches", (None, 1))):
        value = getattr(trainer, option, None)
        if value not in harmless:
            raise RuntimeError(
                f"Trainer({option}={value!r}) changes gradients inside its closure, and the radius with them. Give the "
                "Trainer callbacks=[lesam.integrations.lightning.SharpnessAwareCallback()], which does it right"
            )


def dense_gradients(parameters: Iterable[Tensor]) -> None:
    """Refuse gradients without a dense layout."""
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None and grad.layout is not torch.strided:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} has a {grad.layout} gradient; sharpness-aware steps "
                "need dense ones (for nn.Embedding: sparse=False), or leave it out of this optimizer"
            )


def some_gradient(parameters: Iterable[Tensor], which: str) -> None:
    """Refuse a pass without a backward."""
    if all(parameter.grad is None for parameter in parameters):
        raise RuntimeError(f"the {which} left no gradient: call backward() on the loss in it")


def cleared(entry: EntryCheck, zeroed: bool) -> None:
    """Refuse a pass that added to gradients which were there before it."""
    if not zeroed and entry.left_over():
        raise RuntimeError(
            "gradients were already there when the pass began, and it added to them, so that the step would be that of "
            "the sum. Call opt.zero_grad() at the start of the closure, or before the first pass; frameworks that "
            "accumulate need their integration (lesam.integrations)"
        )


def no_sample_choice(loop: Loop) -> None:
    """Refuse passes that cannot choose their samples."""
    samples = loop.parts.samples
    if samples is not None and samples.gamma < 1 and loop.due:
        raise ValueError(
            f"{samples!r} needs the loss of each sample: call step(sample_losses=fn) with fn(indices=None) -> losses, "
            "or use gamma=1"
        )


def bare_pass(loop: Loop) -> None:
    """Refuse a second pass whose first pass, made without clean(), cannot be right."""
    run = loop.run
    if run.phase is Phase.READY:
        raise RuntimeError(
            "perturbed() was called twice without a first pass between. Use `with opt.clean():` for it, and "
            "opt.step() after each pair (or, for several local pairs, clean() in each)"
        )
    if run.consumed is not None and run.consumed.still_there():
        raise RuntimeError(
            "the gradients of the last step are still there: call opt.zero_grad() before the first pass, or run it "
            "inside `with opt.clean():`, which does that"
        )
    if all(p.grad is None for p in loop.trainable()):
        raise RuntimeError("perturbed() found no gradient: run the first pass (loss.backward()) before it")
    if loop.local and isinstance(loop.model, nn.parallel.DistributedDataParallel):
        raise RuntimeError('perturbation="local" needs the first pass inside `with opt.clean():`')


def local_perturbation(space: Space, model: nn.Module | None) -> None:
    """Refuse ``perturbation="local"`` where there is no such thing."""
    if any(kind.shard_groups for kind in space.kinds):
        raise RuntimeError(
            'perturbation="local" cannot be used with sharded parameters (FSDP): every worker holds only a part of '
            'each gradient, so there is no perturbation of its own. Use perturbation="global"'
        )
    if isinstance(model, nn.parallel.DistributedDataParallel) and model.static_graph:
        raise RuntimeError(
            'perturbation="local" cannot be used with DistributedDataParallel(static_graph=True), whose backwards must '
            'all communicate. Leave out static_graph, or use perturbation="global"'
        )
    if model is None and dist.is_initialized() and dist.get_world_size() > 1:
        raise RuntimeError('perturbation="local" with several processes needs model=, to run pass one unsynchronised')


def unscaled(grad_norm: float) -> None:
    """Refuse large gradients where a loss scaler is at work that the passes were not told of.

    On a first step such a scaler has scaled a loss and has not been updated yet. Others in the process, of a finished
    run or of another model, have.
    """
    if grad_norm < 64:
        return
    # By type(), since isinstance() can run code of the many strange objects in a process.
    for scaler in (thing for thing in gc.get_objects() if issubclass(type(thing), torch.amp.GradScaler)):
        scale, tracker = scaler._scale, scaler._growth_tracker
        if not scaler.is_enabled() or scale is None or tracker is None or float(scale) == 1.0:
            continue
        if float(scale) == scaler._init_scale and int(tracker) == 0:
            raise RuntimeError(
                f"the first gradient has norm {grad_norm:.3g}, and a GradScaler multiplies losses by {float(scale):g}: "
                "the radius would be that of the scaled loss. Give the scaler to clean() and perturbed(), and step "
                "with scaler.step(opt)"
            )


def same_scaler(given: Any, found_inf: Tensor | None) -> None:
    """Refuse a loss scaler that only one of the passes and the step know of."""
    if (given is None) != (found_inf is None):
        how, called = ("with", "opt.step()") if found_inf is None else ("without", "scaler.step(opt)")
        raise RuntimeError(
            f"perturbed() was called {how} a scaler, and then {called}: give the scaler to clean() and perturbed() and "
            "step with scaler.step(opt), or use it nowhere"
        )

"""What an optimizer and its passes refuse, and how they say so."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ._bases import Bases
from ._leftovers import Leftover
from ._step import Phase
from .schedules import plain

if TYPE_CHECKING:
    from ._loop import Loop


def members(perturb: Iterable[Tensor], bases: Bases) -> list[Tensor]:
    """The parameters to perturb, each once; refuses any that no base trains."""
    if isinstance(perturb, Tensor):
        raise ValueError("perturb must be a list of parameters, got a single tensor: write perturb=[tensor]")
    wanted: dict[int, Tensor] = {}
    known = {id(p) for p in bases.parameters()}
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


def not_accumulated_by_accelerate() -> None:
    """Refuse a closure that Accelerate calls for the last micro-batch only, on a loss divided by their number."""
    accelerate = sys.modules.get("accelerate.state")
    shared = getattr(getattr(accelerate, "GradientState", None), "_shared_state", {})
    count = (shared.get("plugin_kwargs") or {}).get("num_steps") or 1
    if count == 1:
        return
    frame: FrameType | None = sys._getframe(1)
    for _ in range(8):
        frame = None if frame is None else frame.f_back
        if frame is not None and frame.f_globals.get("__name__") == "accelerate.optimizer":
            raise RuntimeError(
                f"Accelerator(gradient_accumulation_steps={count}) calls the closure for the last micro-batch only, on "
                "a loss divided by their number. Run all micro-batches of a step inside `with opt.optimizer.clean():`, "
                "again inside `with opt.optimizer.perturbed():`, each in accelerator.accumulate(model), and then call "
                "opt.step(). Or leave gradient_accumulation_steps at 1 and call opt.step([closure, ...]) with one "
                "closure for each micro-batch"
            )


def initialised(parameters: Iterable[Tensor]) -> None:
    """Refuse parameters that have no shape or no values yet."""
    if any(is_lazy(p) or p.is_meta for p in parameters):
        raise RuntimeError(
            "some parameters have no values yet (lazy modules, the meta device): run one forward, or move the model to "
            "its device, before the first step"
        )


def options(model: object, when: object, perturbation: object) -> None:
    """Refuse options of another kind."""
    if model is not None and not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {model!r}")
    if when is not None and not callable(when):
        raise ValueError(f"when must be a predicate on the step (lesam.schedules.every(k)), got {when!r}")
    if perturbation not in ("global", "local"):
        raise ValueError(f'perturbation must be "global" or "local", got {perturbation!r}')


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
        raise RuntimeError(f"the {which} left no gradient: call backward() on the loss in it{replaced_by_deepspeed()}")


def replaced_by_deepspeed() -> str:
    """What else may be the reason for an optimizer without gradients, where DeepSpeed is in use."""
    if "deepspeed" not in sys.modules:
        return ""
    return (
        ". DeepSpeed's ZeRO replaces the optimizer's parameters by flat parts that never have a gradient: use "
        "zero_optimization stage 0, torch's FSDP2, or ZeroRedundancyOptimizer"
    )


def passed(leftover: Leftover, trainable: list[Tensor], which: str) -> None:
    """Refuse what a pass left behind where it is not the gradient of that pass alone."""
    leftover.settle()
    _cleared(leftover)
    some_gradient(trainable, which)
    dense_gradients(trainable)


def _cleared(leftover: Leftover) -> None:
    """Refuse a pass that left gradients in place which were there before it: somebody meant them to count."""
    if leftover.was_added_to():
        raise RuntimeError(
            "gradients were already there when the pass began, and it did not clear them: were they to be added to? "
            "Call opt.zero_grad() at the start of the closure, or before the first pass; for accumulation give step() "
            "a list of closures; frameworks that accumulate need their integration (lesam.integrations)"
        )


def same_between_passes(loop: Loop) -> None:
    """Put back a first gradient that was cleared after clean(), and refuse one that was changed.

    Other packages clear between the passes; here the second pass needs the first gradient and clears by itself.
    """
    step = loop.step
    if [id(p) for p in loop.trainable()] != [id(p) for p in step.trainable]:
        raise RuntimeError(
            "parameters were added, frozen or unfrozen between clean() and perturbed(): do so between steps"
        )
    if any(grad._version != noted for grad, noted in step.first.values()):
        raise RuntimeError(
            "the first gradient was changed between clean() and perturbed() (clipped, unscaled, zeroed in place, or "
            "added to by a further backward), and the perturbation with it. Clip with max_norm=; give a scaler to "
            "clean() and perturbed(), which unscale by themselves; accumulate inside clean()"
        )
    for parameter in step.trainable:
        parameter.grad = step.first[parameter][0] if parameter in step.first else None
    step.first = {}


def no_sample_choice(loop: Loop) -> None:
    """Refuse passes that cannot choose their samples."""
    samples = loop.parts.samples
    if samples is not None and samples.gamma < 1 and loop.climbs:
        raise ValueError(
            f"{samples!r} needs the loss of each sample: call step(sample_losses=fn) with fn(indices=None) -> losses, "
            "or use gamma=1"
        )


def share_of_the_batch(loop: Loop, share: float | None, ascent: object = None) -> float:
    """The share of the batch that a first pass is on, which only the caller knows: all of it unless said otherwise."""
    part = loop.parts.part
    if share is None:
        if part is not None and part.share < 1 and ascent is not None:
            raise ValueError(
                f"{part!r} climbs on a part of the batch, and the optimizer cannot see how much of it ascent= is on: "
                "say so, opt.step(closure, ascent=ascent, share=few / len(x)), or share=1"
            )
        return 1.0
    if part is None:
        raise ValueError(
            f"share={share!r} is for methods that climb on a part of the batch: lesam.PartialLESAM, or "
            "SharpnessAware(..., part=lesam.BatchPart(share))"
        )
    return plain("share", share, 0.0, 1.0, open_low=True)


def two_passes_at_most(loop: Loop) -> None:
    """Refuse passes without a closure where there are three: after two of them nobody would run the third."""
    if loop.passes > 2:
        raise RuntimeError(
            f"{loop.parts.combine!r} takes three passes, at w, w + eps and w - eps, and works with closures only: call "
            "opt.step(closure). Loss scalers and frameworks that run the passes by themselves cannot use it"
        )


def no_other_ascent(loop: Loop, ascent: object) -> None:
    """Refuse a first pass on another loss where there is none, or where a step may descend with its gradient alone."""
    if ascent is None:
        return
    if loop.parts.direction.passes == 1:
        raise ValueError(
            f"ascent= is for the first pass, and {loop.parts.direction!r} climbs without one: leave it out, or use a "
            "method of two passes"
        )
    if loop.parts.gate is not None:
        raise ValueError(
            f"ascent= cannot be used with {loop.parts.gate!r}: a step that does not climb descends with the gradient "
            "of the first pass, which would be of another loss"
        )


def bare_pass(loop: Loop) -> None:
    """Refuse a second pass whose first pass, made without clean(), cannot be right."""
    if loop.step.phase is Phase.READY:
        raise RuntimeError(
            "perturbed() was called twice without a first pass between. Use `with opt.clean():` for it, and "
            "opt.step() after each pair (or, for several local pairs, clean() in each)"
        )
    used_up = loop.history.used_up
    if used_up is not None and used_up.added_to(loop.trainable()):
        raise RuntimeError(
            "the gradients of the last step are still there: call opt.zero_grad() before the first pass, or run it "
            "inside `with opt.clean():`, which does that"
        )
    if loop.parts.gate is not None:
        raise RuntimeError(f"{loop.parts.gate!r} decides after the first pass: run it inside `with opt.clean():`")
    if all(p.grad is None for p in loop.trainable()):
        raise RuntimeError("perturbed() found no gradient: run the first pass (loss.backward()) before it")
    if loop.local and isinstance(loop.model, nn.parallel.DistributedDataParallel):
        raise RuntimeError('perturbation="local" needs the first pass inside `with opt.clean():`')

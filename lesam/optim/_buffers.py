"""The model's buffers: what a perturbed pass must not leave behind."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ._arithmetic import clone_all, copy_all_

Places = list[tuple[nn.Module, str]]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def normalisers(model: nn.Module) -> list[nn.Module]:
    """The modules of ``model`` that keep running statistics: BatchNorm, any subclass or imitation of it."""
    return [m for m in model.modules() if any(m._buffers.get(name) is not None for name in STATISTICS)]


class Buffers:
    """A copy of some of a model's buffers, to put back after a pass that should not have moved them.

    Neither the mode nor the momentum of a layer is touched.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> before = Buffers(chosen(norm, "batchnorm"))
        >>> _ = norm(torch.randn(8, 2))
        >>> before.restore()
        >>> norm.num_batches_tracked
        tensor(0)
    """

    def __init__(self, places: Places) -> None:
        self.places = [(m, name, m._buffers[name]) for m, name in places if m._buffers.get(name) is not None]
        self.values = clone_all(self.tensors())

    def tensors(self) -> list[Tensor]:
        """The buffers themselves."""
        return [buffer for _, _, buffer in self.places if buffer is not None]

    def restore(self) -> None:
        """Put the copied values back, into the very tensors they came from."""
        with torch.no_grad():
            copy_all_(self.tensors(), self.values)
        for module, name, buffer in self.places:
            if module._buffers[name] is not buffer:  # some modules assign a new tensor
                module._buffers[name] = buffer


def chosen(model: nn.Module, which: str | Sequence[str]) -> Places:
    """The buffers that ``which`` names: ``"batchnorm"``, ``"all"``, or names as in ``named_buffers()``."""
    if which == "batchnorm":
        return [(module, name) for module in normalisers(model) for name in module._buffers]
    if which == "all":
        return [(module, name) for module in model.modules() for name in module._buffers]
    places = {
        f"{prefix}.{name}" if prefix else name: (module, name)
        for prefix, module in model.named_modules()
        for name in module._buffers
    }
    unknown = [name for name in which if name not in places]
    if unknown:
        near = difflib.get_close_matches(unknown[0], places, n=3)
        there = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(places) or 'none'}"
        raise ValueError(f"buffers names {unknown[0]!r}, which model has not: {there}")
    return [places[name] for name in which]


def keeper(model: nn.Module | None, which: object) -> Callable[[], Buffers] | None:
    """Makes copies of the buffers named by the option ``buffers`` of ``model``; None where there is no model."""
    if isinstance(which, str):
        if which not in ("batchnorm", "all"):
            raise ValueError(f'buffers must be "batchnorm", "all" or a list of names, got {which!r}')
    elif not isinstance(which, Sequence) or not all(isinstance(name, str) for name in which):
        raise ValueError(f'buffers must be "batchnorm", "all" or a list of names, got {which!r}')
    if model is None:
        if which != "batchnorm":
            raise ValueError(f"buffers={which!r} needs model=, whose buffers these are")
        return None
    chosen(model, which)  # unknown names are refused now; layers may still be exchanged later
    return Keeper(model, which)


class Keeper:
    """Copies the chosen buffers of a model when called."""

    def __init__(self, model: nn.Module, which: str | Sequence[str]) -> None:
        self.model, self.which = model, which

    def __call__(self) -> Buffers:
        return Buffers(chosen(self.model, self.which))


@contextmanager
def evaluated(modules: Sequence[nn.Module]) -> Iterator[None]:
    """These modules in evaluation mode inside, each back in its own mode afterwards."""
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode

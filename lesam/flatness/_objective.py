"""The mean loss over fixed data as a function of the parameters, evaluated without changing the model."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lesam.flatness._batchnorm import estimating, without_statistics
from lesam.flatness._checks import refuse_non_finite, refuse_other_than_mean, refuse_random
from lesam.flatness._data import Batch, Batches
from lesam.flatness._results import Setting
from lesam.flatness._untouched import Mode, copied_buffers, untouched

LossFunction = Callable[[Any, Any], Tensor]
Metric = Callable[[Any, Any], Tensor]
Selection = Iterable[str] | Iterable[Tensor] | Callable[[str, Tensor], bool] | None


class Objective:
    """`L(w) = sum_b n_b L_b(w) / sum_b n_b` over batches of `n_b` samples, at any `w`.

    Args:
        model: Called as `model(input)`; its weights are the point where everything is measured.
        loss_fn: Called as `loss_fn(output, target)`; must return the mean over the samples of the batch.
        data: Iterable of `(input, target)` batches, equal in each pass.
        params: Which parameters `w` holds: names, parameters, or a predicate on `(name, parameter)`; all that
            require a gradient by default.
        mode: Module mode during evaluation; "current" takes each module as it is.
        batch_size: Splits batches into pieces of at most this many samples.
        check: Refuse a random loss and a loss that is not a mean (four evaluations of the first batch).
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        data: Iterable[Any],
        *,
        params: Selection = None,
        mode: Mode = "eval",
        batch_size: int | None = None,
        check: bool = True,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {get_args(Mode)}, got {mode!r}")
        self.model = model
        self.loss_fn = loss_fn
        self.mode: Mode = mode
        self.parameters = select_parameters(model, params)
        first = next(iter(self.parameters.values()))
        self.device = first.device
        kinds = [p.dtype for p in self.parameters.values()]
        # Vectors of half-precision models are kept in single precision; only the passes run in half.
        self.parameter_dtype = first.dtype
        self.dtype = torch.float64 if torch.float64 in kinds else torch.float32
        self.size = sum(p.numel() for p in self.parameters.values())
        # Reading data may draw random numbers too: a DataLoader does at the start of each pass.
        with self.untouched():
            self.batches = Batches(data, batch_size, self.device)
            if check:
                self._refuse_what_has_no_curvature()
        self.loss = refuse_non_finite(self.evaluate(self.point())[0], "at the weights of the model")
        self._weights = self._weights_mark()

    def point(self) -> list[Tensor]:
        """The present parameters, detached (not copied)."""
        return [p.detach() for p in self.parameters.values()]

    def batch_loss(self, point: Sequence[Tensor], batch: Batch) -> Tensor:
        """Mean loss of one batch at `point`; call it inside `untouched`."""
        return self._forward(point, batch)[0]

    def evaluate(
        self, point: Sequence[Tensor], metric: Metric | None = None, buffers: Mapping[str, Tensor] | None = None
    ) -> tuple[float, float | None]:
        """Mean loss, and mean `metric(output, target)` if one is given, over all the data at `point`.

        `buffers` replace the model's own, as those of `statistics` do.
        """
        total, counted = torch.zeros(2, dtype=torch.float64), self.batches.samples
        with self.untouched(), torch.no_grad():
            for batch in self.batches:
                loss, output = self._forward(point, batch, buffers)
                total[0] += loss.double().cpu() * (batch.samples / counted)
                if metric is not None:
                    value = torch.as_tensor(metric(output, batch.target), dtype=torch.float64)
                    total[1] += value.mean().cpu() * (batch.samples / counted)
        return total[0].item(), None if metric is None else total[1].item()

    def statistics(self, point: Sequence[Tensor]) -> dict[str, Tensor]:
        """The buffers with BatchNorm's running statistics estimated at `point`: the mean over the batches."""
        buffers = without_statistics(self.model)
        state = dict(zip(self.parameters, point, strict=True)) | buffers
        with self.untouched(), estimating(self.model), torch.no_grad():
            for batch in self.batches:
                functional_call(self.model, state, (batch.input,))
        return buffers

    def untouched(self) -> Any:
        """Context in which the model is in the mode of the measurement."""
        return untouched(self.model, self.mode)

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Parameter-shaped tensors as one vector."""
        return torch.cat([t.reshape(-1).to(self.device, self.dtype) for t in tensors])

    def unflatten(self, vector: Tensor) -> list[Tensor]:
        """A vector as parameter-shaped tensors, in the parameters' own dtypes and devices."""
        live = list(self.parameters.values())
        pieces = torch.split(vector, [p.numel() for p in live])
        return [piece.view(p.shape).to(p.device, p.dtype) for piece, p in zip(pieces, live, strict=True)]

    def refuse_moved_weights(self) -> None:
        """A measure belongs to one point: weights that changed since construction are an error."""
        if not torch.equal(self._weights, self._weights_mark()):
            raise RuntimeError("the model's weights changed since the measurement was set up; set up a new one")

    @property
    def settings(self) -> dict[str, Setting]:
        """What a number measured on this objective depends on."""
        return {
            "loss": self.loss,
            "samples": self.batches.samples,
            "batches": self.batches.count,
            "batch_size": self.batches.largest,
            "mode": self.mode,
            "parameters": self.size,
            "tensors": len(self.parameters),
            "dtype": str(self.parameter_dtype).removeprefix("torch."),
            "device": self.device.type,
            "torch": torch.__version__,
            "lesam": _own_version(),
            "python": platform.python_version(),
        }

    @property
    def checksum(self) -> float:
        """One number for weights and data together, to recognise them in a later session."""
        return float(self._weights.sum()) + self.batches.checksum

    def _forward(
        self, point: Sequence[Tensor], batch: Batch, buffers: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Any]:
        own = copied_buffers(self.model) if buffers is None else buffers
        state = dict(zip(self.parameters, point, strict=True)) | dict(own)
        output = functional_call(self.model, state, (batch.input,))
        loss = self.loss_fn(output, batch.target)
        if not isinstance(loss, Tensor) or loss.ndim != 0:
            shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"loss_fn must return a 0-d tensor, the mean over the batch, got {shape}")
        return loss, output

    def _refuse_what_has_no_curvature(self) -> None:
        batch, point = next(iter(self.batches)), self.point()

        def loss_of(piece: Batch) -> float:
            return self.batch_loss(point, piece).item()

        with torch.no_grad():
            refuse_non_finite(loss_of(batch), "on the first batch")
            refuse_random(loss_of, batch, self.model, self.parameter_dtype)
            refuse_other_than_mean(loss_of, batch, self.model, self.parameter_dtype)

    def _weights_mark(self) -> Tensor:
        sums = [(p.sum(dtype=torch.float64), p.double().norm()) for p in self.point()]
        return torch.stack([value.cpu() for pair in sums for value in pair])


def select_parameters(model: nn.Module, params: Selection) -> dict[str, Tensor]:
    """Name to parameter, in the model's order, for what `params` selects."""
    named: dict[str, Tensor] = dict(model.named_parameters())
    if params is None:
        chosen = {name: p for name, p in named.items() if p.requires_grad}
    elif callable(params):
        chosen = {name: p for name, p in named.items() if params(name, p)}
    else:
        wanted = list(params)
        names = {w for w in wanted if isinstance(w, str)}
        ids = {id(w) for w in wanted if not isinstance(w, str)}
        chosen = {name: p for name, p in named.items() if name in names or id(p) in ids}
        if len(chosen) != len(names) + len(ids):
            unknown = sorted(names - set(chosen)) or "a tensor that is no parameter of the model"
            raise ValueError(f"params names what the model does not have: {unknown}")
    if not chosen:
        raise ValueError("no parameters to measure: none is selected, or none requires a gradient")
    return chosen


def _own_version() -> str:
    try:
        return version("lesam")
    except PackageNotFoundError:
        return "not installed"

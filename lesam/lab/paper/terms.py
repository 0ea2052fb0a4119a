"""The terms of a sharpness-aware step, measured on mini-batches of a trained network.

For a mini-batch with loss ``L``, gradient ``g``, direction ``u = g / |g|`` and radius ``rho``, the rise of the loss is

    L(w + rho u) - L(w) = rho |g| + rho^2 u'Hu / 2 + higher terms.

SAM fixes ``rho``, so its first term follows the gradient's norm; LE-SAM fixes the first term (the budget ``sigma``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

import lesam
from lesam import Radius
from lesam.flatness import HessianOperator
from lesam.lab.config.optimizer import own_settings, title
from lesam.lab.config.run import RunConfig
from lesam.lab.data import Batches
from lesam.lab.data.loading import load_data, training_augmentation
from lesam.lab.device import measuring_device
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.answers import Question, Recorded, answer
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.restore import load_model


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """One mini-batch: the gradient's norm, the radius, and the parts of the rise."""

    norm: float
    rho: float
    first_order: float
    """``rho |g|``."""
    curvature: float
    """``rho^2 u'Hu / 2``."""
    rise: float
    """``L(w + rho u) - L(w)``, as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """The loss along the gradient of one mini-batch, relative to the loss at the weights."""

    norm: float
    distances: tuple[float, ...]
    rises: tuple[float, ...]


def measure_terms(run: RunFolder, epoch: int, batches: int) -> list[Terms]:
    """The terms of a run after an epoch, with the radius of the epoch that follows; kept in the run's folder."""
    config = run.config()
    sigmas = {row["epoch"]: row.get("sigma") for row in run.metrics()}
    sigma = sigmas.get(epoch, sigmas.get(epoch - 1))  # after the last epoch nothing follows
    weights = checkpoints.find(run.checkpoints, epoch).weights_sha256()
    key = {"weights": weights, "batches": batches, "sigma": sigma, "run": config.fingerprint}
    form: Recorded[list[Terms]] = Recorded(
        to_record=lambda terms: {"key": key, "terms": [asdict(each) for each in terms]},
        from_record=lambda record: [Terms(**stored) for stored in record["terms"]],
    )
    return answer(
        Question(run=run, room="flatness", name=f"epoch-{epoch:04d}-terms", key=key),
        form,
        lambda: Probe(run, epoch, batches=batches).terms(radius_of(config, sigma)),
    )


class Probe:
    """The training loss of a run's network on mini-batches, as training saw it: augmented, BatchNorm on the batch."""

    def __init__(self, run: RunFolder, epoch: int, *, batches: int) -> None:
        """Load the network after an epoch and draw mini-batches of the epoch that follows."""
        self.config = run.config()
        device = measuring_device(None, float64=True)
        splits = load_data(self.config)
        self.model: nn.Module = load_model(run, epoch, device=device, classes=splits.classes)[0].train()
        self.weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        training = Batches(
            splits.train,
            self.config.data.batch_size,
            training_augmentation(self.config),
            device=device,
            seed=self.config.seed,
            drop_last=True,
        )
        self._batches = list(islice(training.epoch(epoch), batches))

    def terms(self, radius: Radius) -> list[Terms]:
        """The terms of every mini-batch under a rule for the radius."""
        return [self._terms(batch, radius) for batch in self._batches]

    def slices(self, distances: Sequence[float]) -> list[Slice]:
        """The loss along the gradient of every mini-batch."""
        found = []
        for batch in self._batches:
            loss, gradient = self._gradient(batch)
            norm = _norm(gradient)
            rises = tuple(self._loss(batch, _moved(self.weights, gradient, t / norm)) - loss for t in distances)
            found.append(Slice(norm=norm, distances=tuple(distances), rises=rises))
        return found

    def _terms(self, batch: tuple[Tensor, Tensor], radius: Radius) -> Terms:
        loss, gradient = self._gradient(batch)
        norm = _norm(gradient)
        rho = reach(radius, norm)
        bend = self._curvature(batch, gradient) / norm**2
        rise = self._loss(batch, _moved(self.weights, gradient, rho / norm)) - loss
        return Terms(norm=norm, rho=rho, first_order=rho * norm, curvature=rho**2 * bend / 2, rise=rise)

    def _gradient(self, batch: tuple[Tensor, Tensor]) -> tuple[float, dict[str, Tensor]]:
        weights = {name: weight.clone().requires_grad_() for name, weight in self.weights.items()}
        loss = self._forward(batch, weights)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        return float(loss.detach()), dict(zip(weights, gradients, strict=True))

    def _curvature(self, batch: tuple[Tensor, Tensor], vector: dict[str, Tensor]) -> float:
        """``v'Hv``."""
        hessian = HessianOperator(self.model, functional.cross_entropy, [batch], mode="train")
        v = torch.cat([vector[name].reshape(-1) for name in self.weights])
        return float(v @ (hessian @ v))

    @torch.no_grad()
    def _loss(self, batch: tuple[Tensor, Tensor], weights: dict[str, Tensor]) -> float:
        return float(self._forward(batch, weights))

    def _forward(self, batch: tuple[Tensor, Tensor], weights: dict[str, Tensor]) -> Tensor:
        images, labels = batch
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}  # BatchNorm moves copies
        logits: Tensor = functional_call(self.model, {**weights, **buffers}, (images,))
        return functional.cross_entropy(logits, labels)


def radius_of(config: RunConfig, sigma: float | None = None) -> Radius:
    """How far the run's method climbs, as the library has it; ``sigma`` is the budget of the epoch in question."""
    own = own_settings(config.optimizer)
    if config.method == "lesam":
        return lesam.LossBudget(own["sigma"] if sigma is None else sigma, own["rho_max"], own["varrho"])
    if config.method == "sam":
        return lesam.Fixed(own["rho"])
    raise ValueError(
        f"no radius is known for {config.method}; the mechanism is about {title('sam')} and {title('lesam')}"
    )


def reach(radius: Radius, norm: float) -> float:
    """The distance that a radius gives for the norm of a gradient.

    >>> reach(lesam.LossBudget(0.5, rho_max=0.2), 2.0), round(reach(lesam.LossBudget(0.5), 2.0), 6)
    (0.2, 0.25)
    """
    return float(radius(torch.tensor(norm, dtype=torch.float64), step=0).rho)


def _norm(gradient: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradient.values()))


def _moved(weights: dict[str, Tensor], gradient: dict[str, Tensor], distance: float) -> dict[str, Tensor]:
    return {name: weight + distance * gradient[name] for name, weight in weights.items()}

"""The terms of a sharpness-aware step, measured on mini-batches of a trained network.

For a mini-batch with loss ``L``, gradient ``g``, direction ``u = g / |g|`` and radius ``rho``, the rise of the loss is

    L(w + rho u) - L(w) = rho |g| + rho^2 u'Hu / 2 + higher terms.

SAM fixes ``rho``, so its first term follows the gradient's norm; LE-SAM fixes the first term (the budget ``sigma``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from lesam.flatness import HessianOperator
from lesam.lab.config.optimizer import LESAMConfig, SAMConfig
from lesam.lab.config.run import RunConfig, digest
from lesam.lab.data import Batches
from lesam.lab.data.loading import training_augmentation
from lesam.lab.files import sha256, write_atomically
from lesam.lab.runs.checkpoint import WEIGHTS
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.restore import find_checkpoint, load_data, load_model

Radius = Callable[[float], float]
"""From the norm of a gradient to how far to climb along it."""


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
    """The terms of a run after so many epochs, with the radius of the epoch that follows; kept in the run's folder."""
    config = run.config()
    sigmas = {row["epoch"]: row.get("sigma") for row in run.metrics()}
    sigma = sigmas.get(epoch, sigmas.get(epoch - 1))  # after the last epoch nothing follows
    weights = sha256(find_checkpoint(run, epoch).path / WEIGHTS)
    key = {"weights": weights, "batches": batches, "sigma": sigma, "run": config.fingerprint}
    path = run.path / "flatness" / f"epoch-{epoch:04d}-terms-{digest(key)}.json"
    if path.exists():
        return [Terms(**stored) for stored in json.loads(path.read_text())["terms"]]
    terms = Probe(run, epoch, batches=batches).terms(radius_rule(config, sigma))
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, json.dumps({"key": key, "terms": [asdict(each) for each in terms]}, indent=1) + "\n")
    return terms


class Probe:
    """The training loss of a run's network on mini-batches, as training saw it: augmented, BatchNorm on the batch."""

    def __init__(self, run: RunFolder, epoch: int, *, batches: int) -> None:
        """Load the network after so many epochs and draw mini-batches of the epoch that follows."""
        self.config = run.config()
        device = "cuda" if torch.cuda.is_available() else "cpu"
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
        rho = radius(norm)
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


def radius_rule(config: RunConfig, sigma: float | None = None) -> Radius:
    """How far the run's method climbs; ``sigma`` is the budget of the epoch in question."""
    optimizer: Any = config.optimizer
    if isinstance(optimizer, LESAMConfig):
        budget = optimizer.sigma if sigma is None else sigma
        cap = math.inf if optimizer.rho_max is None else optimizer.rho_max
        return lambda norm: min(budget / (norm + optimizer.varrho), cap)
    if isinstance(optimizer, SAMConfig):
        return lambda norm: optimizer.rho
    raise ValueError(f"no radius is known for {config.method}; the mechanism is about SAM and LE-SAM")


def _norm(gradient: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradient.values()))


def _moved(weights: dict[str, Tensor], gradient: dict[str, Tensor], distance: float) -> dict[str, Tensor]:
    return {name: weight + distance * gradient[name] for name, weight in weights.items()}

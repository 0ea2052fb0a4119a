r"""Projected gradient ascent on pixels: the attack by which robustness is measured.

An attack looks for images near the given ones that raise the cross-entropy,

.. math::  \max_{\|\delta\|_p \le \epsilon,\; x + \delta \in [0, 1]} \ell(f(x + \delta), y),
           \qquad p \in \{2, \infty\},

in plain pixel units: the network has to normalise by itself (:class:`lesam.lab.models.NormalisedInput`). Each step goes
up, back into the ball, then back into the box of valid pixels.

References:
    Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018;
    Zhang et al., On the Duality Between Sharpness-Aware Minimization and Adversarial Training, ICML 2024,
    whose released evaluation fixes the four settings of :data:`PRESETS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lesam.lab.attacks.norms import BALLS, STEP_SHARES
from lesam.lab.config.suggest import unknown
from lesam.lab.data.seeds import generator as seeded
from lesam.lab.models.modes import evaluating


@dataclass(frozen=True, slots=True)
class Attack:
    """How to attack: sizes are in pixel units of [0, 1].

    >>> Attack("linf", 8 / 255, 2 / 255, steps=20, restarts=5).steps
    20
    >>> Attack("linf", 8, 2)
    Traceback (most recent call last):
    ...
    ValueError: eps is in units of [0, 1] and cannot be 8; eight grey levels are 8/255
    """

    norm: Literal["linf", "l2"]
    eps: float
    """Radius of the ball."""
    step_size: float
    _: KW_ONLY
    steps: int = 10
    restarts: int = 1
    """Independent starts; of all candidates, one that the network gets wrong is returned where there is one."""
    random_start: bool = True
    """Start at a random point of the ball instead of the image itself."""
    keep: Literal["last", "worst"] = "last"
    """Candidates of a start: its last iterate, or every iterate and the unperturbed image."""

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        if self.norm not in BALLS:
            raise unknown("norm", self.norm, BALLS)
        if self.keep not in ("last", "worst"):
            raise unknown("choice of iterates", self.keep, ("last", "worst"))
        for name in ("eps", "step_size"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if self.norm == "linf" and self.eps > 1.0:
            raise ValueError(f"eps is in units of [0, 1] and cannot be {self.eps}; eight grey levels are 8/255")
        if self.steps < 1 or self.restarts < 1:
            raise ValueError(f"steps and restarts must be at least 1, got {self.steps} and {self.restarts}")
        if self.restarts > 1 and not self.random_start:
            raise ValueError(f"{self.restarts} restarts without a random start would repeat each other")

    @classmethod
    def usual(cls, norm: Literal["linf", "l2"], eps: float) -> Attack:
        """Ten steps of a quarter (L-infinity) or an eighth (L2) of the radius, as in all :data:`PRESETS`."""
        if norm not in BALLS:
            raise unknown("norm", norm, BALLS)
        return cls(norm, eps, eps * STEP_SHARES[norm])


PRESETS: dict[str, Attack] = {
    "linf-1": Attack("linf", 1 / 255, 0.25 / 255),
    "linf-2": Attack("linf", 2 / 255, 0.5 / 255),
    "l2-16": Attack("l2", 16 / 255, 2 / 255),
    "l2-32": Attack("l2", 32 / 255, 4 / 255),
}
"""The settings of the robustness tables, named by norm and radius in grey levels; the paper has linf-1 and l2-32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Robustness:
    """Shares of right answers on the images themselves and on the attacked ones."""

    attack: Attack
    clean: float
    attacked: float
    samples: int
    seed: int


def perturb(
    model: nn.Module, images: Tensor, labels: Tensor, attack: Attack, generator: torch.Generator | int = 0
) -> Tensor:
    """Attack a batch.

    The model runs in eval mode. Its mode, parameters, ``.grad`` fields and buffers are afterwards what they were, and
    the global random state is not touched.

    Args:
        model: Maps images in [0, 1] to logits.
        images: Pixels in [0, 1], of any shape ``(N, ...)``, on the model's device.
        labels: The right classes.
        attack: The settings.
        generator: Source of the random starts, on any device, or a seed of one on the CPU.

    Returns:
        The attacked images, within ``attack.eps`` of the given ones and in [0, 1].

    Example:
        >>> model = nn.Linear(2, 2, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
        >>> perturb(model, torch.tensor([[0.5, 0.5]]), torch.tensor([0]), Attack.usual("linf", 0.1))
        tensor([[0.4000, 0.6000]])
    """
    _check(images, labels)
    source = torch.Generator().manual_seed(generator) if isinstance(generator, int) else generator
    ball = BALLS[attack.norm]
    with evaluating(model):
        kept = _Hardest(images, labels)
        if attack.keep == "worst":
            kept.offer(images, _logits(model, images))
        for _ in range(attack.restarts):
            x = images
            if attack.random_start:
                x = (images + ball.start(images, attack.eps, source)).clamp(0, 1)
            for _ in range(attack.steps):
                logits, gradient = _gradient(model, x, labels)
                if attack.keep == "worst":
                    kept.offer(x, logits)
                step = attack.step_size * ball.direction(gradient)
                x = (images + ball.project(x + step - images, attack.eps)).clamp(0, 1)
            if attack.restarts == 1 and attack.keep == "last":
                return x  # nothing to choose from
            kept.offer(x, _logits(model, x))
    return kept.images


def robust_accuracy(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    attack: Attack,
    *,
    seed: int = 0,
    predictor: nn.Module | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> Robustness:
    """Accuracy of a model on attacked images, and on the same images without an attack.

    An image counts as broken when any restart breaks it. Random starts are a function of the seed and the batch's
    number, and a further restart does not change the ones before it, so more restarts never raise the accuracy.
    Nor is it above the clean one with ``keep="worst"``; a last iterate may be right where the image itself was wrong.

    Args:
        model: Maps images in [0, 1] to logits.
        batches: Images and labels, on the model's device.
        attack: The settings.
        seed: Of the random starts.
        predictor: Answers for the attacked images, where that is not the model that was attacked.
        progress: Called with the number of images done, after each batch.
    """
    samples = clean = attacked = 0
    for number, (images, labels) in enumerate(batches):
        adversarial = perturb(model, images, labels, attack, seeded("attack", seed, number))
        clean += _right(model, images, labels)
        attacked += _right(model if predictor is None else predictor, adversarial, labels)
        samples += len(labels)
        progress(samples)
    if not samples:
        raise ValueError("cannot attack a split without images")
    return Robustness(attack=attack, clean=clean / samples, attacked=attacked / samples, samples=samples, seed=seed)


class _Hardest:
    """For each image the hardest candidate: wrong before right, then the higher loss, the first of equals."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self._labels = images, labels
        self._wrong = torch.zeros_like(labels, dtype=torch.bool)
        self._loss = torch.full(labels.shape, -math.inf, dtype=images.dtype, device=images.device)

    def offer(self, images: Tensor, logits: Tensor) -> None:
        loss = functional.cross_entropy(logits, self._labels, reduction="none").to(self._loss.dtype)
        wrong = logits.argmax(1) != self._labels
        harder = (wrong & ~self._wrong) | ((wrong == self._wrong) & (loss > self._loss))
        self.images = torch.where(harder.view(-1, *[1] * (images.dim() - 1)), images, self.images)
        self._wrong, self._loss = torch.where(harder, wrong, self._wrong), torch.where(harder, loss, self._loss)


def _gradient(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits at ``x`` and the gradient of each image's own loss; parameters get none."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        logits = model(leaf)
        # The sum, not the mean: what happens to an image must not depend on how many others are in its batch.
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, leaf)
    return logits.detach(), gradient


@torch.no_grad()
def _logits(model: nn.Module, images: Tensor) -> Tensor:
    logits: Tensor = model(images)
    return logits


def _right(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    with evaluating(model):
        return int((_logits(model, images).argmax(1) == labels).sum())


def _check(images: Tensor, labels: Tensor) -> None:
    if not images.is_floating_point() or labels.shape != images.shape[:1] or not len(labels):
        raise ValueError(
            f"an attack needs floating-point images (N, ...) and labels (N,), N >= 1, "
            f"got {images.dtype} {tuple(images.shape)} and {tuple(labels.shape)}"
        )
    low, high = (float(bound) for bound in images.aminmax())
    if not (low >= 0.0 and high <= 1.0):
        raise ValueError(
            f"an attack works on pixels in [0, 1], got values from {low:.4g} to {high:.4g}; "
            "put the normalisation into the model (lesam.lab.models.NormalisedInput)"
        )

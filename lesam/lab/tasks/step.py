"""One optimizer step on one batch, for every kind of optimizer: the only place where the passes are called.

Each function here returns a row with the values of :data:`lesam.lab.tasks.metrics.FIELDS` and the number of right
answers of the clean pass, both on the device and unread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from lesam.lab.config.optimizer import PLAIN, EigenSAMConfig, OptimizerConfig
from lesam.lab.tasks.metrics import FIELDS

Batch = tuple[Tensor, ...]
"""The tensors of one training batch, the labels last."""
Outcome = tuple[Tensor, Tensor]
Stepper = Callable[[], Outcome]


class Objective:
    """The loss of one batch; remembers the right answers of its first pass in a step."""

    ascent_loss: Callable[[], Tensor] | None = None
    """Another mean loss of the batch, climbed instead of the loss itself."""

    def __init__(self, fabric: Fabric) -> None:
        """Bind the precision and the way to run a backward pass."""
        self.fabric = fabric
        self.correct: Tensor | None = None

    def take(self, batch: Batch, step: int) -> None:
        """The batch of the coming step; every pass of the step is on it."""
        self.correct = None

    def loss(self) -> Tensor:
        """Mean loss of the batch."""
        raise NotImplementedError

    def sample_losses(self, indices: Tensor | None = None) -> Tensor:
        """Loss of each sample, or of the chosen ones."""
        raise ValueError("esam chooses samples by their losses, which this kind of training does not have")

    def backward(self) -> Tensor:
        """Mean loss of the batch, its gradient left in ``.grad``."""
        return self._backward(self.loss())

    def climb(self) -> Tensor:
        """The loss that is climbed, its gradient left in ``.grad``."""
        return self._backward((self.ascent_loss or self.loss)())

    def _backward(self, loss: Tensor) -> Tensor:
        self.fabric.backward(loss)
        return loss.detach()

    def outcome(self, row: Tensor) -> Outcome:
        """The result of the step."""
        if self.correct is None:
            raise RuntimeError("the optimizer took a step without a forward pass")
        return row, self.correct


def make_stepper(
    config: OptimizerConfig, optimizer: torch.optim.Optimizer, objective: Objective, scaler: Any | None
) -> Stepper:
    """The way to take a step: plain, with a closure, with sample losses, or in two contexts for fp16."""
    if config.method in PLAIN:
        return _plain(config, optimizer, objective, scaler)
    if scaler is not None:
        return _scaled(config, optimizer, objective, scaler)
    if config.method == "esam":
        return _sampled(optimizer, objective)
    return _closure(optimizer, objective)


def _closure(optimizer: Any, objective: Objective) -> Stepper:
    def descend() -> Tensor:
        optimizer.zero_grad()
        return objective.backward()

    def climb() -> Tensor:
        optimizer.zero_grad()
        return objective.climb()

    ascent = None if objective.ascent_loss is None else climb

    def step() -> Outcome:
        optimizer.step(descend, ascent=ascent)
        return objective.outcome(seen(optimizer))

    return step


def _sampled(optimizer: Any, objective: Objective) -> Stepper:
    def step() -> Outcome:
        optimizer.step(sample_losses=objective.sample_losses)
        return objective.outcome(seen(optimizer))

    return step


def _scaled(config: OptimizerConfig, optimizer: Any, objective: Objective, scaler: Any) -> Stepper:
    if config.method == "esam":
        raise ValueError("esam chooses samples by their losses and has no fp16 path; use --precision bf16-mixed")

    def unscaled() -> Tensor:
        optimizer.zero_grad()
        loss = objective.loss()
        torch.autograd.backward(loss)
        return loss.detach()

    def step() -> Outcome:
        if isinstance(config, EigenSAMConfig) and optimizer.steps > 0 and optimizer.steps % config.every == 0:
            optimizer.refresh(unscaled)
            objective.correct = None
        optimizer.zero_grad()
        clean = None
        if optimizer.passes == 2:
            with optimizer.clean(scaler=scaler):
                clean = objective.climb()
        with optimizer.perturbed(scaler=scaler):
            second = objective.backward()
        scaler.step(optimizer)
        scaler.update()
        return objective.outcome(_with_losses(seen(optimizer), clean, second))

    return step


def _with_losses(row: Tensor, clean: Tensor | None, second: Tensor) -> Tensor:
    """Put the losses into a row: without a closure the optimizer does not see them.

    The only pass of a step is at the weights themselves where nothing was perturbed, that is, where there is no radius.
    """
    nothing = torch.full_like(second, math.nan)
    plain = row[FIELDS.index("rho")].isnan()
    row[FIELDS.index("loss")] = torch.where(plain, second, nothing) if clean is None else clean
    row[FIELDS.index("perturbed_loss")] = torch.where(plain, nothing, second) if clean is None else second
    return row


def _plain(
    config: OptimizerConfig, optimizer: torch.optim.Optimizer, objective: Objective, scaler: Any | None
) -> Stepper:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    limit = math.inf if config.max_norm is None else config.max_norm

    def step() -> Outcome:
        optimizer.zero_grad()
        loss = objective.backward()
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
        row = loss.new_full((len(FIELDS),), math.nan, dtype=torch.float32)
        row[0], row[2], row[7] = loss, whole(norm), 1.0
        return objective.outcome(row)

    return step


def seen(optimizer: Any) -> Tensor:
    """What the optimizer's last step saw, as one row on the device."""
    last = optimizer.last
    device = last.loss.device
    return torch.stack([last[name].detach().to(device, torch.float32) for name in FIELDS])


def whole(value: Tensor) -> Tensor:
    """A sharded scalar as an ordinary tensor."""
    full = getattr(value, "full_tensor", None)
    return value if full is None else full()

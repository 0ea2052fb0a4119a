"""ERM++: empirical risk minimisation made a strong baseline for domain generalisation.

The classifier is trained alone at first, then all weights; what is scored is a running average of the weights. The
number of steps comes from a first pass on a part of the images, see :mod:`lesam.lab.training.length`.

Reference:
    Teterwak et al., ERM++: An Improved Baseline for Domain Generalization, WACV 2025.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lesam.lab.config.optimizer import optimizer_config
from lesam.lab.config.task import ErmPlusPlusConfig
from lesam.lab.tasks.averaging import AveragedNetwork
from lesam.lab.tasks.classification import CrossEntropy
from lesam.lab.tasks.objective import Batch
from lesam.lab.tasks.step import Outcome, make_stepper
from lesam.lab.tasks.task import Parts, Task


class ErmPlusPlus(Task):
    """Cross-entropy with a warm start of the classifier and an average of the weights.

    The run's optimizer, with whatever sharpness-aware method wraps it, takes over after the warm start, which is plain
    Adam. Steps are counted from 0 over both.
    """

    objective: LeakyCrossEntropy

    def __init__(self, parts: Parts) -> None:
        """Find the classifier, give it an optimizer of its own and copy the network for the average."""
        self.settings = cast(ErmPlusPlusConfig, parts.config.task)
        super().__init__(parts)
        if parts.config.system.strategy == "fsdp":
            raise ValueError("ERM++ averages whole weights, which fsdp cuts into shards: use --strategy ddp")
        if self.settings.leak_gradients and parts.scaler is not None:
            raise ValueError("task.leak_gradients would leak scaled gradients: it has no fp16 path")
        if self.settings.average_from > parts.times.planned:
            raise ValueError(
                f"task.average_from={self.settings.average_from} is after the end of a run of {parts.times.planned} "
                "steps, which then has no average to be scored by; give an earlier step, or a larger schedule.steps"
            )
        head = list(classifier(parts.module).parameters())
        self._body = [one for one in parts.module.parameters() if not any(one is other for other in head)]
        self.warm_optimizer = torch.optim.Adam(head, lr=self.settings.warm_start_lr)
        self._take_warm_step = make_stepper(optimizer_config("adam"), self.warm_optimizer, self.objective, parts.scaler)
        self.average = AveragedNetwork(
            parts.module,
            parts.fabric,
            start=self.settings.average_from,
            batch_norm=self.settings.average_batch_norm,
        )

    def make_objective(self) -> LeakyCrossEntropy:
        """Cross-entropy."""
        return LeakyCrossEntropy(self.parts.fabric, self.parts.inner)

    def step(self, batch: Batch, step: int) -> Outcome:
        """Train the classifier or everything, then move the average."""
        self.objective.take(batch, step)
        outcome = self._warm_step(step) if step < self.settings.warm_start else self.take_step()
        self.average.follow(self.parts.module, batch[0], step + 1)
        return outcome

    def _warm_step(self, step: int) -> Outcome:
        outcome = self._take_warm_step()
        if not self.settings.leak_gradients:
            self.parts.module.zero_grad()
        elif step + 1 == self.settings.warm_start:
            self.objective.leak(self._body)
        return outcome

    @property
    def evaluated(self) -> nn.Module:
        """The averaged network."""
        return self.average

    def scored(self) -> Iterator[tuple[str, Iterable[tuple[Tensor, Tensor]]]]:
        """The held-out part of the source; the targets only where nothing is held out to choose on."""
        for name, batches in super().scored():
            if self.parts.splits.validation is None or name == "validation":
                yield name, batches

    def state_dict(self) -> dict[str, Any]:
        """The average, the warm start's optimizer, and gradients that are on their way into the first full step."""
        state: dict[str, Any] = {
            "average": self.average.network.state_dict(),
            "warm_optimizer": self.warm_optimizer.state_dict(),
        }
        if self.settings.leak_gradients:
            state["gradients"] = [parameter.grad for parameter in self._body]
            state["leaked"] = self.objective.leaked is not None
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a saved state."""
        self.average.network.load_state_dict(state["average"])
        self.warm_optimizer.load_state_dict(state["warm_optimizer"])
        if self.settings.leak_gradients:
            for parameter, gradient in zip(self._body, state["gradients"], strict=True):
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
            if state["leaked"]:
                self.objective.leak(self._body)


class LeakyCrossEntropy(CrossEntropy):
    """Cross-entropy whose next gradient may start from what is left of earlier ones, see ``leak_gradients``."""

    leaked: list[tuple[nn.Parameter, Tensor]] | None = None

    def leak(self, parameters: list[nn.Parameter]) -> None:
        """Add the gradients that these parameters hold now to those of the next pass, of this one alone."""
        self.leaked = [(one, one.grad.clone()) for one in parameters if one.grad is not None]

    def backward(self, loss: Tensor, of: Sequence[Tensor] | None = None) -> Tensor:
        loss = super().backward(loss, of)
        for parameter, gradient in self.leaked or ():
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self.leaked = None
        return loss


def classifier(network: nn.Module) -> nn.Linear:
    """The last linear layer of a network.

    >>> classifier(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    Linear(in_features=3, out_features=2, bias=True)
    """
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError(f"{type(network).__name__} has no linear layer to train as a classifier first")
    return layers[-1]

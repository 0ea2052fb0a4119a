r"""What fine-tuning has left of the old task: the fine-tuned network with the head it had before.

A pretrained network is :math:`h_{old} \circ f_0`. Fine-tuning replaces the head and moves the body to :math:`f_1`
(weights and BatchNorm's statistics). The old head is kept aside: the accuracy that is left is that of
:math:`h_{old} \circ f_1` on the old task's test images, and what is *forgotten* is the accuracy of
:math:`h_{old} \circ f_0` minus it. Nothing is trained again on old images.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lesam.lab.attacks.run import Outcome, kept, weights_key
from lesam.lab.data.loading import choose_split, load_data, plain_batches
from lesam.lab.models.weights import body_of
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs import environment
from lesam.lab.runs.answers import Question
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.restore import load_model
from lesam.lab.tasks.evaluate import evaluate


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgetting:
    """Shares of right answers on the old task's test images, and how far the body has moved."""

    before: float
    after: float
    moved: float
    r"""Distance of the body's weights :math:`\|w_1 - w_0\| / \|w_0\|`, without BatchNorm's statistics."""

    @property
    def forgotten(self) -> float:
        """The share of right answers that was lost."""
        return self.before - self.after


def forgetting(run: RunFolder, pretrained: RunFolder) -> Forgetting:
    """Ask a fine-tuned run about the old task, or find the same question's outcome in its folder.

    Args:
        run: A finished run that started from the weights of the other one.
        pretrained: A finished run on the old task.
    """
    key: dict[str, Any] = {"after": weights_key(run, None), "before": weights_key(pretrained, None), "split": "test"}
    outcome, _, _ = kept(Question(run=run, room="forgetting", key=key), lambda: _measured(run, pretrained, key))
    return Forgetting(**outcome.result)


def _measured(run: RunFolder, pretrained: RunFolder, key: dict[str, Any]) -> Outcome:
    began, config = time.monotonic(), pretrained.config()
    splits = load_data(config)
    model, _ = load_model(pretrained, classes=splits.classes)
    images = plain_batches(config, choose_split(splits, "test"), batch_size=config.data.eval_batch_size)
    before, start = evaluate(model, images.epoch(0)).accuracy, _weights(model)
    body = body_of(model, checkpoints.find(run.checkpoints).weights())
    expected = body_of(model, model.state_dict())
    if {name: value.shape for name, value in body.items()} != {name: value.shape for name, value in expected.items()}:
        raise ValueError(f"{run.path} has another network than {pretrained.path}: it did not start from its weights")
    model.load_state_dict(body, strict=False)
    moved = float((_weights(model) - start).norm() / start.norm())
    after = evaluate(model, images.epoch(0)).accuracy
    return Outcome(
        settings=key,
        result={"before": before, "after": after, "moved": moved},
        seconds=time.monotonic() - began,
        environment=environment.describe(),
    )


def _weights(model: nn.Module) -> Tensor:
    """The trained weights of the body as one vector."""
    body = body_of(model, dict(model.named_parameters()))
    return torch.cat([value.detach().flatten() for value in body.values()])

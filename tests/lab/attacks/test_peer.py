"""The attack takes foolbox's iterates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lesam.lab.attacks.pgd import Attack, perturb, robust_accuracy
from tests.lab.attacks.networks import Recorder, right

# The peer.


def foolbox_attack(norm: str, attack: Attack, random_start: bool) -> Any:
    foolbox = pytest.importorskip("foolbox")
    kind = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[norm]
    return kind(abs_stepsize=attack.step_size, steps=attack.steps, random_start=random_start)


def foolbox_result(peer: Any, batch: tuple[nn.Module, Tensor, Tensor], eps: float) -> Tensor:
    foolbox = pytest.importorskip("foolbox")
    model, images, labels = batch
    wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1), device="cpu")
    raw: Tensor = peer(wrapped, images, labels, epsilons=eps)[0]
    return raw


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.6)])
def test_iterates_are_foolbox_s(norm: Any, eps: float, batch: tuple[nn.Module, Tensor, Tensor]) -> None:
    """From the image itself, and from our random start when foolbox is given it: its L2 start has another length."""
    attack = Attack.usual(norm, eps)
    _, images, labels = batch
    still = replace(attack, random_start=False)
    theirs = foolbox_result(foolbox_attack(norm, still, False), batch, eps)
    torch.testing.assert_close(perturb(batch[0], images, labels, still), theirs, rtol=0, atol=1e-8)
    peer = foolbox_attack(norm, attack, True)
    first = start_of(attack, images, 4)
    peer.get_random_start = lambda x0, epsilon: type(x0)(first)
    theirs = foolbox_result(peer, batch, eps)
    torch.testing.assert_close(perturb(batch[0], images, labels, attack, 4), theirs, rtol=0, atol=1e-8)


def start_of(attack: Attack, images: Tensor, seed: int) -> Tensor:
    """Where an attack with that seed starts, as a model sees it."""
    model = Recorder(images[0].numel())
    perturb(model, images, torch.zeros(len(images), dtype=torch.int64), attack, seed)
    return model.seen[0]


@pytest.mark.parametrize(("norm", "eps", "steps"), [("linf", 0.1, 10), ("l2", 0.6, 40)])
def test_accuracy_lies_in_the_spread_of_foolbox(
    norm: Any, eps: float, steps: int, batch: tuple[nn.Module, Tensor, Tensor]
) -> None:
    """Its L2 starts lie near the sphere and ours anywhere inside: enough steps for either to be forgotten."""
    model, images, labels = batch[0], batch[1][:150], batch[2][:150]
    attack = replace(Attack.usual(norm, eps), steps=steps)
    theirs = []
    for seed in range(6):
        torch.manual_seed(seed)
        found = foolbox_result(foolbox_attack(norm, attack, True), (model, images, labels), eps)
        theirs.append(right(model, found, labels).double().mean().item())
    ours = [robust_accuracy(model, [(images, labels)], attack, seed=seed).attacked for seed in range(3)]
    image = 1 / len(labels)  # processors round differently, and with them one image may fall to the other side
    assert min(theirs) - image <= sum(ours) / 3 <= max(theirs) + image
    assert 0.05 < max(theirs) < right(model, images, labels).double().mean() - 0.2

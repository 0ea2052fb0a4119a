"""GLMC's network against what was published."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lesam.lab import models, recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.models.resnet32 import PaddedBlock

SHORT = ("schedule.epochs=2", "system.accelerator=cpu")
EXACT = ("system.precision=64-true", "system.channels_last=off", *SHORT)


def smoke(method: str, *changes: str) -> RunConfig:
    return override(recipes.build("cifar100-lt100-glmc", method=method, scale="smoke"), [*EXACT, *changes])


# ------------------------------------------------------------------ the network


def test_published_sizes() -> None:
    with torch.device("meta"):
        sizes = [sum(p.numel() for p in models.build(name, 100).parameters()) for name in ("resnet32", "resnet32_glmc")]
    assert sizes == [470_004, 7_484_424]


def test_the_shortcut_subsamples_and_adds_zero_channels() -> None:
    block = PaddedBlock(4, 8, stride=2).eval()
    torch.nn.init.zeros_(block.conv2.weight)  # what is left is relu of the shortcut
    x = torch.randn(2, 4, 6, 6)
    out = block(x)
    assert torch.equal(out[:, 2:6], x[:, :, ::2, ::2].relu())
    assert not out[:, :2].any()
    assert not out[:, 6:].any()


@pytest.mark.parametrize("name", ["resnet32", "resnet32_glmc"])
def test_weights_start_kaiming_normal(name: str) -> None:
    torch.manual_seed(0)
    for module in models.build(name, 100).modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            expected = math.sqrt(2 / module.weight[0].numel())
            # The sample deviation of n normal numbers strays by 1 / sqrt(2 n).
            spread = 5 / math.sqrt(2 * module.weight.numel())
            assert float(module.weight.detach().std()) == pytest.approx(expected, rel=spread)


def test_inference_uses_the_rebalanced_classifier_alone() -> None:
    torch.manual_seed(0)
    model: Any = models.build("resnet32_glmc", 5, width=4, blocks=1, hidden=8).eval()
    x = torch.randn(3, 3, 8, 8)
    before = model(x)
    assert torch.equal(before, model(x, x)[0].rebalanced)
    with torch.no_grad():
        for head in (model.fc, model.projection, model.predictor):
            head.weight.zero_()
    assert torch.equal(model(x), before)
    with torch.no_grad():
        model.fc_cb.weight.zero_()
    assert not torch.equal(model(x), before)

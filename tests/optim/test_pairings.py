"""Parts that cannot be paired are refused at construction; those that can, run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lesam

from .cases import batches, network, sgd
from .faults import both_styles, model_bits, same_bits, step_once

MOMENTUM, STALE = lesam.Momentum(), lesam.Stale()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"direction": MOMENTUM, "radius": lesam.LossBudget(0.1)}, "LossBudget.*Momentum.*slope"),
        ({"direction": MOMENTUM, "radius": lesam.LossBudget(0.1, rho_max=1.0)}, "LossBudget.*Momentum.*slope"),
        ({"direction": STALE, "radius": lesam.LossBudget(0.1, rho_max=1.0)}, "LossBudget.*Stale.*slope"),
        ({"direction": lesam.Noise(), "radius": lesam.LossBudget(0.1)}, "LossBudget.*Noise.*rho_max"),
        ({"direction": lesam.TopEigenvector(form="top"), "radius": lesam.LossBudget(0.1)}, "TopEigenvector.*rho_max"),
        ({"direction": MOMENTUM, "metric": lesam.DiagonalFisher()}, "DiagonalFisher.*Momentum.*gradient at w"),
        ({"direction": STALE, "combine": lesam.gap(0.1)}, "gap.*Stale.*gradient at w"),
        ({"direction": STALE, "combine": lesam.excess(0.1)}, "excess.*Stale.*gradient at w"),
        ({"direction": STALE, "combine": lesam.renormalized}, "renormalized.*Stale.*gradient at w"),
        ({"direction": STALE, "combine": lambda gg, gh, hh: (1, 0)}, "Stale.*gradient at w"),
        ({"direction": MOMENTUM, "subset": lesam.RandomSubset(0.5)}, "RandomSubset.*Momentum"),
        ({"direction": MOMENTUM, "samples": lesam.TopSamples(0.5)}, "TopSamples.*Momentum"),
        ({"direction": lesam.Gradient}, "Gradient.*direction"),
        ({"direction": "gradient"}, "'gradient'.*direction"),
        ({"metric": lesam.Fixed(0.1)}, r"Fixed\(0.1\).*metric"),
        ({"radius": 0.05}, "0.05.*radius"),
        ({"combine": 3}, "3.*combiner"),
        ({"combine": lesam.gap}, "gap"),  # the class: alpha was forgotten
        ({"subset": 0.5}, "0.5"),
        ({"samples": 0.5}, "0.5"),
    ],
)
def test_a_pairing_without_meaning_is_refused_at_construction(parts: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        lesam.SharpnessAware(sgd(), **parts)


@pytest.mark.parametrize(
    "parts",
    [
        {"direction": lesam.Noise(), "radius": lesam.LossBudget(0.1, rho_max=1.0)},
        {"direction": lesam.TopEigenvector(), "radius": lesam.LossBudget(0.1)},
        {"direction": lesam.TopEigenvector(form="top"), "radius": lesam.LossBudget(0.1, rho_max=1.0)},
        {"metric": lesam.Adaptive(), "radius": lesam.LossBudget(0.1)},
        {"metric": lesam.DiagonalFisher(), "radius": lesam.LossBudget(0.1), "combine": lesam.gap(0.1)},
        {"direction": MOMENTUM, "metric": lesam.Adaptive()},
        {"subset": lesam.RandomSubset(0.5), "radius": lesam.LossBudget(0.1)},
    ],
)
@both_styles
def test_pairings_with_a_meaning_run(parts: dict[str, Any], style: str):
    model = network()
    opt = lesam.SharpnessAware(sgd(model), **parts)
    start = model_bits(model)
    for batch in batches(4):
        step_once(opt, model, batch, style)
    assert not same_bits(start, model_bits(model))
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_perturb_must_name_parameters_of_the_base():
    model, stranger = network(), nn.Parameter(torch.zeros(9))
    for perturb, words in [
        ([stranger], r"\(9,\)"),
        ([], "empty"),
        (model[0].weight, "perturb=\\[tensor\\]"),
        (["weight"], "'weight'"),
    ]:
        with pytest.raises(ValueError, match=words):
            lesam.SAM(sgd(model), perturb=perturb)

"""Quantities of claims from records: closed forms."""

from __future__ import annotations

import dataclasses
import math

import pytest

from lesam.lab.paper.study.claims import judged
from lesam.lab.paper.study.dynamics import dynamics
from lesam.lab.paper.study.entries import CIFAR_CONV, MLP
from lesam.lab.paper.study.quantities import quantities
from lesam.lab.paper.study.records import Record


def tracked(entry: str, seed: int, losses: list[float], eigenvalues: list[float]) -> Record:
    """A run whose flatness was measured in every epoch; trace and low-pass filter follow the eigenvalue."""
    curve = {"epoch": list(range(len(losses))), "train_loss": losses, "rho": [0.1] * len(losses)}
    measures = {"eigenvalue": eigenvalues, "trace": [10 * e for e in eigenvalues], "lpf_excess": [None] * len(losses)}
    return Record(
        entry=entry,
        recipe="mnist1d-mlp",
        part="track",
        setting=(),
        seed=seed,
        fingerprint=f"{entry}{seed}",
        commit="",
        seconds=1.0,
        diverged=False,
        last={"test_accuracy": 0.5},
        curve=curve | measures,
    )


def test_equal_loss_removes_what_further_fitting_flattens():
    """Both follow eigenvalue = 5 loss, and one is fitted further: flatter at its end, alike at equal loss."""
    far, near = [1.0, 0.5, 0.1, 0.02], [0.9, 0.45, 0.2]
    records = [tracked("SAM", 0, far, [5 * x for x in far]), tracked("AdamW", 0, near, [5 * x for x in near])]
    found = quantities(records)
    end = found["eigenvalue at equal epoch"]
    assert end["SAM"][0] - end["AdamW"][0] == pytest.approx(100 * math.log(0.2 / 0.02))
    equal = found["eigenvalue at equal loss"]
    assert equal["SAM"][0] == pytest.approx(-100 * math.log(5 * 0.2))
    assert equal["AdamW"][0] == pytest.approx(equal["SAM"][0])
    assert found["trace at equal loss"]["SAM"][0] == pytest.approx(-100 * math.log(50 * 0.2))
    assert "lpf_excess at equal loss" not in found


def test_a_flatter_network_is_judged_flatter():
    losses = [1.0, 0.3, 0.1]
    factor = {"AdamW": 10.0, "SAM": 5.0, "LE-SAM": 5.0}
    records = [
        tracked(entry, seed, losses, [of * (1 + 0.01 * ((seed * 7 + len(entry)) % 5)) * x for x in losses])
        for entry, of in factor.items()
        for seed in range(10)
    ]
    verdicts = {one.claim.text: one.verdict for one in judged(MLP, quantities(records))}
    for when in ("at equal epoch", "at equal loss"):
        assert verdicts[f"SAM is flatter than AdamW: largest eigenvalue {when}"] == "holds"
        assert verdicts[f"LE-SAM is flatter than SAM: trace {when}"] == "does not hold"


def test_robustness_is_judged_like_accuracy():
    jitter = (0.001, -0.002, 0.0005, 0.0015, -0.001)
    records = [
        dataclasses.replace(
            tracked(entry, seed, [1.0], [1.0]),
            recipe=CIFAR_CONV.recipe,
            part="repeat",
            curve={},
            attacked={"linf-1": level + of * (-1) ** len(entry)},
        )
        for entry, level in {"SGD": 0.1, "SAM": 0.2, "LE-SAM": 0.15}.items()
        for seed, of in enumerate(jitter)
    ]
    verdicts = {one.claim.text: one.verdict for one in judged(CIFAR_CONV, quantities(records))}
    assert verdicts["SAM beats SGD under PGD, linf-1"] == "holds"
    assert verdicts["LE-SAM beats SAM under PGD, linf-1"] == "does not hold"
    assert "SAM beats SGD under PGD, l2-32" not in verdicts


def test_the_share_of_the_first_order_term_and_the_course_of_the_radius():
    """A plane has a share of 1; on a parabola whose curvature term equals the first-order one it is a half."""
    plane = {"rho": 0.4, "slope": 0.5, "sharpness": 0.2}
    parabola = {"rho": 0.1, "slope": 0.5, "sharpness": 0.1}
    rows = [*[plane] * 10, *[parabola] * 60, *[{**plane, "rho": 0.8, "sharpness": 0.4}] * 10, *[plane] * 20]
    seen = dynamics(rows)
    assert seen["first_order_early"] == pytest.approx(0.5)
    assert seen["first_order_late"] == pytest.approx(1.0)
    assert (seen["radius_start"], seen["radius_early"], seen["radius_late"]) == pytest.approx((0.4, 0.1, 0.8))
    assert dynamics([{"train_loss": 1.0}] * 10) == {}

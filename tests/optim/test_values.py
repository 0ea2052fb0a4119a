"""Bad values: a sentence that names the option and the value, and nothing left behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

import lesam

from .cases import batches, network, sgd
from .faults import both_styles, model_bits, same_bits, step_once

NAN, INF = float("nan"), float("inf")


NO_NUMBERS = [-0.1, NAN, INF, -INF, True, "0.1", [0.1], 1j]
NO_COUNTS = [0, -1, 2.5, True, "5", None]
NO_SHARES = [*NO_NUMBERS, None, 0.0, 1.5]

BAD: dict[str, dict[str, list[Any]]] = {
    "sam": {"rho": [*NO_NUMBERS, None]},
    "asam": {"rho": [*NO_NUMBERS, None], "eta": [*NO_NUMBERS, None, lambda step: 0.1]},
    "fishersam": {"rho": [*NO_NUMBERS, None], "eta": [*NO_NUMBERS, None]},
    "eigensam": {
        "rho": [*NO_NUMBERS, None],
        "alpha": [*NO_NUMBERS, None],
        "every": NO_COUNTS,
        "iterations": NO_COUNTS,
        "form": ["paper", None, 1],
    },
    "friendlysam": {
        "rho": [*NO_NUMBERS, None],
        "weight": [*NO_NUMBERS, None],
        "decay": [*NO_NUMBERS, None, 1.5],
    },
    "gsam": {"rho": [*NO_NUMBERS, None], "alpha": [*NO_NUMBERS, None]},
    "ssam": {"rho": [*NO_NUMBERS, None]},
    "esam": {"rho": [*NO_NUMBERS, None], "beta": NO_SHARES, "gamma": NO_SHARES, "seed": ["x", 1.5, None]},
    "msam": {"rho": [*NO_NUMBERS, None]},
    "s2sam": {"rho": [*NO_NUMBERS, None]},
    "lesam": {
        "sigma": [*NO_NUMBERS, None],
        "rho_max": NO_NUMBERS,
        "varrho": [*NO_NUMBERS, None],
        "max_norm": [*NO_NUMBERS, 0.0],
        "perturbation": ["both", None, True],
        "replay_rng": [1, None, "yes"],
        "when": [3, True, "always"],
        "model": ["model", nn.Module],
    },
    "lesamplus": {
        "sigma": [*NO_NUMBERS, None],
        "alpha": [*NO_NUMBERS, None],
        "rho_max": NO_NUMBERS,
        "varrho": [*NO_NUMBERS, None],
        "form": ["official", None],
    },
    "looksam": {"rho": [*NO_NUMBERS, None], "alpha": [*NO_NUMBERS, None], "every": NO_COUNTS},
    "vasso": {"rho": [*NO_NUMBERS, None], "theta": [*NO_NUMBERS, None, 1.5]},
    "wsam": {"rho": [*NO_NUMBERS, None], "gamma": [*NO_NUMBERS, None, 1.0, 1.5], "decoupled": [1, None, "yes"]},
    "emasam": {"rho": [*NO_NUMBERS, None], "decay": [*NO_NUMBERS, None, 1.5]},
    "onepasslesam": {
        "sigma": [*NO_NUMBERS, None],
        "theta": [*NO_NUMBERS, None, 1.5],
        "rho_max": NO_NUMBERS,
        "varrho": [*NO_NUMBERS, None],
    },
    "partiallesam": {
        "sigma": [*NO_NUMBERS, None],
        "share": [*NO_NUMBERS, None, 0.0, 1.5],
        "theta": [*NO_NUMBERS, None, 1.5],
        "weight": NO_NUMBERS,  # None climbs without an average
        "rho_max": NO_NUMBERS,
        "varrho": [*NO_NUMBERS, None],
    },
    "crsam": {name: [*NO_NUMBERS, None] for name in ("rho", "alpha", "beta")},
    "aesam": {
        "rho": [*NO_NUMBERS, None],
        "threshold": [float("nan"), float("inf"), "1", True, None],
        "decay": [*NO_NUMBERS, None, 1.5],
    },
}


def test_every_method_has_its_bad_values():
    assert set(BAD) == set(lesam.METHODS)


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        pytest.param(method, option, value, id=f"{method}-{option}-{value!r:.20}")
        for method, options in BAD.items()
        for option, values in options.items()
        for value in values
    ],
)
def test_a_bad_value_is_named_with_its_option(method: str, option: str, value: Any):
    with pytest.raises(ValueError, match=rf"{option}.*{re.escape(repr(value))}"):
        lesam.METHODS[method](sgd(), **{option: value})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lesam.Fixed(-1), "rho.*-1"),
        (lambda: lesam.LossBudget("much"), "sigma.*'much'"),
        (lambda: lesam.LossBudget(0.1, varrho=-1), "varrho.*-1"),
        (lambda: lesam.Adaptive(NAN), "eta.*nan"),
        (lambda: lesam.DiagonalFisher(-2), "eta.*-2"),
        (lambda: lesam.Noise(decay=2), "decay.*2"),
        (lambda: lesam.TopEigenvector(every=0), "every.*0"),
        (lambda: lesam.gap(-1), "alpha.*-1"),
        (lambda: lesam.excess(None), "alpha.*None"),
        (lambda: lesam.RandomSubset(0), "beta.*0"),
        (lambda: lesam.TopSamples(0), "gamma.*0"),
    ],
)
def test_parts_refuse_bad_values_too(make: Callable[[], Any], words: str):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("value", [-1.0, NAN, INF, None, "0.1", True])
@pytest.mark.parametrize(
    ("method", "option"),
    [
        ("sam", "rho"),
        ("lesam", "sigma"),
        ("lesam", "rho_max"),
        ("lesamplus", "alpha"),
        ("gsam", "alpha"),
        ("friendlysam", "weight"),
        ("friendlysam", "decay"),
        ("msam", "rho"),
    ],
)
@both_styles
def test_a_schedule_that_gives_a_bad_value_is_named_with_its_step(method: str, option: str, value: Any, style: str):
    model = network()
    opt = lesam.METHODS[method](sgd(model), **{option: lambda step: value if step == 2 else 0.1})
    for step, batch in enumerate(batches(3)):
        if step < 2:
            step_once(opt, model, batch, style)
            continue
        before = model_bits(model)
        with pytest.raises(ValueError, match=rf"{option}.*step 2.*{re.escape(repr(value))}"):
            step_once(opt, model, batch, style)
        assert same_bits(before, model_bits(model))
        assert opt.steps == 2

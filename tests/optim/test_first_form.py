"""Optimizer states written by the first form of the library load, and training resumes from them bit for bit."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lesam
from tests.fixtures.first_form.arithmetic import plain_steps

from .cases import BASES, batches, closure_for, context_step, network

FIXTURE = Path(__file__).parents[1] / "fixtures" / "first_form" / "optimizer_states.pt"
SAVED: dict[str, Any] = torch.load(FIXTURE, weights_only=True)


@cache
def rounds_as_recorded(base_name: str) -> bool:
    model = network()
    end = plain_steps(model, BASES[base_name](model.parameters()), batches(10))
    same_torch = f"torch {torch.__version__}" in SAVED["made by"]  # kernels round otherwise from version to version
    return same_torch and torch.equal(end, SAVED["plain steps"][base_name])


def kept(saved: Any, now: Any) -> bool:
    """Whether all that was saved is still there, bit for bit; a later version may add to it."""
    if isinstance(saved, dict):
        return isinstance(now, dict) and all(key in now and kept(value, now[key]) for key, value in saved.items())
    if isinstance(saved, list):
        return len(saved) == len(now) and all(map(kept, saved, now))
    if isinstance(saved, Tensor):
        return torch.equal(saved, now) and saved.dtype == now.dtype
    return bool(saved == now)


@pytest.mark.parametrize("entry", SAVED["states"], ids=lambda entry: f"{entry['method']}-{entry['base']}")
@pytest.mark.parametrize("style", ["closure", "contexts"])
def test_resumes_from_a_state_of_the_first_form(entry: dict[str, Any], style: str):
    model = network(seed=7)
    opt = lesam.METHODS[entry["method"]](BASES[entry["base"]](model.parameters()), **entry["options"])
    model.load_state_dict(entry["model"])
    opt.load_state_dict(deepcopy(entry["optimizer"]))  # torch takes tensors over, and trains on in them
    assert opt.steps == 6
    assert kept(entry["optimizer"], opt.state_dict())
    for x, y in SAVED["batches"]:
        if style == "closure":
            opt.step(closure_for(opt, model, x, y))
        else:
            context_step(opt, model, x, y)
    exact = rounds_as_recorded(entry["base"])
    for name, value in model.state_dict().items():
        assert not torch.allclose(value, entry["model"][name], rtol=1e-3)
        torch.testing.assert_close(value, entry["end"][name], rtol=0 if exact else 1e-8, atol=0 if exact else 1e-10)


def test_every_method_of_the_first_form_is_there():
    assert {(entry["method"], entry["base"]) for entry in SAVED["states"]} == {
        (method, base)
        for method in (
            *("sam", "asam", "fishersam", "eigensam", "friendlysam", "gsam", "ssam", "esam", "msam", "s2sam"),
            *("lesam", "lesamplus"),
        )
        for base in ("sgd", "adamw")
    }

"""Limits in which a method is another one, step for step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lesam

from .cases import BASES, Case, batches, closure_for, every_base, network, train, weights

RADIUS_ZERO = [
    Case("sam", {"rho": 0.0}),
    Case("asam", {"rho": 0.0}),
    Case("fishersam", {"rho": 0.0}),
    Case("eigensam", {"rho": 0.0, "every": 3}),
    Case("friendlysam", {"rho": 0.0}),
    Case("gsam", {"rho": 0.0}),
    Case("ssam", {"rho": 0.0}),
    Case("esam", {"rho": 0.0, "gamma": 1.0}),
    Case("msam", {"rho": 0.0}),
    Case("s2sam", {"rho": 0.0}),
    Case("lesam", {"sigma": 0.0}),
    Case("lesamplus", {"sigma": 0.0}),
    Case("looksam", {"rho": 0.0}),
    Case("vasso", {"rho": 0.0}),
    Case("wsam", {"rho": 0.0}),
    Case("emasam", {"rho": 0.0}),
    Case("aesam", {"rho": 0.0}),
    Case("crsam", {"rho": 0.0}),
    Case("onepasslesam", {"sigma": 0.0}),
    Case("partiallesam", {"sigma": 0.0}),
]


def test_every_method_is_tried_at_radius_zero():
    assert [case.name for case in RADIUS_ZERO] == list(lesam.METHODS)


@pytest.mark.parametrize("case", RADIUS_ZERO, ids=str)
@every_base
@pytest.mark.parametrize("style", ["closure", "contexts"])
def test_radius_zero_is_the_base_optimizer(case: Case, base_name: str, style: str):
    ours, theirs = network(), network()
    train(case.make(BASES[base_name](ours.parameters())), ours, steps=20, style=style)
    base = BASES[base_name](theirs.parameters())
    for x, y in batches(20):
        base.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        base.step()
    for a, b in zip(weights(ours), weights(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


SAM_LIMITS = [
    Case("fishersam", {"rho": 0.1, "eta": 0.0}, "fisher-eta-0"),
    Case("friendlysam", {"rho": 0.1, "weight": 0.0}, "friendly-weight-0"),
    Case("esam", {"rho": 0.1, "beta": 1.0, "gamma": 1.0}, "esam-beta-gamma-1"),
    Case("eigensam", {"rho": 0.1, "alpha": 0.0, "every": 3}, "eigen-alpha-0"),
    Case("gsam", {"rho": 0.1, "alpha": 0.0}, "gsam-alpha-0"),
    Case("lesam", {"sigma": 1e6, "rho_max": 0.1}, "lesam-always-capped"),
    Case("lesamplus", {"sigma": 1e6, "rho_max": 0.1, "alpha": 0.0}, "lesamplus-alpha-0"),
    Case("looksam", {"rho": 0.1, "every": 1}, "looksam-every-1"),
    Case("vasso", {"rho": 0.1, "theta": 1.0}, "vasso-theta-1"),
    Case("aesam", {"rho": 0.1, "threshold": -100.0}, "aesam-always"),
    Case("crsam", {"rho": 0.1, "alpha": 0.0, "beta": 0.0}, "crsam-zero"),
    Case("wsam", {"rho": 0.1, "gamma": 0.5, "decoupled": False}, "wsam-coupled-gamma-half"),
]


@pytest.mark.parametrize("case", SAM_LIMITS, ids=str)
@every_base
def test_is_sam_in_its_limit(case: Case, base_name: str):
    ours, sam = network(), network()
    train(case.make(BASES[base_name](ours.parameters())), ours, steps=20)
    train(lesam.SAM(BASES[base_name](sam.parameters()), rho=0.1), sam, steps=20)
    for a, b in zip(weights(ours), weights(sam), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@every_base
def test_asam_on_vectors_only_is_sam(base_name: str):
    """A net made of one-dimensional tensors has nothing that ASAM scales."""

    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.linspace(0.5, 2, 5).double())
            self.b = nn.Parameter(torch.linspace(-1, 1, 5).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.a + self.b)[:, :3]

    ours, sam = Scales(), Scales()
    train(lesam.ASAM(BASES[base_name](ours.parameters()), rho=0.1), ours, steps=20)
    train(lesam.SAM(BASES[base_name](sam.parameters()), rho=0.1), sam, steps=20)
    for a, b in zip(weights(ours), weights(sam), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@every_base
def test_lesam_plus_with_alpha_zero_is_lesam(base_name: str):
    ours, plain = network(), network()
    options = {"sigma": 0.05, "rho_max": 0.3}
    train(lesam.LESAMPlus(BASES[base_name](ours.parameters()), alpha=0.0, **options), ours, steps=20)
    train(lesam.LESAM(BASES[base_name](plain.parameters()), **options), plain, steps=20)
    for a, b in zip(weights(ours), weights(plain), strict=True):
        assert torch.equal(a, b)


def test_perturbing_makes_a_difference():
    """The reductions above would hold trivially if nothing were perturbed."""
    ours, base_model = network(), network()
    train(lesam.SAM(BASES["sgd"](ours.parameters()), rho=0.1), ours, steps=20)
    base = BASES["sgd"](base_model.parameters())
    for x, y in batches(20):
        base.step(closure_for(base, base_model, x, y))
    assert max(float((a - b).abs().max()) for a, b in zip(weights(ours), weights(base_model), strict=True)) > 1e-3

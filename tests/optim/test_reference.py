"""Equal to a long-hand class written from the method's own paper."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lesam
from tests.reference import REFERENCES

from .cases import BASES, FORMS, ONE_OF_EACH, Case, batches, context_step, every_base, every_form, network, weights

STEPS = 25


def reference_for(case: Case, model: nn.Module, base: torch.optim.Optimizer, opt: lesam.SharpnessAware):
    """The long-hand class with the same hyper-parameters, and the library's own draws where a method draws."""
    parameters, options = list(model.parameters()), dict(case.options)
    if case.name == "esam":
        subset = opt.parts.subset
        options["mask"] = lambda step: subset.mask(len(parameters), step)
    if case.name == "eigensam":
        space = lesam.optim._arithmetic.Space(parameters)
        options["start"] = lambda: opt.parts.direction.start(space)
    return REFERENCES[case.name](parameters, base, **options)


def test_every_method_has_a_case_and_a_reference():
    assert {case.name for case in ONE_OF_EACH} == set(lesam.METHODS) == set(REFERENCES)


@every_form
@every_base
@pytest.mark.parametrize("style", ["closure", "contexts"])
def test_equals_the_long_hand_class(case: Case, base_name: str, style: str):
    ours, theirs = network(), network()
    opt = case.make(BASES[base_name](ours.parameters()))
    base = BASES[base_name](theirs.parameters())
    reference = reference_for(case, theirs, base, opt)
    start = weights(ours)

    for step, (x, y) in enumerate(batches(STEPS)):

        def closure_of(model: nn.Module, optimizer, x=x, y=y):
            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                return loss

            return closure

        expected = reference.step(closure_of(theirs, base))
        if style == "closure" or opt.passes > 2:
            loss = opt.step(closure_of(ours, opt))
            torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
        else:
            context_step(opt, ours, x, y)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9, msg=lambda m, step=step: f"step {step}: {m}")
    moved = max(float((a - b).abs().max()) for a, b in zip(start, weights(ours), strict=True))
    assert moved > 0.05


@every_base
def test_esam_selects_samples_like_the_long_hand_class(base_name: str):
    case = Case("esam", {"rho": 0.1, "beta": 0.6, "gamma": 0.4})
    ours, theirs = network(), network()
    opt = case.make(BASES[base_name](ours.parameters()))
    reference = reference_for(case, theirs, BASES[base_name](theirs.parameters()), opt)
    for x, y in batches(STEPS):

        def losses_of(model: nn.Module, x=x, y=y):
            def losses(indices: Tensor | None = None) -> Tensor:
                picked = slice(None) if indices is None else indices
                return nn.functional.cross_entropy(model(x[picked]), y[picked], reduction="none")

            return losses

        loss = opt.step(sample_losses=losses_of(ours))
        torch.testing.assert_close(loss, reference.step(sample_losses=losses_of(theirs)))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_the_forms_differ():
    """The options that name another form really compute something else."""
    ends = {}
    for case in (*FORMS, Case("eigensam", {"every": 4, "iterations": 2}), Case("lesamplus", {"sigma": 0.05})):
        model = network()
        opt = case.make(BASES["sgd"](model.parameters()))
        for x, y in batches(12):
            context_step(opt, model, x, y)
        ends[str(case)] = torch.cat([w.flatten() for w in weights(model)])
    assert not torch.allclose(ends["eigensam-top"], ends["eigensam"], rtol=1e-3)
    assert not torch.allclose(ends["lesamplus-reference"], ends["lesamplus"], rtol=1e-3)

"""The terms of the perturbed loss are those of its Taylor expansion."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

import lesam
from lesam.lab import recipes
from lesam.lab.config.text import override
from lesam.lab.paper.terms import Probe, radius_of
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent

EXACT = ["system.precision=64-true", "system.channels_last=off"]


def trained(recipe: str, runs: Path) -> RunFolder:
    config = override(recipes.build(recipe, method="lesam", scale="smoke"), EXACT)
    return RunFolder(runs / train(config, runs=runs, progress=Silent())["folder"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained("cifar100-resnet18", tmp_path_factory.mktemp("runs"))


def test_what_is_left_after_both_terms_is_of_third_order(tmp_path: Path) -> None:
    smooth = trained("vit-cifar100", tmp_path)  # a ReLU network has kinks, and no third derivative there
    probe = Probe(smooth, 1, batches=1)
    left = []
    for rho in (4e-4, 2e-4, 1e-4):
        (terms,) = probe.terms(lesam.Fixed(rho))
        assert terms.first_order == pytest.approx(rho * terms.norm)
        left.append(terms.rise - terms.first_order - terms.curvature)
    for coarse, fine in itertools.pairwise(left):
        assert coarse / fine == pytest.approx(8, rel=0.2)


def test_a_budget_fixes_the_first_term_and_a_radius_does_not(run: RunFolder) -> None:
    probe = Probe(run, 2, batches=4)
    ours = probe.terms(radius_of(override(run.config(), ["optimizer.rho_max=none"]), 0.1))
    assert [terms.first_order for terms in ours] == pytest.approx([0.1] * 4)
    sam = probe.terms(radius_of(recipes.build("cifar100-resnet18", method="sam", scale="smoke")))
    assert len({round(terms.first_order, 6) for terms in sam}) == 4
    assert {terms.rho for terms in sam} == {0.05}


def test_measuring_leaves_batch_norm_alone(run: RunFolder) -> None:
    probe = Probe(run, 2, batches=1)
    before = {name: buffer.clone() for name, buffer in probe.model.named_buffers()}
    probe.terms(lesam.Fixed(0.1))
    probe.slices([0.0, 0.1])
    for name, buffer in probe.model.named_buffers():
        assert torch.equal(buffer, before[name])


def test_no_radius_is_invented_for_another_method() -> None:
    with pytest.raises(ValueError, match="no radius is known for asam"):
        radius_of(recipes.build("digits", method="asam", scale="smoke"))


def test_slices_start_at_zero_along_the_gradient(run: RunFolder) -> None:
    (found,) = Probe(run, 2, batches=1).slices([0.0, 1e-5])
    assert found.rises[0] == 0.0
    assert found.rises[1] == pytest.approx(1e-5 * found.norm, rel=1e-2)

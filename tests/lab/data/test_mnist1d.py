"""MNIST-1D: the authors' generator, its global seeding contained, a training set a seed and one test set."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from mnist1d.data import get_dataset_args, make_dataset

from lesam.lab.data import Batches, augmentation, load
from lesam.lab.data.mnist1d import TEST_SEED


def test_the_test_set_is_the_generators_own(tmp_path: Path):
    splits = load("mnist1d", tmp_path, samples=20, test_samples=50)
    settings = get_dataset_args()
    settings.num_samples, settings.train_split, settings.seed = 50, 1.0, TEST_SEED
    theirs = make_dataset(settings)
    assert np.allclose(splits.test.images.flatten(1).numpy(), theirs["x"], atol=1e-6)
    assert splits.test.labels.tolist() == theirs["y"].tolist()


def test_a_seed_draws_its_own_training_set_and_all_share_the_test_set(tmp_path: Path):
    first, again, other = (load("mnist1d", tmp_path, samples=40, test_samples=20, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.train.images, again.train.images)
    assert not torch.equal(first.train.images, other.train.images)
    assert torch.equal(first.test.images, other.test.images)


def test_validation_is_held_out_of_the_draw(tmp_path: Path):
    splits = load("mnist1d", tmp_path, samples=60, test_samples=20, validation=0.5)
    whole = load("mnist1d", tmp_path, samples=60, test_samples=20)
    assert splits.validation is not None
    rows = torch.cat([splits.train.images, splits.validation.images]).flatten(1)
    assert sorted(rows.tolist()) == sorted(whole.train.images.flatten(1).tolist())
    assert torch.bincount(splits.train.labels).tolist() == [3] * 10


def test_drawing_leaves_the_global_random_states_alone(tmp_path: Path):
    random.seed(3)
    np.random.seed(3)
    before = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(3)
    load("mnist1d", tmp_path, samples=20, test_samples=10, seed=7)
    assert (random.random(), np.random.rand()) == before


def test_a_draw_is_kept_and_nothing_is_written_when_asked_not_to(tmp_path: Path):
    load("mnist1d", tmp_path / "a", samples=20, test_samples=10)
    assert len(list((tmp_path / "a" / ".lesam").glob("mnist1d-*.safetensors"))) == 2
    load("mnist1d", tmp_path / "b", read_only=True, samples=20, test_samples=10)
    assert not (tmp_path / "b").exists()


def test_signals_reach_the_network_as_they_are(tmp_path: Path):
    split = load("mnist1d", tmp_path, samples=20, test_samples=10).train
    augment = augmentation("none", normalisation="as_is")
    signals, _ = next(Batches(split, 20, augment, device="cpu", seed=0, shuffle=False).epoch(0))
    assert torch.allclose(signals, split.images, rtol=1e-6, atol=0)


@pytest.mark.parametrize("count", [0, 5, 15, -10])
def test_a_number_that_classes_cannot_share_is_refused(tmp_path: Path, count: int):
    with pytest.raises(ValueError, match=f"must be a multiple, got {count}"):
        load("mnist1d", tmp_path, samples=count)

"""Runs that several tests look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor, nn

from lesam.lab.attacks.run import pixel_model
from lesam.lab.data.domains import PACS, VLCS
from lesam.lab.data.loading import choose_split, load_data, plain_batches
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.restore import load_model
from tests.lab.data.images import write_images
from tests.lab.running import smoke, trained


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A network that recognises grey digits, whose pixels are normalised outside of it."""
    config = smoke("digits", "schedule.epochs=6", "data.options.label_noise=0.0", "record.keep_epochs=3,6")
    return trained(
        replace(config, record=replace(config.record, checkpoint_every=3)), tmp_path_factory.mktemp("digits")
    )


@pytest.fixture(scope="module")
def batch(digits: RunFolder) -> tuple[nn.Module, Tensor, Tensor]:
    """That network on pixels, and 300 of its test images, in double precision."""
    config = digits.config()
    split = choose_split(load_data(config), "test")
    images, labels = next(plain_batches(config, split, batch_size=300, pixels=True).epoch(0))
    return pixel_model(load_model(digits)[0], config).double(), images.double(), labels


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both collections with five images a class, each domain in a shade of its own."""
    folder = tmp_path_factory.mktemp("domains")
    for collection in (PACS, VLCS):
        write_images(folder, collection)
    return folder

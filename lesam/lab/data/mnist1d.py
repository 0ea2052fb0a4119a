"""MNIST-1D: ten digits as noisy signals of 40 values, made by their authors' generator; nothing to download.

Reference: Greydanus and Kobak, Scaling down deep learning with MNIST-1D, ICML 2024.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from lesam.lab.data import cache
from lesam.lab.data.seeds import mix
from lesam.lab.data.splits import Splits, TensorSet

CLASSES = 10
TEST_SEED = mix("mnist1d", "test") % 2**32
"""Of the test set, which is the same for every run; neither the generator's default nor a run's seed leads to it."""


def mnist1d(
    root: Path, *, samples: int = 5000, test_samples: int = 50_000, seed: int = 0, read_only: bool = False
) -> Splits:
    """Make signals to train on, others for every seed, and one fixed test set.

    A draw has the same number of signals of each class, and is shifted and scaled as a whole to mean 0 and standard
    deviation 1, as the generator does. Draws are kept in ``root/.lesam``; the generator takes about 0.3 ms a signal.

    Args:
        root: Where draws are kept.
        samples: Signals to train on and to hold out of that for validation.
        test_samples: Signals to test on: a smaller test set is another draw.
        seed: Of the training signals.
        read_only: Keep no draw.

    Example:
        >>> made = mnist1d(Path("."), samples=20, test_samples=10, read_only=True)
        >>> made.train.images.shape, made.train.images.dtype, made.test.labels.unique().numel()
        (torch.Size([20, 1, 1, 40]), torch.float32, 10)
    """
    for name, count in (("samples", samples), ("test_samples", test_samples)):
        if count < CLASSES or count % CLASSES:
            raise ValueError(f"MNIST-1D has {CLASSES} classes of equal size: {name} must be a multiple, got {count}")
    train = _kept(root, samples, mix("mnist1d", "train", seed) % 2**32, read_only=read_only)
    return Splits(train, _kept(root, test_samples, TEST_SEED, read_only=read_only), CLASSES, "mnist1d")


def _kept(root: Path, count: int, seed: int, *, read_only: bool) -> TensorSet:
    """A draw from the disk, or from the generator."""
    file = root / ".lesam" / f"mnist1d-{count}-{seed}.safetensors"
    key = f"mnist1d {importlib.metadata.version('mnist1d')}"
    tensors = cache.read(file, key)
    if tensors is None:
        tensors = _drawn(count, seed)
        if not read_only:
            cache.write(file, key, tensors)
    return TensorSet(tensors["signals"], tensors["labels"])


def _drawn(count: int, seed: int) -> dict[str, torch.Tensor]:
    # Imports pyplot, which takes a second: only a draw that is not kept yet pays for it.
    from mnist1d.data import get_dataset_args, make_dataset

    settings = get_dataset_args()
    settings.num_samples, settings.train_split, settings.seed = count, 1.0, seed
    with _random_state_kept():
        drawn = make_dataset(settings)
    signals = torch.from_numpy(drawn["x"]).float().view(count, 1, 1, -1)
    return {"signals": signals, "labels": torch.from_numpy(drawn["y"]).long()}


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """The generator seeds and draws from the global sources of Python and NumPy: give them back as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)

"""The 1,797 handwritten digits bundled with scikit-learn: real images without a download."""

from __future__ import annotations

import torch

from lesam.lab.data.sampling import balanced_counts, pick_per_class
from lesam.lab.data.splits import Splits, TensorSet

TRAIN_SIZE = 1200


def digits(*, size: int = 8) -> Splits:
    """Load the digits, 1,200 to train on and 597 to test on, always the same ones.

    The bundled order groups writers, so the split is drawn at random (with a fixed seed), balanced over
    classes. Grey levels 0 to 16 become 0 to 255.

    Args:
        size: Side of the images: 8, or a multiple of 8 (each pixel repeated).

    Example:
        >>> digits().train.images.shape
        torch.Size([1200, 1, 8, 8])
    """
    # scikit-learn takes a second to import: only those who use the digits pay for it.
    from sklearn.datasets import load_digits

    if size < 8 or size % 8:
        raise ValueError(f"digits come in sizes that are multiples of 8, got size={size}")
    bunch = load_digits()
    levels = torch.from_numpy(bunch.images).unsqueeze(1)
    images = (levels * (255 / 16)).round().to(torch.uint8)
    images = images.repeat_interleave(size // 8, 2).repeat_interleave(size // 8, 3)
    everything = TensorSet(images, torch.from_numpy(bunch.target).long())
    train = pick_per_class(everything.labels, balanced_counts(everything.labels, 10, TRAIN_SIZE), seed=0)
    test = torch.ones(len(everything), dtype=torch.bool)
    test[train] = False
    return Splits(everything.subset(train), everything.subset(test.nonzero().flatten()), 10, "digits")

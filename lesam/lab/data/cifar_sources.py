"""What CIFAR-10 and CIFAR-100 are made of: names, checksums and formats of the official files.

Archives: https://www.cs.toronto.edu/~kriz/cifar.html; files of the python version: torchvision's
``datasets/cifar.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from lesam.lab.data.cifar_formats import Decoder, decode_binary, decode_pickle
from lesam.lab.data.splits import TensorSet


@dataclass(frozen=True)
class Layout:
    """One form in which the data set is published.

    Attributes:
        folder: Name of the extracted folder.
        train: Training files in order.
        test: Test files in order.
        md5: Checksums of these files, as far as they are known.
        archive: Name of the tar.gz file.
        archive_md5: Its checksum.
        decode: How one file is read.
        decode_coarse: How one file is read for its coarse labels, where it has such.
        check: Says what is wrong with the decoded images, for folders of files without a known checksum.
    """

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    md5: Mapping[str, str]
    archive: str
    archive_md5: str
    decode: Decoder
    decode_coarse: Decoder | None = None
    check: Callable[[TensorSet, TensorSet], str | None] | None = None


@dataclass(frozen=True)
class Source:
    """A data set and its forms in order of preference; the first is the one to download."""

    name: str
    classes: int
    url: str
    layouts: tuple[Layout, ...]
    coarse_classes: int = 0


def _check_cifar10(train: TensorSet, test: TensorSet) -> str | None:
    """Check what is publicly known of the content: sizes of classes, first labels, means of channels.

    Only the archive of the binary version has a published checksum, not the batches in it. So this finds
    truncated, missing, swapped and foreign batches, but not a few altered pixels.
    """
    first = {50_000: [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], 10_000: [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]}
    for part, (total, labels) in zip((train, test), first.items(), strict=True):
        counts = torch.bincount(part.labels, minlength=10).tolist()
        if counts != [total // 10] * 10:
            return f"{total // 10} images of each class were expected, found {counts}"
        if part.labels[:10].tolist() != labels:
            return f"the labels should begin with {labels}, found {part.labels[:10].tolist()}"
    # Images first, then their sum: many times faster than one sum over three dimensions.
    sums = train.images.flatten(2).sum(2, dtype=torch.int32).sum(0)
    means = (sums / (255 * 1024 * len(train))).tolist()
    if any(abs(m - e) > 1e-4 for m, e in zip(means, (0.49140, 0.48216, 0.44653), strict=True)):
        return f"the channels have the means {means}"
    return None


_URL = "https://www.cs.toronto.edu/~kriz"

# The binary version comes first: what need not be unpickled should not be.
CIFAR10 = Source(
    name="cifar10",
    classes=10,
    url=_URL,
    layouts=(
        Layout(
            folder="cifar-10-batches-bin",
            train=tuple(f"data_batch_{k}.bin" for k in range(1, 6)),
            test=("test_batch.bin",),
            md5={},
            archive="cifar-10-binary.tar.gz",
            archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
            decode=functools.partial(decode_binary, label_bytes=1),
            check=_check_cifar10,
        ),
        Layout(
            folder="cifar-10-batches-py",
            train=tuple(f"data_batch_{k}" for k in range(1, 6)),
            test=("test_batch",),
            md5={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
            archive="cifar-10-python.tar.gz",
            archive_md5="c58f30108f718f92721af3b95e74349a",
            decode=functools.partial(decode_pickle, label_key=b"labels"),
        ),
    ),
)

CIFAR100 = Source(
    name="cifar100",
    classes=100,
    coarse_classes=20,
    url=_URL,
    layouts=(
        Layout(
            folder="cifar-100-binary",
            train=("train.bin",),
            test=("test.bin",),
            md5={
                "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
                "test.bin": "4499cfba6c016c1be1438163640a0898",
            },
            archive="cifar-100-binary.tar.gz",
            archive_md5="03b5dce01913d631647c71ecec9e9cb8",
            decode=functools.partial(decode_binary, label_bytes=2),
            decode_coarse=functools.partial(decode_binary, label_bytes=2, label=0),
        ),
        Layout(
            folder="cifar-100-python",
            train=("train",),
            test=("test",),
            md5={
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            },
            archive="cifar-100-python.tar.gz",
            archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
            decode=functools.partial(decode_pickle, label_key=b"fine_labels"),
            decode_coarse=functools.partial(decode_pickle, label_key=b"coarse_labels"),
        ),
    ),
)

"""Images in folders, one a class, decoded when they are needed (ImageNet and its like)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageFile
from torch import Tensor
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import pil_to_tensor

from lesam.lab.data.augment import Normalise
from lesam.lab.data.normalisation import normalisation
from lesam.lab.data.splits import Splits


@dataclass(frozen=True, eq=False)
class FolderSet:
    """Paths of image files and their labels; the images stay on disk.

    Attributes:
        paths: One file an image.
        labels: int64 tensor ``(N,)``.
        class_names: Folder names in label order.
        truncated: Take files that end too early as they are, what is missing grey.
    """

    paths: tuple[str, ...]
    labels: Tensor
    class_names: tuple[str, ...]
    truncated: bool = False

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.paths)

    def subset(self, indices: Tensor) -> FolderSet:
        """Return the images at the given positions, in that order."""
        return replace(self, paths=tuple(self.paths[i] for i in indices.tolist()), labels=self.labels[indices])

    def joined(self, others: Sequence[FolderSet]) -> FolderSet:
        """Return these images followed by those of other sets, which must have the same classes."""
        sets = [self, *others]
        paths = tuple(path for one in sets for path in one.paths)
        return replace(self, paths=paths, labels=torch.cat([one.labels for one in sets]))

    def decode(self, index: int) -> Image.Image:
        """Read one image as RGB; a file that cannot be read is named."""
        path = self.paths[index]
        try:
            with _truncated(self.truncated), Image.open(path) as image:
                return image.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:
            raise RuntimeError(f"{path} cannot be decoded ({error}); replace or remove the file") from error

    @classmethod
    def scan(cls, folder: Path, *, truncated: bool = False) -> FolderSet:
        """List a folder with one sub-folder a class; labels follow the sorted names."""
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{folder} is missing; expected {folder}/CLASS/IMAGE.jpg with one sub-folder for each class"
            )
        listed = ImageFolder(str(folder))
        paths = tuple(path for path, _ in listed.samples)
        return cls(paths, torch.tensor(listed.targets, dtype=torch.int64), tuple(listed.classes), truncated)


@contextlib.contextmanager
def _truncated(allowed: bool) -> Iterator[None]:
    """While active, Pillow fills up files that end too early instead of refusing them; its switch is global."""
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = before or allowed
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def imagefolder(root: Path, *, train: str = "train", test: str = "val") -> Splits:
    """Find images in ``root/train/CLASS/*`` and ``root/val/CLASS/*``, or in ``root/imagenet``, beside other data sets.

    Args:
        root: The folder that holds both, or holds ``imagenet`` with both in it.
        train: Name of the training folder.
        test: Name of the test folder.
    """
    root = root if (root / train).is_dir() else root / "imagenet"
    train_set, test_set = FolderSet.scan(root / train), FolderSet.scan(root / test)
    if train_set.class_names != test_set.class_names:
        differing = sorted(set(train_set.class_names) ^ set(test_set.class_names))
        raise ValueError(f"{root / train} and {root / test} have different classes: {', '.join(differing)}")
    return Splits(train_set, test_set, len(train_set.class_names), "imagefolder")


@dataclass(frozen=True, kw_only=True)
class FolderAugmentConfig:
    """How an image file becomes the network's input, in training and in evaluation.

    Attributes:
        normalisation: Name of the constants, see ``NORMALISATIONS``.
        size: Side of the images given to the network.
        scale: Smallest and largest share of the image's area in a random crop.
        ratio: Narrowest and widest shape of the crop.
        flip: Mirror left to right with probability 1/2.
        jitter: Strength of random changes of brightness, contrast, saturation and hue; 0 for none.
        greyscale: Probability of losing the colours.
        evaluation_resize: In evaluation, side to which the shorter edge is resized before the central crop;
            ``None`` resizes to ``size`` x ``size`` without a crop.
    """

    normalisation: str = "imagenet"
    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    jitter: float = 0.0
    greyscale: float = 0.0
    evaluation_resize: int | None = 256

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        normalisation(self.normalisation)
        if self.size < 1:
            raise ValueError(f"size must be >= 1, got {self.size}")
        if self.evaluation_resize is not None and self.evaluation_resize < self.size:
            raise ValueError(f"evaluation_resize must be >= size or None, got {self.evaluation_resize} < {self.size}")


class FolderAugment:
    """Decodes' other half: geometry and colour on the worker, normalisation on the device.

    Args:
        config: What to do.
        training: With the random part, or the evaluation's fixed one.
        dtype: Type of the output.
        channels_last: Give the output in channels-last memory format.
    """

    def __init__(
        self,
        config: FolderAugmentConfig,
        *,
        training: bool = True,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        self.config = config
        self.training = training
        self.dtype = dtype
        self.channels_last = channels_last
        self._normalise = Normalise(config.normalisation)
        self._transform = transforms.Compose(_random_steps(config) if training else _fixed_steps(config))

    def evaluation(self) -> FolderAugment:
        """Return the transform for evaluation, without randomness."""
        return FolderAugment(self.config, training=False, dtype=self.dtype, channels_last=self.channels_last)

    def on_worker(self, image: Image.Image, seed: int) -> Tensor:
        """Transform one image to uint8 ``(C, H, W)``; the seed is all the randomness there is."""
        # torchvision draws from the global generator, which belongs to the caller and must not move.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            pixels: Tensor = pil_to_tensor(self._transform(image))
        return pixels

    def on_device(self, images: Tensor) -> Tensor:
        """Normalise a uint8 batch where it lies."""
        pixels = self._normalise(images.to(torch.promote_types(self.dtype, torch.float32)))
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return pixels.to(self.dtype, memory_format=layout)


def _random_steps(config: FolderAugmentConfig) -> list[Any]:
    steps: list[Any] = [transforms.RandomResizedCrop(config.size, config.scale, config.ratio)]
    if config.flip:
        steps.append(transforms.RandomHorizontalFlip())
    if config.jitter:
        steps.append(transforms.ColorJitter(*[config.jitter] * 4))
    if config.greyscale:
        steps.append(transforms.RandomGrayscale(config.greyscale))
    return steps


def _fixed_steps(config: FolderAugmentConfig) -> list[Any]:
    if config.evaluation_resize is None:
        return [transforms.Resize((config.size, config.size))]
    return [transforms.Resize(config.evaluation_resize), transforms.CenterCrop(config.size)]

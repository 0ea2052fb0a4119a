"""Augmentation of whole batches where they lie, from uint8 to what the network reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lesam.lab.data.normalisation import normalisation


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """What happens to a batch: crop, flip, resize, normalise, cut out, in this order.

    Attributes:
        normalisation: Name of the constants, see ``NORMALISATIONS``.
        padding: Pixels added on every side before a random crop of the original size; 0 for no crop.
        padding_mode: What the added pixels hold.
        flip: Mirror left to right with probability 1/2.
        resize: Side of the images given to the network (bicubic, antialiased); ``None`` leaves the size.
        cutout: Side of the square set to 0 after normalisation; 0 for none.
        cutout_probability: Share of images that get one.
    """

    normalisation: str = "esam"
    padding: int = 0
    padding_mode: Literal["zeros", "reflect"] = "zeros"
    flip: bool = False
    resize: int | None = None
    cutout: int = 0
    cutout_probability: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        normalisation(self.normalisation)
        if self.padding < 0 or self.cutout < 0 or (self.resize is not None and self.resize < 1):
            raise ValueError(f"padding and cutout must be >= 0 and resize >= 1, got {self}")
        if self.padding_mode not in ("zeros", "reflect"):
            raise ValueError(f"padding_mode must be 'zeros' or 'reflect', got {self.padding_mode!r}")
        if not 0.0 <= self.cutout_probability <= 1.0:
            raise ValueError(f"cutout_probability must lie in [0, 1], got {self.cutout_probability}")


@dataclass(frozen=True, eq=False)
class Draws:
    """The random choices for one batch, a value an image; ``None`` where the config makes no choice.

    ``top`` and ``left`` are the crop's corner in the padded image; ``cut`` says which images lose a square,
    ``cut_top`` and ``cut_left`` where its corner is (it may stick out of the image).
    """

    top: Tensor | None = None
    left: Tensor | None = None
    flip: Tensor | None = None
    cut: Tensor | None = None
    cut_top: Tensor | None = None
    cut_left: Tensor | None = None


class Augment:
    """Turns a uint8 batch into the network's input, in a few tensor operations on the batch's device.

    Nothing is read back from the device and no loop runs over images. The generator must be on the
    batch's device; it is all the randomness there is.

    Args:
        config: What to do.
        dtype: Type of the output.
        channels_last: Give the output in channels-last memory format.

    Example:
        >>> augment = Augment(AugmentConfig(padding=4, flip=True))
        >>> batch = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> augment(batch, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self, config: AugmentConfig, *, dtype: torch.dtype = torch.float32, channels_last: bool = False
    ) -> None:
        if not dtype.is_floating_point:
            raise ValueError(f"the network's input must be of a floating-point type, got {dtype}")
        self.config = config
        self.dtype = dtype
        self.channels_last = channels_last
        self._normalise = Normalise(config.normalisation)

    def evaluation(self) -> Augment:
        """Return the same without randomness: only resizing and normalisation stay."""
        plain = replace(self.config, padding=0, flip=False, cutout=0)
        return Augment(plain, dtype=self.dtype, channels_last=self.channels_last)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the augmented batch."""
        return self.apply(images, self.draw(images.shape, generator))

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Draws:
        """Make all random choices for a batch of that shape."""
        config, count, device = self.config, shape[:1], generator.device
        choices: dict[str, Tensor] = {}
        if config.padding:
            for name in ("top", "left"):
                choices[name] = torch.randint(2 * config.padding + 1, count, generator=generator, device=device)
        if config.flip:
            choices["flip"] = torch.rand(count, generator=generator, device=device) < 0.5
        if config.cutout:
            uniform = torch.rand(count, generator=generator, device=device)
            choices["cut"] = uniform < config.cutout_probability
            half = config.cutout // 2
            sides = shape[2:] if config.resize is None else (config.resize, config.resize)
            for name, side in zip(("cut_top", "cut_left"), sides, strict=True):
                choices[name] = torch.randint(-half, side - half, count, generator=generator, device=device)
        return Draws(**choices)

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """Apply choices to a batch: the part that is not random."""
        if draws.top is not None and draws.left is not None:
            images = _crop(images, draws.top, draws.left, self.config.padding, self.config.padding_mode)
        if draws.flip is not None:
            images = torch.where(draws.flip.view(-1, 1, 1, 1), images.flip(3), images)
        # Half precision has too few digits for the arithmetic of pixels: it is only the output's type.
        pixels = images.to(torch.promote_types(self.dtype, torch.float32))
        if self.config.resize is not None:
            pixels = _resize(pixels, self.config.resize)
        pixels = self._normalise(pixels)
        if draws.cut is not None and draws.cut_top is not None and draws.cut_left is not None:
            square = _square(pixels, draws.cut_top, draws.cut_left, self.config.cutout)
            pixels.masked_fill_(square & draws.cut.view(-1, 1, 1, 1), 0.0)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return pixels.to(self.dtype, memory_format=layout)


class Normalise:
    """``(pixels / 255 - mean) / std`` in place, with the constants kept on every device it has seen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._constants: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def __call__(self, pixels: Tensor) -> Tensor:
        """Normalise a float batch of values from 0 to 255."""
        key = (pixels.device, pixels.dtype)
        if key not in self._constants:
            mean, std = (
                torch.tensor(values, dtype=pixels.dtype, device=pixels.device).view(1, -1, 1, 1)
                for values in normalisation(self.name)
            )
            self._constants[key] = (mean, std)
        mean, std = self._constants[key]
        if mean.shape[1] not in (1, pixels.shape[1]):
            raise ValueError(
                f"the normalisation {self.name!r} is for {mean.shape[1]} channels, the images have "
                f"{pixels.shape[1]}; 'unit' and 'half' fit any number"
            )
        return pixels.div_(255).sub_(mean).div_(std)


def _crop(images: Tensor, top: Tensor, left: Tensor, padding: int, mode: str) -> Tensor:
    """Pad every side and cut a window of the original size at (top, left), an own one for each image."""
    count, channels, height, width = images.shape
    padded = _reflect(images, padding) if mode == "reflect" else F.pad(images, (padding,) * 4)
    tall, wide = padded.shape[2:]
    # In memory a window is a run of bytes that starts at its corner, with gaps between its rows. So all
    # windows are one index_select over the overlapping runs, which copies memory at full speed, and a view
    # that steps over the gaps.
    run = (channels - 1) * tall * wide + (height - 1) * wide + width
    flat = padded.flatten()
    runs = flat.as_strided((flat.numel() - run + 1, run), (1, 1))
    corners = torch.arange(count, device=images.device) * (channels * tall * wide) + top * wide + left
    return runs.index_select(0, corners).as_strided(images.shape, (run, tall * wide, wide, 1))


def _reflect(images: Tensor, padding: int) -> Tensor:
    """Pad by reflection without repeating the border; torch's own does not take uint8."""
    height, width = images.shape[2:]
    if padding >= min(height, width):
        raise ValueError(f"reflection needs padding < image size, got {padding} for {height} x {width}")

    def mirrored(size: int) -> Tensor:
        position = torch.arange(-padding, size + padding, device=images.device).abs()
        return torch.minimum(position, 2 * (size - 1) - position)

    return images.index_select(2, mirrored(height)).index_select(3, mirrored(width))


def _resize(pixels: Tensor, side: int) -> Tensor:
    """Resize bicubically, clamped to the range that the overshoot of the cubic leaves."""
    return F.interpolate(pixels, size=(side, side), mode="bicubic", antialias=True).clamp_(0, 255)


def _square(pixels: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
    """Return the mask ``(N, 1, H, W)`` of a square at (top, left), clipped at the borders."""

    def inside(size: int, start: Tensor) -> Tensor:
        offset = torch.arange(size, device=pixels.device) - start.view(-1, 1)
        return (offset >= 0) & (offset < side)

    rows, columns = inside(pixels.shape[2], top), inside(pixels.shape[3], left)
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)

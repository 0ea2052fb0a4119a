"""Batched augmentation against a slow long-hand one, its distributions, and torchvision as a peer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import chisquare
from torch import Tensor
from torchvision import transforms

from lesam.lab.data import NORMALISATIONS, PRESETS, Augment, AugmentConfig, FolderAugmentConfig, augmentation
from lesam.lab.data.augment import Draws

TENSOR_PRESETS = [name for name, config in PRESETS.items() if isinstance(config, AugmentConfig)]


def pictures(count: int, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    source = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, channels, height, width), generator=source, dtype=torch.uint8)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def long_hand(images: Tensor, draws: Draws, config: AugmentConfig) -> Tensor:
    """One image after the other, one step after the other, as the papers' pipelines do it."""
    constants = NORMALISATIONS[config.normalisation]
    mean, std = (np.array(values, dtype=np.float32).reshape(-1, 1, 1) for values in constants)
    results = []
    for n, image in enumerate(images.numpy()):
        height, width = image.shape[1:]
        if draws.top is not None:
            p = config.padding
            mode = {"zeros": "constant", "reflect": "reflect"}[config.padding_mode]
            padded = np.pad(image, ((0, 0), (p, p), (p, p)), mode=mode)
            top, left = int(draws.top[n]), int(draws.left[n])
            image = padded[:, top : top + height, left : left + width]
        if draws.flip is not None and draws.flip[n]:
            image = image[:, :, ::-1]
        result = (image.astype(np.float32) / np.float32(255) - mean) / std
        if draws.cut is not None and draws.cut[n]:
            for y in range(int(draws.cut_top[n]), int(draws.cut_top[n]) + config.cutout):
                for x in range(int(draws.cut_left[n]), int(draws.cut_left[n]) + config.cutout):
                    if 0 <= y < height and 0 <= x < width:
                        result[:, y, x] = 0
        results.append(torch.from_numpy(np.ascontiguousarray(result)))
    return torch.stack(results)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 20, 14)])
@pytest.mark.parametrize("preset", ["none", "basic", "basic_cutout", "reflect"])
def test_equals_the_long_hand_version(preset: str, shape: tuple[int, int, int]) -> None:
    channels = shape[0]
    name = "half" if channels == 1 else PRESETS[preset].normalisation
    augment = augmentation(preset, normalisation=name)
    images = pictures(40, *shape)
    draws = augment.draw(images.shape, seeded())
    expected = long_hand(images, draws, augment.config)
    assert torch.equal(augment.apply(images, draws), expected)
    assert torch.equal(augment(images, seeded()), expected)


@pytest.mark.parametrize(("padding", "cutout"), [(1, 3), (6, 5), (2, 40)])
def test_other_paddings_and_squares(padding: int, cutout: int) -> None:
    augment = Augment(AugmentConfig(padding=padding, flip=True, cutout=cutout, cutout_probability=1.0))
    images = pictures(30, 3, 12, 12)
    draws = augment.draw(images.shape, seeded())
    assert torch.equal(augment.apply(images, draws), long_hand(images, draws, augment.config))


@pytest.mark.parametrize("preset", TENSOR_PRESETS)
def test_batches_do_not_change_the_source_and_depend_on_the_generator_alone(preset: str) -> None:
    augment = augmentation(preset, **({"resize": 40} if preset == "vit" else {}))
    images = pictures(16)
    before = images.clone()
    torch.manual_seed(3)
    first = augment(images, seeded(5))
    torch.manual_seed(4)
    assert torch.equal(first, augment(images, seeded(5)))
    assert torch.equal(images, before)
    if preset != "none":
        assert not torch.equal(first, augment(images, seeded(6)))
    plain = augment.evaluation()
    assert torch.equal(plain(images, seeded(5)), plain(images, seeded(6)))


def test_crops_and_flips_are_uniform_as_seen_in_the_output() -> None:
    """Pixels that carry their own coordinates show where each crop came from."""
    side, count = 32, 20_000
    rows = torch.arange(side, dtype=torch.uint8).view(1, 1, side, 1).expand(count, 1, side, side)
    coordinates = torch.cat([rows, rows.transpose(2, 3)], 1)
    out = Augment(AugmentConfig(padding=4, flip=True, normalisation="unit"))(coordinates, seeded()) * 255
    top = out[:, 0, 16, 16].round().long() - 16 + 4
    flipped = out[:, 1, 16, 15] > out[:, 1, 16, 16]
    column = torch.where(flipped, side - 1 - 16, 16)
    left = out[:, 1, 16, 16].round().long() - column + 4
    cells = torch.bincount(top * 18 + left * 2 + flipped.long(), minlength=162)
    assert cells.numel() == 162  # 9 x 9 corners, mirrored or not, and no others
    assert chisquare(cells.numpy()).pvalue > 1e-3


def test_cutout_corners_are_uniform_over_minus_8_to_23() -> None:
    augment = augmentation("basic_cutout")
    draws = augment.draw(torch.Size((40_000, 3, 32, 32)), seeded())
    for corner in (draws.cut_top, draws.cut_left):
        assert (int(corner.min()), int(corner.max())) == (-8, 23)
        assert chisquare(torch.bincount(corner + 8).numpy()).pvalue > 1e-3
    joint = torch.bincount((draws.cut_top + 8) // 8 * 4 + (draws.cut_left + 8) // 8, minlength=16)
    assert chisquare(joint.numpy()).pvalue > 1e-3
    share = draws.cut.double().mean().item()
    assert abs(share - 0.5) < 5 * 0.5 / 200  # five standard errors


def test_cut_squares_hold_the_mean_and_have_the_clipped_area() -> None:
    augment = Augment(AugmentConfig(cutout=16, cutout_probability=1.0))
    images = pictures(500).clamp(min=200)  # nothing near the mean before
    out = augment(images, seeded())
    draws = augment.draw(images.shape, seeded())
    visible = [(c + 16).clamp(max=32) - c.clamp(min=0) for c in (draws.cut_top, draws.cut_left)]
    assert torch.equal((out == 0).all(1).sum((1, 2)), visible[0] * visible[1])


def test_zero_padding_is_black_before_normalisation() -> None:
    augment = augmentation("basic", normalisation="cifar100")
    images = torch.full((200, 3, 32, 32), 255, dtype=torch.uint8)
    mean, std = (torch.tensor(v) for v in NORMALISATIONS["cifar100"])
    assert {tuple(v) for v in augment(images, seeded()).amin((2, 3)).tolist()} == {
        tuple((-mean / std).tolist()),
        tuple(((1 - mean) / std).tolist()),
    }


@pytest.mark.parametrize("name", [n for n, v in NORMALISATIONS.items() if len(v.mean) == 3])
def test_normalisation_is_torchvisions_bit_for_bit(name: str) -> None:
    images = pictures(4)
    mean, std = NORMALISATIONS[name]
    peer = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
    expected = torch.stack([peer(Image.fromarray(i.permute(1, 2, 0).numpy())) for i in images])
    assert torch.equal(augmentation("none", normalisation=name)(images, seeded()), expected)


def test_vit_resizes_like_pil_to_within_its_rounding() -> None:
    vit = augmentation("vit", normalisation="unit").evaluation()
    assert vit(pictures(3), seeded()).aminmax() == (0, 1)  # the cubic's overshoot is clamped
    images = pictures(3).clamp(90, 160)  # PIL clamps between its two passes as well: stay clear of that
    ours = vit(images, seeded())
    resize = transforms.Resize((224, 224), transforms.InterpolationMode.BICUBIC)
    pil = [transforms.ToTensor()(resize(Image.fromarray(i.permute(1, 2, 0).numpy()))) for i in images]
    # PIL rounds to whole levels after each of its two passes.
    assert (ours - torch.stack(pil)).abs().max() <= 1.5 / 255


def test_dtype_and_memory_format() -> None:
    images = pictures(4)
    exact = augmentation("basic_cutout", dtype=torch.float64)(images, seeded())
    assert exact.dtype == torch.float64
    half = augmentation("basic_cutout", dtype=torch.bfloat16, channels_last=True)(images, seeded())
    assert half.dtype == torch.bfloat16
    assert half.is_contiguous(memory_format=torch.channels_last)
    single = augmentation("basic_cutout")(images, seeded())
    assert torch.equal(half.contiguous(), single.bfloat16())
    torch.testing.assert_close(exact.float(), single)
    last = augmentation("basic")(images.contiguous(memory_format=torch.channels_last), seeded())
    assert torch.equal(last, augmentation("basic")(images, seeded()))


def test_reflection_keeps_the_unit_interval_and_adds_no_black() -> None:
    out = augmentation("reflect")(pictures(100).clamp(min=100), seeded())
    assert out.min() >= 100 / 255
    assert out.max() <= 1


@pytest.mark.parametrize(
    "settings",
    [
        {"padding": -1},
        {"cutout": -2},
        {"resize": 0},
        {"cutout_probability": 1.5},
        {"padding_mode": "mirror"},
        {"normalisation": "esma"},
    ],
)
def test_settings_without_a_meaning_are_errors(settings: dict) -> None:
    with pytest.raises(ValueError, match="|".join(str(value) for value in settings.values())):
        AugmentConfig(**settings)


def test_misfits_are_errors_that_name_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"3 channels.*'half' fit any"):
        augmentation("none")(pictures(2, 1), seeded())
    with pytest.raises(ValueError, match="padding < image size"):
        augmentation("reflect")(pictures(2, 3, 4, 4), seeded())
    with pytest.raises(ValueError, match="did you mean 'basic'"):
        augmentation("basci")
    with pytest.raises(ValueError, match="did you mean 'padding'"):
        augmentation("basic", paddign=2)
    with pytest.raises(ValueError, match="floating"):
        augmentation("basic", dtype=torch.uint8)
    with pytest.raises(ValueError, match="evaluation_resize"):
        FolderAugmentConfig(size=300)

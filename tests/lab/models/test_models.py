"""The networks: published sizes, published structure, and errors that help."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from lesam.lab import models
from lesam.lab.models import build
from lesam.lab.models.pyramid import PyramidBlock
from lesam.lab.models.resnet import BasicBlock, PreActBlock

TINY = {
    "resnet18": {"width": 4},
    "preact_resnet18": {"width": 4},
    "wrn28_10": {"depth": 10, "width": 1},
    "pyramidnet110": {"depth": 8, "alpha": 12},
    "small_resnet": {"width": 4},
    "resnet32": {"width": 4, "blocks": 1},
    "resnet32_glmc": {"width": 4, "blocks": 1, "hidden": 8},
    "digits_cnn": {"width": 4, "in_channels": 3},
    "mlp": {"inputs": 3 * 32 * 32, "width": 4},
    "signal_cnn": {"width": 16},
    "imagenet_resnet18": {},
    "imagenet_resnet50": {},
    "imagenet_resnet101": {},
    "vit_b_16": {"image_size": 32, "layers": 1, "heads": 2, "width": 16},
}


def inputs(name: str) -> Tensor:
    return torch.randn(2, *((1, 1, 40) if name == "signal_cnn" else (3, 32, 32)))


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_every_name_is_tried_here() -> None:
    assert set(TINY) == set(models.NAMES)


@pytest.mark.parametrize(
    ("name", "for_10", "for_100"),
    [
        ("resnet18", 11_173_962, 11_220_132),
        ("preact_resnet18", 11_172_170, 11_218_340),
        ("wrn28_10", 36_479_194, 36_536_884),
        ("pyramidnet110", 28_485_477, 28_511_307),
    ],
)
def test_parameter_counts_of_the_literature(name: str, for_10: int, for_100: int) -> None:
    with torch.device("meta"):
        assert parameters(build(name, 10)) == for_10
        assert parameters(build(name, 100)) == for_100


@pytest.mark.parametrize(
    ("name", "count"),
    [("imagenet_resnet50", 25_557_032), ("imagenet_resnet101", 44_549_160), ("vit_b_16", 86_567_656)],
)
def test_parameter_counts_of_torchvision(name: str, count: int) -> None:
    with torch.device("meta"):
        assert parameters(build(name, 1000)) == count


@pytest.mark.parametrize("name", models.NAMES)
def test_output_shape_and_a_gradient_for_every_parameter(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, 7, **TINY[name])
    if name == "vit_b_16":  # its head starts at zero, which hides the body from the first gradient
        nn.init.normal_(model.heads.head.weight)
    out = model(inputs(name))
    assert out.shape == (2, 7)
    if name == "resnet32_glmc":  # its other heads answer when it is given two views
        out = torch.cat([head for view in model(*torch.randn(2, 2, 3, 32, 32)) for head in view], 1)
    out.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())


@pytest.mark.parametrize("name", [n for n in models.NAMES if n != "vit_b_16"])
def test_channels_last_gives_the_same_numbers(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, 5, **TINY[name]).double().eval()
    x = inputs(name).double()
    expected = model(x)
    model = model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize("name", ["resnet18", "preact_resnet18", "wrn28_10", "pyramidnet110"])
def test_resolutions_are_32_32_16_8_and_so_on(name: str) -> None:
    """The stem keeps 32 x 32; each stage after the first halves: 4 x 4 or 8 x 8 before pooling."""
    model = build(name, 10, **TINY[name])
    sizes: list[int] = []
    for module in model.modules():
        if isinstance(module, BasicBlock | PreActBlock | PyramidBlock):
            module.register_forward_hook(lambda _m, _x, out: sizes.append(out.shape[-1]))
    model(torch.zeros(2, 3, 32, 32))
    expected = {
        "resnet18": [32, 32, 16, 16, 8, 8, 4, 4],
        "preact_resnet18": [32, 32, 16, 16, 8, 8, 4, 4],
        "wrn28_10": [32, 16, 8],
        "pyramidnet110": [32, 16, 8],
    }
    assert sizes == expected[name]


def test_pyramid_widths_grow_by_five_to_286() -> None:
    with torch.device("meta"):
        model = build("pyramidnet110", 10)
    convs = [m for m in model.modules() if isinstance(m, PyramidBlock)]
    assert [b.conv1.out_channels for b in convs] == [16 + 5 * k for k in range(1, 55)]
    assert [k for k, b in enumerate(convs) if b.stride == 2] == [18, 36]
    assert model.fc.in_features == 286


def test_pyramid_widths_accumulate_before_they_are_rounded() -> None:
    # alpha / (3 n) = 48 / 9 = 5.33: adding a rounded 5 nine times would end at 61, not 64.
    assert build("pyramidnet110", 10, depth=20, alpha=48).widths == [21, 27, 32, 37, 43, 48, 53, 59, 64]


def test_pyramid_shortcut_is_pooled_and_padded_with_zeros_of_its_own_dtype() -> None:
    block = PyramidBlock(2, 5, stride=2)
    for dtype in (torch.float64, torch.bfloat16):
        x = torch.randn(1, 2, 5, 5, dtype=dtype)
        out = block.shortcut(x)
        assert out.dtype == dtype
        assert out.shape == (1, 5, 3, 3)
        torch.testing.assert_close(out[:, :2], F.avg_pool2d(x, 2, ceil_mode=True))
        assert not out[:, 2:].any()
    assert PyramidBlock(2, 5, stride=1).shortcut(torch.zeros(1, 2, 4, 4, device="meta")).device.type == "meta"


def test_pyramid_block_long_hand() -> None:
    torch.manual_seed(0)
    block = PyramidBlock(3, 4, stride=1).double().eval()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    inner = F.relu(block.bn2(F.conv2d(block.bn1(x), block.conv1.weight, padding=1)))
    expected = block.bn3(F.conv2d(inner, block.conv2.weight, padding=1))
    expected[:, :3] += x
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("inputs", [3, 4])
def test_preactivation_is_shared_with_a_projection_and_skipped_by_an_identity(inputs: int) -> None:
    torch.manual_seed(0)
    block = PreActBlock(inputs, 4, stride=1).double().eval()
    nn.init.normal_(block.bn1.bias)
    x = torch.randn(2, inputs, 6, 6, dtype=torch.float64)
    a = F.relu(block.bn1(x))
    inner = F.relu(block.bn2(F.conv2d(a, block.conv1.weight, padding=1)))
    shortcut = x if inputs == 4 else F.conv2d(a, block.project.weight)
    torch.testing.assert_close(block(x), shortcut + F.conv2d(inner, block.conv2.weight, padding=1))


def test_basic_block_long_hand() -> None:
    torch.manual_seed(0)
    block = BasicBlock(3, 4, stride=2).double().eval()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    inner = F.relu(block.bn1(F.conv2d(x, block.conv1.weight, stride=2, padding=1)))
    conv, norm = block.shortcut
    expected = block.bn2(F.conv2d(inner, block.conv2.weight, padding=1)) + norm(conv(x))
    torch.testing.assert_close(block(x), F.relu(expected))


@pytest.mark.parametrize("name", ["wrn28_10", "pyramidnet110"])
def test_convolutions_start_with_the_fan_out_variance(name: str) -> None:
    torch.manual_seed(0)
    sizes = {"wrn28_10": {"depth": 16, "width": 4}, "pyramidnet110": {"depth": 20, "alpha": 90}}
    model = build(name, 10, **sizes[name])
    for conv in (m for m in model.modules() if isinstance(m, nn.Conv2d) and m.weight.numel() > 5000):
        expected = math.sqrt(2 / (conv.kernel_size[0] ** 2 * conv.out_channels))
        # The standard error of a sample's deviation is expected / sqrt(2 n): five of them.
        assert abs(conv.weight.std().item() / expected - 1) < 5 / math.sqrt(2 * conv.weight.numel())
    assert not model.fc.bias.any()


def test_wide_groups_have_the_standard_number_of_blocks() -> None:
    with torch.device("meta"):
        model = build("wrn28_10", 10)
    assert [len(group) for group in model.stages] == [4, 4, 4]
    # Only the first block of a group projects, without BatchNorm.
    projected = [[b.project is not None for b in group] for group in model.stages]
    assert projected == [[True, False, False, False]] * 3


def test_digits_cnn_takes_both_sizes() -> None:
    model = build("digits_cnn", 10)
    for size in (8, 16):
        assert model(torch.zeros(2, 1, size, size)).shape == (2, 10)


def test_normalisation_inside_the_model() -> None:
    torch.manual_seed(0)
    model = build("small_resnet", 3, width=4, normalisation="robust_cifar10").eval()
    x = torch.rand(2, 3, 8, 8)
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    std = torch.tensor([0.2471, 0.2435, 0.2616]).view(3, 1, 1)
    torch.testing.assert_close(model(x), model.model((x - mean) / std))
    assert not {"mean", "std"} & set(model.state_dict())


def test_the_same_seed_builds_the_same_weights() -> None:
    def built(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in build("small_resnet", 3).parameters()])

    assert torch.equal(built(0), built(0))
    assert not torch.equal(built(0), built(1))


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("vit_b_16", "heads.head"),
        ("imagenet_resnet18", "fc"),
        ("small_resnet", "fc"),
        ("mlp", "layers.2"),
        ("resnet32_glmc", "fc"),
    ],
)
def test_local_weights_fill_the_body_and_leave_a_new_head(tmp_path, name, head, suffix) -> None:
    pretrained = build(name, 11, **TINY[name])
    path = tmp_path / f"weights.{suffix}"
    if suffix == "pth":
        torch.save(pretrained.state_dict(), path)
    else:
        save_file(pretrained.state_dict(), path)
    model = build(name, 5, weights=str(path), **TINY[name])
    assert model.get_submodule(head).out_features == 5
    for key, value in model.state_dict().items():
        if not key.startswith(head):
            assert torch.equal(value, pretrained.state_dict()[key]), key


def test_position_embeddings_follow_the_image_size(tmp_path) -> None:
    torch.save(build("vit_b_16", 3, **TINY["vit_b_16"]).state_dict(), tmp_path / "w.pth")
    larger = build("vit_b_16", 3, **{**TINY["vit_b_16"], "image_size": 64}, weights=tmp_path / "w.pth")
    assert larger(torch.zeros(1, 3, 64, 64)).shape == (1, 3)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path) -> None:
    state = build("imagenet_resnet18", 3).state_dict()
    del state["layer1.0.conv1.weight"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"layer1\.0\.conv1\.weight"):
        build("imagenet_resnet18", 3, weights=tmp_path / "w.pth")
    with pytest.raises(ValueError, match="neither a file nor one of torchvision's"):
        build("vit_b_16", 3, weights=tmp_path / "absent.pth", **TINY["vit_b_16"])


def test_every_network_takes_the_weights_of_one_for_other_classes(tmp_path) -> None:
    for name in models.NAMES:
        torch.manual_seed(0)
        pretrained = build(name, 7, **TINY[name]).state_dict()
        save_file(pretrained, tmp_path / f"{name}.safetensors")
        torch.manual_seed(1)
        found = build(name, 3, weights=str(tmp_path / f"{name}.safetensors"), **TINY[name]).state_dict()
        differing = {key for key, value in found.items() if not torch.equal(value, pretrained[key])}
        assert differing
        assert all(key.startswith(("fc.", "fc_cb.", "heads.", "layers.2.")) for key in differing), name


def test_weights_of_a_network_that_normalises_its_inputs(tmp_path) -> None:
    wrapped = build("small_resnet", 7, width=4, normalisation="cifar10")
    save_file(wrapped.state_dict(), tmp_path / "w.safetensors")
    for normalisation in (None, "cifar10"):
        model = build("small_resnet", 3, width=4, normalisation=normalisation, weights=str(tmp_path / "w.safetensors"))
        inner = model if normalisation is None else model.model
        assert torch.equal(inner.conv1.weight, wrapped.model.conv1.weight)


def test_shapes_that_do_not_fit_are_spelled_out(tmp_path) -> None:
    torch.save(build("small_resnet", 7, width=8).state_dict(), tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"of another shape: bn1\.bias 8 instead of 4, .* and \d+ more"):
        build("small_resnet", 7, width=4, weights=str(tmp_path / "w.pth"))
    torch.save({"model": build("small_resnet", 7).state_dict()}, tmp_path / "nested.pth")
    with pytest.raises(ValueError, match="holds no state dict"):
        build("small_resnet", 7, weights=str(tmp_path / "nested.pth"))
    with pytest.raises(ValueError, match="neither a file nor the folder of a run"):
        build("small_resnet", 7, weights="nowhere")


def test_a_checkpoint_cannot_run_code(tmp_path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return (tmp_path.joinpath("ran").touch, ())

    torch.save({"fc.weight": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        build("imagenet_resnet18", 3, weights=tmp_path / "evil.pth")
    assert not tmp_path.joinpath("ran").exists()


def test_unknown_names_and_options_suggest_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'resnet18'"):
        build("resnet81", 10)
    with pytest.raises(ValueError, match="did you mean 'width'"):
        build("small_resnet", 10, widht=3)
    with pytest.raises(ValueError, match="unknown option of resnet18 'maker'"):
        build("resnet18", 10, maker=1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("wrn28_10", {"depth": 27}),
        ("wrn28_10", {"width": 0}),
        ("pyramidnet110", {"depth": 111}),
        ("pyramidnet110", {"alpha": -1}),
        ("small_resnet", {"blocks": 0}),
        ("vit_b_16", {"image_size": 30}),
        ("vit_b_16", {"width": 10, "heads": 3}),
        ("resnet18", {"normalisation": "nobody"}),
    ],
)
def test_sizes_that_cannot_be_built_are_errors(name: str, options: dict) -> None:
    with pytest.raises(ValueError, match="|".join(str(value) for value in options.values())):
        build(name, 10, **options)
    with pytest.raises(ValueError, match="classes"):
        build(name, 0)

"""torchvision's models for 224 x 224 images: ResNets from scratch or pretrained, and ViT-B/16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torchvision.models as tv
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from lesam.lab.models.weights import load_body, read_state


def _imagenet_resnet(
    classes: int,
    *,
    weights: str | Path | None = None,
    maker: Callable[..., tv.ResNet],
    named: type[tv.WeightsEnum],
) -> tv.ResNet:
    model = maker(num_classes=classes)
    if weights is not None:
        load_body(model, read_state(weights, named), weights)
    return model


# Each takes `classes` and the option `weights`: None (from scratch), a local file, or torchvision's name.
imagenet_resnet18 = functools.partial(_imagenet_resnet, maker=tv.resnet18, named=tv.ResNet18_Weights)
imagenet_resnet50 = functools.partial(_imagenet_resnet, maker=tv.resnet50, named=tv.ResNet50_Weights)
imagenet_resnet101 = functools.partial(_imagenet_resnet, maker=tv.resnet101, named=tv.ResNet101_Weights)


def vit_b_16(
    classes: int,
    *,
    weights: str | Path | None = None,
    image_size: int = 224,
    patch: int = 16,
    layers: int = 12,
    heads: int = 12,
    width: int = 768,
    dropout: float = 0.0,
) -> VisionTransformer:
    """Build torchvision's ViT-B/16 with a new head ``Linear(width, classes)``.

    The head starts at zero, torchvision's and the usual choice for fine-tuning. At an image size other
    than the weights' own, the position embeddings are interpolated.

    Args:
        classes: Outputs of the new head.
        weights: ``None`` for a fresh model, the path of a local state dict (``.safetensors`` or ``.pth``),
            or ``"IMAGENET1K_V1"``, which torchvision downloads.
        image_size: Side of the input images.
        patch: Side of a patch; 16 in ViT-B/16.
        layers: Encoder layers.
        heads: Attention heads.
        width: Token width; the hidden layers of the encoder are four times as wide.
        dropout: Dropout probability; 0 in the published recipe.

    Example:
        >>> tiny = vit_b_16(10, image_size=32, layers=1, heads=2, width=16)
        >>> tiny.heads.head
        Linear(in_features=16, out_features=10, bias=True)
    """
    if image_size % patch:
        raise ValueError(f"image_size must be a multiple of patch, got {image_size} and {patch}")
    if width % heads:
        raise ValueError(f"width must be a multiple of heads, got {width} and {heads}")
    model = VisionTransformer(image_size, patch, layers, heads, width, 4 * width, dropout=dropout, num_classes=classes)
    if weights is not None:
        state = read_state(weights, tv.ViT_B_16_Weights)
        embedding = state.get("encoder.pos_embedding")
        if embedding is not None and embedding.shape[1] != model.seq_length:
            state = dict(interpolate_embeddings(image_size, patch, state))
        load_body(model, state, weights)
    return model

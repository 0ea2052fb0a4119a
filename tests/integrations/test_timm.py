"""timm: its optimizers as bases, its layer-decay groups, its schedulers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from timm.scheduler import CosineLRScheduler
from torch import nn
from torch.nn import functional as F

import lesam

from ..reference.lesam import LESAMReference
from ..reference.lesam_plus import LESAMPlusReference
from .problems import assert_resumes

OPTIMIZERS = ["sgd", "sgdw", "adamw", "lamb", "lion", "nadamw", "adan", "adafactorbv"]


def vit() -> nn.Module:
    """Without the bias of the keys, whose gradient is zero: sign-like optimizers would step along its rounding."""
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=16,
        patch_size=8,
        embed_dim=12,
        depth=2,
        num_heads=2,
        num_classes=3,
        qkv_bias=False,
    ).double()


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 4, 3, 16, 16, generator=generator, dtype=torch.float64)
    return [(image, torch.tensor([0, 1, 2, 0])) for image in images]


def run(opt: Any, model: nn.Module, data: Any, scheduler: Any = None, start: int = 0) -> None:
    for number, (x, y) in enumerate(data, start=start):
        if scheduler is not None:
            scheduler.step_update(number)

        def closure(x: Any = x, y: Any = y) -> torch.Tensor:
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.step(closure)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("plus", [False, True])
def test_bases_equal_the_long_hand(name: str, plus: bool) -> None:
    model, reference = vit(), vit()
    settings = {"lr": 0.01, "weight_decay": 0.05}
    opt_class, reference_class = (lesam.LESAMPlus, LESAMPlusReference) if plus else (lesam.LESAM, LESAMReference)
    options: dict[str, Any] = {"sigma": 0.05, "rho_max": None, **({"alpha": 0.5} if plus else {})}
    run(opt_class(create_optimizer_v2(model, opt=name, **settings), model=model, **options), model, batches(3))
    base = create_optimizer_v2(reference, opt=name, **settings)
    parameters = [p for group in base.param_groups for p in group["params"]]
    run(reference_class(parameters, base, **options), reference, batches(3))
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def layered(model: nn.Module) -> lesam.SharpnessAware:
    groups = param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.5)
    base = create_optimizer_v2(groups, opt="adamw", lr=0.01)
    return lesam.FriendlySAM(base, rho=0.05, model=model)


def cosine(opt: torch.optim.Optimizer) -> CosineLRScheduler:
    return CosineLRScheduler(opt, t_initial=8, warmup_t=2, warmup_lr_init=1e-4, t_in_epochs=False)


def test_layer_decay_and_schedule() -> None:
    """Each group's rate is the schedule's times its layer's scale, before and after the warm-up."""
    model = vit()
    opt = layered(model)
    scheduler = cosine(opt)
    for number, wanted in ((0, 1e-4), (1, 1e-4 + 0.5 * (0.01 - 1e-4)), (4, 0.01 * 0.5)):
        run(opt, model, batches(1), scheduler, start=number)
        scales = [group["lr_scale"] for group in opt.param_groups]
        assert len(set(scales)) > 2
        assert [group["lr"] for group in opt.base.param_groups] == pytest.approx([wanted * scale for scale in scales])


def test_resume_with_layer_decay_and_schedule() -> None:
    saved: dict[str, Any] = {}

    def train(model: nn.Module, part: str, begin: Callable[[], None]) -> None:
        opt = layered(model)
        things = {"model": model, "opt": opt, "scheduler": cosine(opt)}
        if part == "second":
            for name, thing in things.items():
                thing.load_state_dict(saved[name])
        begin()
        start, stop = {"whole": (0, 6), "first": (0, 3), "second": (3, 6)}[part]
        run(opt, model, batches(6)[start:stop], things["scheduler"], start=start)
        if part == "first":
            saved.update({name: copy.deepcopy(thing.state_dict()) for name, thing in things.items()})

    assert_resumes(vit, train)

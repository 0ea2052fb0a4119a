"""ViT-B/16, pretrained on ImageNet-1K, fine-tuned on CIFAR for 8,000 steps.

The paper gives the checkpoint and the number of steps. Everything else here is the usual fine-tuning recipe
(Dosovitskiy et al.: SGD with momentum, warm-up of 500 steps, cosine, norm of the final gradient clipped to 1).
"""

from __future__ import annotations

from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, CONFIGS
from lesam.lab.config.run import DataConfig, ModelConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes.small import small_run
from lesam.lab.recipes.smoke import smoke_run
from lesam.lab.recipes.strengths import vit_settings

STEPS = 8000
WARMUP = 500
BATCH = 128
EPOCHS = 21  # 8,000 steps of 128 images are 20.5 epochs of 50,000


def vit(data: str, method: str, scale: str, seed: int) -> RunConfig:
    """A fine-tuning run; the smaller scales train a small transformer from scratch."""
    name = f"vit-{data}"
    if scale == "smoke":
        tiny = {"image_size": 16, "patch": 4, "layers": 1, "heads": 2, "width": 16}
        per_step: dict[str, Any] = {"lr_per": "step", "lr_warmup": 2, "budget_per": "step", "steps": 7}
        return smoke_run(name, method, seed, ModelConfig(name="vit_b_16", options=tiny), **per_step)
    if scale == "small":
        small = {"image_size": 16, "patch": 4, "layers": 4, "heads": 4, "width": 96}
        return small_run(name, data, method, seed, ModelConfig(name="vit_b_16", options=small))
    common: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.0, "max_norm": 1.0}
    if method in ADAPTIVE:
        common |= {"lr": 1e-4}
    return RunConfig(
        recipe=name,
        scale=scale,
        seed=seed,
        data=DataConfig(name=data, augment="vit", batch_size=BATCH, eval_batch_size=256),
        model=ModelConfig(name="vit_b_16", options={"weights": "IMAGENET1K_V1"}),
        optimizer=CONFIGS[method](**common, **vit_settings(method)),
        schedule=ScheduleConfig(
            epochs=EPOCHS,
            steps=STEPS,
            lr_per="step",
            lr_warmup=WARMUP,
            budget_per="step",
            budget_anneal_start=STEPS * 4 // 5 if method in ("lesam", "lesamplus") else None,
        ),
    )

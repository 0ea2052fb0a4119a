"""ImageNet from scratch: ResNet-50 and ResNet-101."""

from __future__ import annotations

from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, CONFIGS, PLAIN
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes.small import small_run
from lesam.lab.recipes.smoke import smoke_run
from lesam.lab.recipes.strengths import imagenet_settings


def imagenet(backbone: str, method: str, scale: str, seed: int) -> RunConfig:
    """A run on a folder with ImageNet's layout; the smaller scales use small networks and images."""
    name = f"imagenet-{backbone}"
    if scale == "smoke":
        model = ModelConfig(name="imagenet_resnet18")
        return smoke_run(name, method, seed, model, image_size=32, epochs=2, steps=5)
    if scale == "small":
        return small_run(name, "cifar100", method, seed, ModelConfig(name="small_resnet", options={"width": 32}))
    # Paper, appendix, table of hyper-parameters on ImageNet.
    common: dict[str, Any] = {"lr": 0.2, "weight_decay": 1e-4}
    if method in ADAPTIVE:  # not in the paper; torch's defaults
        common = {"lr": 1e-3, "weight_decay": ADAPTIVE[method]}
    if method not in PLAIN:
        # One perturbation for each worker is the convention of SAM, ESAM and GSAM on several devices.
        common["perturbation"] = "local"
    return RunConfig(
        recipe=name,
        scale=scale,
        seed=seed,
        data=DataConfig(name="imagefolder", augment="imagenet", batch_size=512, eval_batch_size=256),
        model=ModelConfig(name=f"imagenet_{backbone}"),
        optimizer=CONFIGS[method](**common, **imagenet_settings(method)),
        schedule=ScheduleConfig(
            epochs=90,
            # No warm-up is stated; schedule.lr_warmup=5 is the usual choice for large batches.
            budget_anneal_start=60 if method in ("lesam", "lesamplus") else None,
        ),
        record=RecordConfig(checkpoint_steps=1000, keep_epochs=(45, 60, 90)),
    )

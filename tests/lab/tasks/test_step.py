"""The loop takes the steps the optimizers promise: against long-hand loops written with torch alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision.amp import MixedPrecision
from safetensors.torch import load_file
from torch.nn import functional

from lesam.lab import models, recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.data import Batches, augmentation, load
from lesam.lab.data.seeds import mix
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent
from tests.reference import PartialLESAMReference

EXACT = ["system.precision=64-true", "system.channels_last=off", "data.augment=none", "record.steps_every=1"]


def smoke(method: str, *changes: str) -> RunConfig:
    return override(recipes.build("digits", method=method, scale="smoke"), [*EXACT, *changes])


def final_weights(config: RunConfig, runs: Path) -> dict[str, torch.Tensor]:
    train(config, runs=runs, progress=Silent())
    (path,) = (runs / config.folder_name / "checkpoints").glob("*/weights.safetensors")
    return load_file(path)


def long_hand(
    config: RunConfig, *, sigma: float | None, start: int = 0, every: int = 1, only: str = ""
) -> dict[str, torch.Tensor]:
    """SGD with momentum, and from epoch ``start`` on LE-SAM's two passes in every so many steps, written out.

    Parameters whose names begin with ``only`` are climbed.
    """
    optimizer: Any = config.optimizer
    splits = load(config.data.name, **config.data.options)
    torch.manual_seed(mix("weights", config.seed))
    model = models.build(config.model.name, splits.classes, **config.model.options).double()
    augment = augmentation("none", dtype=torch.float64, normalisation=config.data.normalisation)
    batches = Batches(splits.train, config.data.batch_size, augment, device="cpu", seed=config.seed)
    parameters = list(model.parameters())
    climbs = [name.startswith(only) for name, _ in model.named_parameters()]
    momentum = [torch.zeros_like(p) for p in parameters]
    step = -1
    for epoch in range(config.schedule.epochs):
        lr = optimizer.lr * (1 + math.cos(math.pi * epoch / config.schedule.epochs)) / 2
        anneal = config.schedule.in_epochs().budget_anneal_start
        length = config.schedule.epochs - (anneal or 0)
        for images, labels in batches.epoch(epoch):
            step += 1
            grads = torch.autograd.grad(functional.cross_entropy(model(images), labels), parameters)
            if sigma is not None and epoch >= start and step % every == 0:
                budget = sigma
                if anneal is not None and epoch >= anneal:
                    turn = 1.0 if length <= 1 else (epoch - anneal) / (length - 1)
                    budget = sigma / 2 * (1 + math.cos(math.pi * turn))
                norm = torch.cat([g.flatten() for g, climbed in zip(grads, climbs, strict=True) if climbed]).norm()
                rho = min(budget / (float(norm) + optimizer.varrho), optimizer.rho_max or math.inf)
                kept = [p.detach().clone() for p in parameters]
                buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
                with torch.no_grad():
                    for p, g, climbed in zip(parameters, grads, climbs, strict=True):
                        p.add_(rho * g / norm if climbed else 0.0)
                grads = torch.autograd.grad(functional.cross_entropy(model(images), labels), parameters)
                with torch.no_grad():
                    for p, w in zip(parameters, kept, strict=True):
                        p.copy_(w)
                    for name, buffer in model.named_buffers():
                        buffer.copy_(buffers[name])
            with torch.no_grad():
                for p, g, m in zip(parameters, grads, momentum, strict=True):
                    m.mul_(optimizer.momentum).add_(g + optimizer.weight_decay * p)
                    p.sub_(lr * m)
    return dict(model.state_dict())


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-12)


def test_sgd_is_torchs_sgd_with_cosine_decay(tmp_path: Path) -> None:
    config = smoke("sgd", "schedule.epochs=3", "record.keep=1")
    assert_close(final_weights(config, tmp_path), long_hand(config, sigma=None))


def test_lesam_is_algorithm_1_with_annealing_and_clean_batch_norm(tmp_path: Path) -> None:
    config = smoke("lesam", "schedule.epochs=4", "schedule.budget_anneal_start=2", "record.keep=1")
    assert_close(final_weights(config, tmp_path), long_hand(config, sigma=0.35))


def test_norm_layers_alone_can_be_climbed_and_everything_is_descended(tmp_path: Path) -> None:
    config = smoke("lesam", "schedule.epochs=4", "optimizer.perturb=norms", "record.keep=1")
    assert config.fingerprint != smoke("lesam", "schedule.epochs=4", "record.keep=1").fingerprint
    assert_close(final_weights(config, tmp_path), long_hand(config, sigma=0.35, only="norms."))


@pytest.mark.parametrize(("share", "weight"), [(0.2, 3.0), (0.5, None)])
def test_partial_lesam_climbs_on_the_first_images_of_a_batch(
    share: float, weight: float | None, tmp_path: Path
) -> None:
    chosen = (f"optimizer.share={share}", f"optimizer.weight={'null' if weight is None else weight}")
    settings = (*chosen, "optimizer.sigma=0.2", "schedule.epochs=4", "record.keep=1")
    config = smoke("partiallesam", "schedule.budget_anneal_start=null", *settings)
    splits = load(config.data.name, **config.data.options)
    torch.manual_seed(mix("weights", config.seed))
    model = models.build(config.model.name, splits.classes, **config.model.options).double()
    augment = augmentation("none", dtype=torch.float64, normalisation=config.data.normalisation)
    batches = Batches(splits.train, config.data.batch_size, augment, device="cpu", seed=config.seed)
    base = torch.optim.SGD(
        model.parameters(), lr=0.0, momentum=config.optimizer.momentum, weight_decay=config.optimizer.weight_decay
    )
    reference = PartialLESAMReference(list(model.parameters()), base, sigma=0.2, weight=weight)

    def passing(images: torch.Tensor, labels: torch.Tensor, keep: bool) -> Callable[[], torch.Tensor]:
        def closure() -> torch.Tensor:
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            base.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            if not keep:  # statistics follow the pass on the whole batch
                model.load_state_dict(before, strict=False)
            return loss

        return closure

    for epoch in range(4):
        base.param_groups[0]["lr"] = config.optimizer.lr * (1 + math.cos(math.pi * epoch / 4)) / 2
        for images, labels in batches.epoch(epoch):
            few = passing(images[: round(share * len(images))], labels[: round(share * len(images))], False)
            reference.step(passing(images, labels, True), ascent=few, share=share)
    assert_close(final_weights(config, tmp_path), dict(model.state_dict()))
    last = RunFolder.of(config, tmp_path).summary()["last"]  # type: ignore[index]
    assert last["passes"] == pytest.approx(1 + share)
    assert last["train_loss"] is None  # of the whole batch at the weights themselves, which nobody has seen


def test_what_has_no_part_of_a_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"climbs on a part of the batch \(optimizer\.share=0\.1\).*set optimizer\.share=1"
    ):
        final_weights(smoke("partiallesam", "optimizer.micro_batches=2"), tmp_path)


def test_norm_layers_are_refused_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no norm layer"):
        final_weights(smoke_signals("optimizer.perturb=norms"), tmp_path)
    with pytest.raises(ValueError, match="plain sgd perturbs nothing"):
        smoke("sgd", "optimizer.perturb=norms")


def test_switch_takes_plain_steps_first_and_carries_momentum(tmp_path: Path) -> None:
    changes = ("schedule.epochs=4", "schedule.switch_at=2", "schedule.budget_anneal_start=none", "record.keep=1")
    config = smoke("lesam", *changes)
    assert_close(final_weights(config, tmp_path), long_hand(config, sigma=0.35, start=2))
    passes = [row["passes"] for row in RunFolder.of(config, tmp_path).metrics()]
    assert passes == [1, 1, 2, 2]


def test_every_second_step_is_the_methods_and_the_others_are_the_bases(tmp_path: Path) -> None:
    config = smoke("lesam", "schedule.epochs=4", "schedule.every=2", "record.keep=1")
    assert_close(final_weights(config, tmp_path), long_hand(config, sigma=0.35, every=2))
    passes = [row["passes"] for row in RunFolder.of(config, tmp_path).metrics()]
    assert passes == pytest.approx([5 / 3, 4 / 3, 5 / 3, 4 / 3])  # three steps an epoch


def test_fresh_momentum_is_another_trajectory_with_the_same_prefix(tmp_path: Path) -> None:
    changes = ("schedule.epochs=3", "schedule.switch_at=2", "record.keep_epochs=2")
    carried = smoke("lesam", *changes)
    fresh = override(carried, ["schedule.carry_momentum=false"])
    folders = []
    for config in (carried, fresh):
        train(config, runs=tmp_path, progress=Silent())
        folders.append(tmp_path / config.folder_name / "checkpoints")
    steps = sorted(path.name for path in folders[0].iterdir())
    at_switch, last = ([load_file(folder / step / "weights.safetensors") for folder in folders] for step in steps[-2:])
    assert all(torch.equal(at_switch[0][name], at_switch[1][name]) for name in at_switch[0])
    assert not all(torch.equal(last[0][name], last[1][name]) for name in last[0])


def test_rows_say_what_the_steps_saw(tmp_path: Path) -> None:
    config = smoke("lesam", "schedule.epochs=2", "optimizer.rho_max=0.05", "schedule.budget_anneal_start=none")
    train(config, runs=tmp_path, progress=Silent())
    folder = RunFolder.of(config, tmp_path)
    steps = folder.steps()
    assert [row["step"] for row in steps] == list(range(6))
    assert [row["epoch"] for row in steps] == [0, 0, 0, 1, 1, 1]
    for row in steps:
        expected = min(0.35 / row["grad_norm"], 0.05)
        assert row["rho"] == pytest.approx(expected, rel=1e-5)
        assert row["capped"] == float(0.35 / row["grad_norm"] > 0.05)
        assert row["sharpness"] == pytest.approx(row["perturbed_loss"] - row["train_loss"], abs=1e-5)
        assert row["sigma"] == pytest.approx(0.35)
    epochs = folder.metrics()
    for epoch, row in enumerate(epochs):
        window = steps[3 * epoch : 3 * epoch + 3]
        assert row["rho"] == pytest.approx(sum(item["rho"] for item in window) / 3)
        assert row["rho_min"] == pytest.approx(min(item["rho"] for item in window))
        assert row["rho_max"] == pytest.approx(max(item["rho"] for item in window))
        assert row["capped"] == pytest.approx(sum(item["capped"] for item in window) / 3)
    assert epochs[-1]["best_test_accuracy"] == max(row["test_accuracy"] for row in epochs)


def test_clipping_bounds_the_step_of_plain_sgd(tmp_path: Path) -> None:
    config = smoke("sgd", "optimizer.max_norm=0.01", "optimizer.momentum=0", "optimizer.weight_decay=0")
    torch.manual_seed(mix("weights", config.seed))
    start = models.build(config.model.name, 10, **config.model.options).double()
    last = final_weights(override(config, ["record.keep=1"]), tmp_path)
    moved = torch.cat([(last[name] - p.detach()).flatten() for name, p in start.named_parameters()]).norm()
    steps = 2 * 3
    assert 0 < float(moved) <= steps * config.optimizer.lr * 0.01 * (1 + 1e-9)


@pytest.mark.parametrize("method", ["sgd", "lesam", "esam", "eigensam", "msam", "crsam"])
def test_bfloat16_runs(method: str, tmp_path: Path) -> None:
    config = override(
        recipes.build("digits", method=method, scale="smoke"), ["system.precision=bf16-mixed", "schedule.epochs=1"]
    )
    summary = train(config, runs=tmp_path, progress=Silent())
    assert (summary["last"]["train_loss"] or summary["last"]["perturbed_loss"]) is not None


@pytest.mark.parametrize("method", ["sgd", "lesam", "lesamplus", "eigensam", "msam", "aesam"])
def test_float16_with_a_loss_scaler_is_the_same_training_within_its_digits(method: str, tmp_path: Path) -> None:
    """The radius comes from unscaled gradients: a scale of 1024 that leaked into it would divide it by 1024."""
    changes = ["record.steps_every=1", "schedule.budget_anneal_start=none", "schedule.epochs=1"]
    config = override(recipes.build("digits", method=method, scale="smoke"), changes)
    train(config, runs=tmp_path / "full", progress=Silent())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    half = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
    train(config, runs=tmp_path / "half", progress=Silent(), fabric=half)
    full_rows, half_rows = (RunFolder.of(config, tmp_path / where).steps() for where in ("full", "half"))
    for name in ("train_loss", "perturbed_loss", "rho", "grad_norm"):
        for row, other in zip(full_rows, half_rows, strict=True):
            if row[name] is not None:
                assert other[name] == pytest.approx(row[name], rel=0.1), name


@pytest.mark.parametrize("method", ["esam", "crsam"])
def test_methods_without_a_float16_path_say_so(method: str, tmp_path: Path) -> None:
    config = recipes.build("digits", method=method, scale="smoke")
    half = Fabric(
        accelerator="cpu",
        devices=1,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))],
    )
    with pytest.raises(ValueError, match="bf16-mixed"):
        train(config, runs=tmp_path, progress=Silent(), fabric=half)


@pytest.mark.parametrize("method", ["sam", "lesam", "lesamplus"])
def test_micro_batches_of_a_global_perturbation_are_the_whole_batch(method: str, tmp_path: Path):
    changes = ["data.drop_last=true", "optimizer.batch_norm=clean"]
    config = override(recipes.build("mnist1d-mlp", method=method, scale="smoke"), [*EXACT, *changes])
    whole = final_weights(config, tmp_path / "a")
    parts = final_weights(override(config, ["optimizer.micro_batches=4"]), tmp_path / "b")
    for name, weight in whole.items():
        assert torch.allclose(weight, parts[name], rtol=1e-9, atol=1e-12), name


def test_local_micro_batches_each_climb_their_own_way(tmp_path: Path):
    config = override(
        recipes.build("mnist1d-mlp", method="sam", scale="smoke"),
        [*EXACT, "optimizer.micro_batches=2", "optimizer.perturbation=local", "schedule.steps=3"],
    )
    optimizer: Any = config.optimizer
    found = final_weights(config, tmp_path)
    splits = load(config.data.name, **config.data.options)
    torch.manual_seed(mix("weights", config.seed))
    model = models.build(config.model.name, splits.classes, **config.model.options).double()
    augment = augmentation("none", dtype=torch.float64, normalisation="as_is")
    batches = Batches(splits.train, config.data.batch_size, augment, device="cpu", seed=config.seed)
    base = torch.optim.AdamW(model.parameters(), lr=optimizer.lr, weight_decay=optimizer.weight_decay)
    parameters = list(model.parameters())
    for _, (signals, labels) in zip(range(3), batches.epoch(0), strict=False):
        sums = [torch.zeros_like(weight) for weight in parameters]
        for half in (slice(0, 10), slice(10, 20)):

            def gradient(half: slice = half) -> tuple[torch.Tensor, ...]:
                loss = functional.cross_entropy(model(signals[half]), labels[half])  # noqa: B023
                return torch.autograd.grad(loss, parameters)

            before, climbed = [weight.detach().clone() for weight in parameters], gradient()
            norm = torch.cat([one.flatten() for one in climbed]).norm()
            with torch.no_grad():
                for weight, one in zip(parameters, climbed, strict=True):
                    weight += optimizer.rho * one / norm
            for total, one in zip(sums, gradient(), strict=True):
                total += one / 2
            with torch.no_grad():
                for weight, old in zip(parameters, before, strict=True):
                    weight.copy_(old)
        for weight, total in zip(parameters, sums, strict=True):
            weight.grad = total
        base.step()
    for name, weight in model.state_dict().items():
        assert torch.allclose(weight, found[name], rtol=1e-7, atol=1e-10), name


def test_micro_batches_that_do_not_divide_the_batch_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="20 images has no 3 equal parts"):
        final_weights(smoke_signals("optimizer.micro_batches=3"), tmp_path)
    with pytest.raises(ValueError, match="micro_batches must be at least 1"):
        smoke_signals("optimizer.micro_batches=0")


def smoke_signals(*changes: str) -> RunConfig:
    return override(recipes.build("mnist1d-mlp", method="sam", scale="smoke"), changes)


@pytest.mark.parametrize(("perturb", "least", "most"), [("norms", 0.66, 0.75), ("all", 1.0, 1.0)])
def test_the_first_pass_on_a_part_computes_what_is_climbed_alone(
    tmp_path: Path, perturb: str, least: float, most: float
) -> None:
    """A part's pass costs two thirds and a little where norm layers alone are climbed."""
    changes = (f"optimizer.perturb={perturb}", "optimizer.share=0.25", "optimizer.weight=null")
    config = override(recipes.build("digits", method="partiallesam", scale="smoke"), changes)
    train(config, runs=tmp_path, progress=Silent())
    (*_, last) = RunFolder.of(config, tmp_path).metrics()
    share = int(0.25 * config.data.batch_size) / config.data.batch_size
    assert least * share <= last["passes"] - 1 + 1e-6
    assert last["passes"] - 1 <= most * share + 1e-6

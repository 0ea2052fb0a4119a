"""GLMC's mixtures, loss and steps, against what was published, written out by hand."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lesam.lab import models, recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.data import Batches, augmentation, load
from lesam.lab.data.loading import plain_batches
from lesam.lab.data.seeds import generator, mix
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.restore import load_model
from lesam.lab.tasks.evaluate import evaluate
from lesam.lab.tasks.glmc import GLMC, CumulativeLoss, class_weights, cumulative, sampling_weights
from lesam.lab.tasks.mixing import Mixture, box_side
from lesam.lab.tasks.shots import group_accuracies
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent
from lesam.lab.training.session import Session
from tests.lab.running import BreakOff, assert_same_run

SHORT = ("schedule.epochs=2", "system.accelerator=cpu")
EXACT = ("system.precision=64-true", "system.channels_last=off", *SHORT)
COUNTS = [101, 21, 4, 1]  # of the smoke scale at an imbalance of 100


def smoke(method: str, *changes: str) -> RunConfig:
    return override(recipes.build("cifar100-lt100-glmc", method=method, scale="smoke"), [*EXACT, *changes])


def session_of(method: str, *changes: str) -> Session:
    config = smoke(method, *changes)
    session = Session(config, make_fabric(config.system))
    session.model.train()
    return session


def last_weights(folder: RunFolder) -> dict[str, Tensor]:
    return load_file(max(folder.checkpoints.iterdir()) / "weights.safetensors")


# ------------------------------------------------------------------ weights and schedule


def test_the_cumulative_weight() -> None:
    assert (cumulative(0, 200), cumulative(100, 200)) == (1.0, 0.75)
    session = session_of("sgd", "schedule.epochs=4")
    objective: Any = session.task.objective
    seen = []
    for epoch in range(4):
        session.task.objective.take(next(session.task.batches(epoch, 1)), epoch * 4 + 1)  # 4 steps an epoch
        seen.append(objective.a)
    assert seen == [1.0, 15 / 16, 12 / 16, 7 / 16]


def test_class_weights() -> None:
    found = class_weights(COUNTS, 1.2)
    powers = [count**-1.2 for count in COUNTS]
    assert found.tolist() == pytest.approx([4 * power / sum(powers) for power in powers])
    assert class_weights(COUNTS, 0.0).tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="class 1 has none"):
        class_weights([3, 0, 1], 1.2)


@pytest.mark.parametrize("power", [0.0, 0.2, 1.0])
def test_the_second_loader_draws_classes_by_their_size(power: float) -> None:
    """Share of class c proportional to n_c^(1 - r); Pearson's statistic stays within its usual range."""
    task: Any = session_of("sgd", f"task.resampling_power={power}").task
    assert isinstance(task, GLMC)
    labels, draws = task.parts.splits.train.labels, 200 * 127
    drawn = torch.cat([labels[task._loaders[2].order(epoch)] for epoch in range(200)])
    shares = torch.tensor(COUNTS, dtype=torch.float64) ** (1 - power)
    expected = draws * shares / shares.sum()
    statistic = float(((torch.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum())
    assert statistic < 16.3  # chi-square with 3 degrees of freedom exceeds it once in 1,000
    weights = sampling_weights(labels, COUNTS, power)
    assert torch.equal(weights, torch.tensor(COUNTS, dtype=torch.float64)[labels] ** -power)


# ------------------------------------------------------------------ batches and mixtures


def test_two_loaders_with_two_views_each() -> None:
    plain = session_of("sgd", "data.augment=none", "data.augment_options.padding=0")
    augmented = session_of("sgd")
    seen: list[Tensor] = []
    for batch, varied in zip(plain.task.batches(0, 0), augmented.task.batches(0, 0), strict=True):
        first, second, drawn_first, drawn_second, drawn_labels, labels = batch
        assert torch.equal(first, second)
        assert torch.equal(drawn_first, drawn_second)
        assert not torch.equal(varied[0], varied[1])
        assert not torch.equal(varied[2], varied[3])
        assert torch.equal(varied[5], labels)
        assert torch.equal(varied[4], drawn_labels)
        assert len(drawn_labels) == len(labels)
        seen.append(labels)
    assert torch.bincount(torch.cat(seen)).tolist() == COUNTS  # every image of the first loader once
    again = list(plain.task.batches(0, 2))
    assert torch.equal(again[-1][2], drawn_first)
    assert len(again) == len(seen) - 2


@pytest.mark.parametrize("side", [16, 32])
def test_the_box(side: int) -> None:
    for centre in range(side):
        assert box_side(side, centre, 1.0) == (centre, centre)
        for lam in (0.0, 0.19, 0.75, 0.9):
            start, stop = box_side(side, centre, lam)
            half = math.ceil(side * math.sqrt(1 - lam)) // 2
            inside = [pixel for pixel in range(side) if centre - half <= pixel < centre + half]
            assert list(range(start, stop)) == inside


def test_mixing_shares_one_lambda() -> None:
    mixture = Mixture(lam=0.3, rows=(1, 3), columns=(2, 5))
    x, other = torch.randn(2, 4, 3, 6, 6, dtype=torch.float64)
    assert torch.equal(mixture.whole(x, other), 0.3 * x + 0.7 * other)
    kept = x.clone()
    boxed = mixture.boxed(x, other)
    assert torch.equal(x, kept)  # the next pass finds its batch unchanged
    for row in range(6):
        for column in range(6):
            source = other if row in (1, 2) and column in (2, 3, 4) else x
            assert torch.equal(boxed[:, :, row, column], source[:, :, row, column])


def test_draws_are_uniform() -> None:
    mixtures = [Mixture.draw(8, 8, generator("mixture", 0, step)) for step in range(2000)]
    shares = torch.tensor([mixture.lam for mixture in mixtures]).sort().values
    # Kolmogorov's distance to the uniform distribution; above 1.95 / sqrt(n) once in 1,000.
    assert float((shares - torch.arange(2000) / 2000).abs().max()) < 1.95 / math.sqrt(2000)
    tiny = [mixture for mixture in mixtures if mixture.lam > 1 - 1 / 16]  # half a side of 1 pixel
    assert {row for mixture in tiny for row in range(*mixture.rows)} == set(range(8))


# ------------------------------------------------------------------ the loss


def long_hand_loss(model: Any, batch: tuple[Tensor, ...], mixture: Mixture, a: float, gamma: float) -> Tensor:
    """GLMC's loss, term by term."""
    x1, x2, drawn1, drawn2, drawn_y, y = batch
    lam = mixture.lam
    x_l = x2.clone()
    for row in range(*mixture.rows):
        for column in range(*mixture.columns):
            x_l[:, :, row, column] = drawn2[:, :, row, column]
    heads = []
    for view in (lam * x1 + (1 - lam) * drawn1, x_l):
        features = model.features(view)
        z = features @ model.projection.weight.T + model.projection.bias
        p = z @ model.predictor.weight.T + model.predictor.bias
        o, o_cb = (features @ fc.weight.T + fc.bias for fc in (model.fc, model.fc_cb))
        heads.append((o, o_cb, z, p))
    (o_g, cb_g, z_g, p_g), (o_l, cb_l, z_l, p_l) = heads
    powers = torch.tensor([count**-1.2 for count in COUNTS], dtype=torch.float64)
    sample = torch.arange(len(y))
    total = torch.zeros((), dtype=torch.float64)
    for share, labels in ((lam, y), (1 - lam, drawn_y)):
        weight = powers[labels] * len(COUNTS) / powers.sum()
        for o, cb in ((o_g, cb_g), (o_l, cb_l)):
            total = total + a * share * (o.exp().sum(1).log() - o[sample, labels]).mean()
            total = total + (1 - a) * share * (weight * (cb.exp().sum(1).log() - cb[sample, labels])).mean()
    for p, z in ((p_g, z_l.detach()), (p_l, z_g.detach())):
        total = total - gamma * ((p * z).sum(1) / (p.norm(dim=1) * z.norm(dim=1))).mean()
    return total


def drawn_mixture(session: Session, step: int) -> Mixture:
    return Mixture.draw(16, 16, generator("mixture", session.config.seed, step))


@pytest.mark.parametrize("step", [1, 6])
def test_the_loss_and_its_gradient(step: int) -> None:
    session = session_of("sgd", "task.gamma=3.5")
    objective: Any = session.task.objective
    assert isinstance(objective, CumulativeLoss)
    epoch, number = divmod(step, 4)
    batch = next(session.task.batches(epoch, number))
    objective.take(batch, step)
    parameters = list(session.module.parameters())
    found = objective.loss()
    expected = long_hand_loss(session.module, batch, drawn_mixture(session, step), 1 - (epoch / 2) ** 2, 3.5)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(objective.sample_losses().mean(), found)


def test_train_accuracy_is_of_the_class_that_dominates_the_mixture() -> None:
    session = session_of("sgd")
    batch = next(session.task.batches(0, 0))
    session.task.objective.take(batch, 0)
    session.task.objective.loss()
    mixture = drawn_mixture(session, 0)
    with torch.no_grad():
        answers = session.module(mixture.whole(batch[0], batch[2])).argmax(1)
    dominant = batch[5] if mixture.lam > 0.5 else batch[4]
    assert session.task.objective.correct == (answers == dominant).sum()


# ------------------------------------------------------------------ steps


def test_both_passes_see_the_same_mixtures_and_the_next_step_others() -> None:
    session = session_of("sam", "optimizer.rho=1e-9")
    seen: list[tuple[Tensor, Tensor]] = []
    session.module.register_forward_pre_hook(lambda _, views: seen.append(views))
    batches = list(session.task.batches(0, 0))
    before = torch.get_rng_state()
    for step in (0, 1):
        session.task.objective.take(batches[0], step)
    assert torch.equal(torch.get_rng_state(), before)
    for step in (0, 1):
        row, _ = session.task.step(batches[0], step)
        assert float(row[1]) == pytest.approx(float(row[0]), abs=1e-6)  # perturbed and clean loss
    assert len(seen) == 4
    for view in (0, 1):
        assert torch.equal(seen[0][view], seen[1][view])
        assert torch.equal(seen[2][view], seen[3][view])
        assert not torch.equal(seen[0][view], seen[2][view])


def long_hand_run(config: RunConfig, ascent_gamma: float) -> dict[str, Tensor]:
    """SAM around SGD with momentum: climbs the loss with one weight of the similarity, descends with another."""
    optimizer: Any = config.optimizer
    task: Any = config.task
    splits = load(config.data.name, **config.data.options)
    torch.manual_seed(mix("weights", config.seed))
    model = models.build(config.model.name, splits.classes, **config.model.options).double()
    augment: Any = augmentation("basic", dtype=torch.float64, normalisation="half", padding=2)
    drawn = mix("drawn", config.seed)
    weights = torch.ones(len(splits.train), dtype=torch.float64)  # r = 0
    settings: dict[str, Any] = {"device": "cpu"}
    loaders = [
        Batches(splits.train, 32, augment, seed=config.seed, **settings),
        Batches(splits.train, 32, augment, seed=config.seed, view=1, **settings),
        Batches(splits.train, 32, augment, seed=drawn, weights=weights, **settings),
        Batches(splits.train, 32, augment, seed=drawn, weights=weights, view=1, **settings),
    ]
    parameters = list(model.parameters())
    momentum, step = [torch.zeros_like(p) for p in parameters], 0
    for epoch in range(2):
        lr, a = optimizer.lr * (1 + math.cos(math.pi * epoch / 2)) / 2, 1 - (epoch / 2) ** 2
        for (x1, y), (x2, _), (u1, v), (u2, _) in zip(*(loader.epoch(epoch) for loader in loaders), strict=True):
            batch, mixture = (x1, x2, u1, u2, v, y), Mixture.draw(16, 16, generator("mixture", config.seed, step))
            # Without the similarity its heads have no gradient at all.
            loss = long_hand_loss(model, batch, mixture, a, ascent_gamma)
            grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
            norm = torch.cat([g.flatten() for g in grads]).norm()
            kept = [p.detach().clone() for p in parameters]
            with torch.no_grad():
                for p, g in zip(parameters, grads, strict=True):
                    p.add_(optimizer.rho * g / norm)
            grads = torch.autograd.grad(long_hand_loss(model, batch, mixture, a, task.gamma), parameters)
            with torch.no_grad():
                for p, w, g, m in zip(parameters, kept, grads, momentum, strict=True):
                    p.copy_(w)
                    m.mul_(optimizer.momentum).add_(g + optimizer.weight_decay * p)
                    p.sub_(lr * m)
            step += 1
    return dict(model.state_dict())


@pytest.mark.parametrize("ascent", ["full", "no_sim"])
def test_a_run_with_sam_is_the_long_hand_one(ascent: str, tmp_path: Path) -> None:
    """BatchNorm's statistics move in both passes, as in the paper's scale."""
    changes = (f"task.ascent={ascent}", "optimizer.batch_norm=both", "schedule.budget_anneal_start=none")
    config = smoke("sam", *changes)
    train(config, runs=tmp_path, progress=Silent())
    found = last_weights(RunFolder.of(config, tmp_path))
    expected = long_hand_run(config, 4.0 if ascent == "full" else 0.0)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-11)
    other = long_hand_run(config, 0.0 if ascent == "full" else 4.0)
    assert not all(torch.allclose(other[name], tensor, rtol=1e-6) for name, tensor in expected.items())


def test_esam_chooses_mixtures_by_their_losses_and_refuses_another_ascent(tmp_path: Path) -> None:
    summary = train(smoke("esam"), runs=tmp_path, progress=Silent())
    assert summary["last"]["passes"] < 2
    with pytest.raises(ValueError, match=r"esam .* task\.ascent=full"):
        session_of("esam", "task.ascent=no_sim")


@pytest.mark.parametrize("method", ["msam", "onepasslesam", "aesam"])
def test_another_ascent_is_refused_before_the_run_where_it_has_no_meaning(method: str) -> None:
    with pytest.raises(ValueError, match=rf"{method} .*task\.ascent=full"):
        session_of(method, "task.ascent=no_sim")


def test_a_network_without_the_heads_is_refused() -> None:
    config = override(recipes.build("cifar100-lt100-glmc", method="sgd", scale="smoke"), ["model.name=resnet32"])
    with pytest.raises(ValueError, match="four heads, resnet32_glmc; got resnet32"):
        Session(config, make_fabric(config.system))


@pytest.mark.parametrize(
    ("setting", "value"), [("resampling_power", "-1"), ("weight_power", "-0.5"), ("gamma", "-4"), ("ascent", "none")]
)
def test_settings_without_a_meaning_are_refused(setting: str, value: str) -> None:
    with pytest.raises(ValueError, match=setting):
        smoke("sam", f"task.{setting}={value}")


# ------------------------------------------------------------------ stops and workers


@pytest.mark.parametrize(("method", "ascent"), [("lesam", "no_sim"), ("esam", "full"), ("sgd", "full")])
def test_a_run_stopped_inside_an_epoch_resumes_bit_for_bit(method: str, ascent: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    config = override(
        recipes.build("cifar100-lt100-glmc", method=method, scale="smoke"),
        [f"task.ascent={ascent}", "record.checkpoint_steps=1", *SHORT],
    )
    train(config, runs=tmp_path / "whole", progress=Silent())
    for steps in (3, 4):  # stopped after step 3 (its checkpoint is that of step 2) and, later, after step 6
        with pytest.raises(ConnectionError):
            train(config, runs=tmp_path / "broken", progress=BreakOff(steps=steps))
    train(config, runs=tmp_path / "broken", progress=Silent())
    whole, broken = (RunFolder.of(config, tmp_path / name) for name in ("whole", "broken"))
    assert_same_run(whole, broken)
    assert len(broken.environments()) == 3


def test_two_processes_train_and_count_together(tmp_path: Path) -> None:
    """Heads that the ascent does not use must not leave a worker waiting; groups are counted over both workers."""
    changes = ("task.ascent=no_sim", "optimizer.batch_norm=both", "data.options.test_size=33", "schedule.epochs=2")
    result = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "lesam", "train", "cifar100-lt100-glmc", "--method", "lesam", "--scale", "smoke"),
            *("--strategy", "ddp", "--accelerator", "cpu", "-o", str(tmp_path)),
            *(part for change in changes for part in ("--set", change)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = tmp_path.iterdir()
    folder = RunFolder(path)
    row = folder.metrics()[-1]
    assert row["step"] == 2 * math.ceil(127 / 32)
    config = folder.config()
    model, _ = load_model(folder)
    splits = load(config.data.name, **config.data.options)
    score = evaluate(model, plain_batches(config, splits.test, batch_size=8).epoch(0), classes=4)
    assert score.accuracy == row["test_accuracy"]
    for name, accuracy in group_accuracies("test", score, COUNTS).items():
        assert row[name] == accuracy

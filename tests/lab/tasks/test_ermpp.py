"""ERM++ against long-hand torch."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.runs.folder import RunFolder
from lesam.lab.tasks.ermpp import ErmPlusPlus, classifier
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent
from lesam.lab.training.session import Session
from tests.lab.running import assert_equal


def smoke(method: str, *changes: str) -> RunConfig:
    return override(recipes.build("pacs-photo", method=method, scale="smoke"), ["system.accelerator=cpu", *changes])


# ERM++, one step after another

EXACT = (
    *("system.precision=64-true", "system.channels_last=off", "data.augment=none", "data.augment_options.padding=0"),
    *("record.steps_every=1", "task.two_passes=false", "task.check_every=4", "schedule.steps=12"),
    *("task.warm_start=3", "task.average_from=6", "optimizer.lr=0.01", "task.warm_start_lr=0.02"),
)


class Adam:
    """Kingma and Ba's algorithm 1."""

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        self.parameters, self.lr, self.time = parameters, lr, 0
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        self.time += 1
        for p, g, m, v in zip(self.parameters, gradients, self.m, self.v, strict=True):
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g * g)
            p.sub_(self.lr * (m / (1 - 0.9**self.time)) / ((v / (1 - 0.999**self.time)).sqrt() + 1e-8))


def long_hand(session: Session, budget: Any = None) -> list[dict[str, Tensor]]:
    """Weights after each step, from the weights and batches of a session that has not trained yet."""
    config, task = session.config, session.config.task
    model = copy.deepcopy(session.module).train()
    head = list(classifier(model).parameters())
    body = [p for p in model.parameters() if not any(p is q for q in head)]
    warm, main = Adam(head, task.warm_start_lr), Adam(list(model.parameters()), config.optimizer.lr)
    leaked = [torch.zeros_like(p) for p in body]
    trajectory = [copy.deepcopy(model.state_dict())]
    for step in range(session.times.steps):
        epoch, number = divmod(step, task.check_every)
        images, labels = next(session.data.train.epoch(epoch, start=number))

        def gradients(images: Tensor = images, labels: Tensor = labels) -> dict[Tensor, Tensor]:
            loss = functional.cross_entropy(model(images), labels)
            return dict(zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True))

        found = gradients()
        if step < task.warm_start:
            warm.step([found[p] for p in head])
            leaked = [total + found[p] for total, p in zip(leaked, body, strict=True)]
        else:
            if step == task.warm_start and task.leak_gradients:
                found |= {p: found[p] + total for p, total in zip(body, leaked, strict=True)}
            if budget is not None:
                buffers = {name: value.clone() for name, value in model.named_buffers()}
                kept = [p.detach().clone() for p in model.parameters()]
                norm = math.sqrt(sum(float((g * g).sum()) for g in found.values()))
                rho = min(budget(step) / (norm + config.optimizer.varrho), config.optimizer.rho_max or math.inf)
                with torch.no_grad():
                    for p, g in found.items():
                        p.add_(rho / norm * g)
                found = gradients()
                with torch.no_grad():
                    for p, w in zip(model.parameters(), kept, strict=True):
                        p.copy_(w)
                    for name, value in model.named_buffers():
                        value.copy_(buffers[name])
            main.step([found[p] for p in model.parameters()])
        trajectory.append(copy.deepcopy(model.state_dict()))
    return trajectory


def session_of(config: RunConfig) -> Session:
    session = Session(config, make_fabric(config.system))
    session.model.train()
    return session


def walk(session: Session) -> Any:
    """Train step by step; yields the number of steps taken."""
    while not session.finished:
        for batch in session.batches():
            session.advance(batch)
            yield session.step
        session.end_epoch()


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, tensor in found.items():
        torch.testing.assert_close(
            tensor, expected[name], rtol=1e-9, atol=1e-11, msg=lambda text, n=name: f"{n} {text}"
        )


@pytest.mark.parametrize("leak", [False, True])
@pytest.mark.parametrize("method", ["adam", "lesam"])
@pytest.mark.parametrize("batch_norm", ["forward", "average"])
def test_every_step_and_every_average_against_long_hand(method: str, leak: bool, batch_norm: str) -> None:
    """The mean of w_5..w_t from step 6 on; the warm start moves the classifier alone and leaks only when told to."""
    changes = [f"task.leak_gradients={leak}", f"task.average_batch_norm={batch_norm}"]
    budget = None
    if method == "lesam":  # annealed in the middle of an epoch, counted over warm start and main phase
        changes += ["schedule.budget_anneal_start=6", "optimizer.sigma=0.3", "optimizer.rho_max=none"]

        def budget(step: int) -> float:
            return 0.3 if step < 6 else 0.15 * (1 + math.cos(math.pi * (step - 6) / 5))

    session = session_of(smoke(method, *EXACT, *changes))
    task = session.task
    assert isinstance(task, ErmPlusPlus)
    expected = long_hand(session, budget)
    names = [name for name, _ in session.module.named_parameters()]
    statistics: Any = None
    for steps in walk(session):
        assert_close(dict(session.module.state_dict()), expected[steps])
        ours = task.average.network.state_dict()
        if steps < 6:
            assert_equal(dict(ours), dict(session.module.state_dict()))
            statistics = copy.deepcopy(session.module)
            continue
        averaged = expected[5 : steps + 1]
        means = {name: torch.stack([weights[name] for weights in averaged]).mean(0) for name in names}
        assert_close({name: ours[name] for name in names}, means)
        if batch_norm == "average":
            running = [name for name in ours if "running" in name]
            assert running
            means = {name: torch.stack([weights[name] for weights in averaged]).mean(0) for name in running}
            assert_close({name: ours[name] for name in running}, means)
        else:  # the network with the mean's weights sees this batch in training mode
            statistics.load_state_dict(means, strict=False)
            epoch, number = divmod(steps - 1, 4)
            statistics.train()(next(session.data.train.epoch(epoch, start=number))[0])
            assert_close(dict(ours), statistics.state_dict())
    assert steps == 12


def test_the_warm_start_touches_the_classifier_alone_while_batch_norm_moves() -> None:
    session = session_of(smoke("lesam", *EXACT))
    before = copy.deepcopy(session.module.state_dict())
    for steps in walk(session):
        if steps == 3:
            break
    moved = {name for name, value in session.module.state_dict().items() if not torch.equal(value, before[name])}
    assert moved - {name for name, _ in session.module.named_buffers()} == {"fc.weight", "fc.bias"}
    assert {name for name, _ in session.module.named_buffers()} <= moved
    assert all(parameter.grad is None for parameter in session.module.parameters())
    assert not session.optimizer.state


def test_budgets_and_switches_count_from_the_start_of_the_run(tmp_path: Path) -> None:
    def sigmas(*changes: str) -> list[float | None]:
        config = smoke("lesam", *EXACT, "optimizer.sigma=0.2", *changes)
        train(config, runs=tmp_path, progress=Silent())
        return [row["sigma"] for row in RunFolder.of(config, tmp_path).steps()]

    warm = [None] * 3
    by_step = [0.2 if step < 8 else 0.1 * (1 + math.cos(math.pi * (step - 8) / 3)) for step in range(3, 12)]
    assert sigmas("schedule.budget_anneal_start=8") == warm + [pytest.approx(value, abs=1e-7) for value in by_step]
    by_epoch = [0.2, *[0.2] * 4, *[0.0] * 4]  # three epochs of four steps, annealed from the last one on
    found = sigmas("schedule.budget_anneal_start=2", "schedule.budget_per=epoch")
    assert found == warm + [pytest.approx(value, abs=1e-7) for value in by_epoch]
    late = sigmas("schedule.switch_at=2")
    assert late == [None] * 8 + [pytest.approx(0.2)] * 4


def test_without_a_warm_start_the_main_optimizer_takes_every_step() -> None:
    session = session_of(smoke("adam", *EXACT, "task.warm_start=0"))
    expected = long_hand(session)
    for steps in walk(session):
        assert_close(dict(session.module.state_dict()), expected[steps])

"""The model of the last step can be looked at and saved wherever the step under way stands."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lesam
from lesam.optim._aside import at_last_step

from .cases import Case, batches, every_method_in_contexts, sgd

Snapshot = dict[str, Tensor]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Dropout(0.2), nn.Linear(7, 3)).double()


class Watched:
    """Trains in context style, and looks at the last step at every point of every pass."""

    def __init__(self, case: Case, watch: bool) -> None:
        self.model = network()
        self.opt = case.make(sgd(self.model), model=self.model)
        self.watch, self.looks = watch, 0
        self.last: tuple[Snapshot, Any] | None = None

    def look(self) -> None:
        if not self.watch:
            return
        with at_last_step(self.opt._loop):
            now = (self.model.state_dict(), self.opt.state_dict())
            assert self.last is not None
            assert all(torch.equal(now[0][name], value) for name, value in self.last[0].items())
            for number, entries in self.last[1]["state"].items():  # room for more may have been made
                saved = {key: now[1]["state"][number][key] for key in entries}
                torch.testing.assert_close(saved, entries, rtol=0, atol=0)
            with at_last_step(self.opt._loop), torch.random.fork_rng():
                self.model(torch.ones(2, 5, dtype=torch.float64))  # as an evaluation would, not even in eval mode
        self.looks += 1

    def backward(self, x: Tensor, y: Tensor) -> None:
        self.look()
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.look()  # autograd keeps weights and statistics of the forward until the backward
        loss.backward()
        self.look()

    def step(self, x: Tensor, y: Tensor) -> None:
        self.last = copy.deepcopy((self.model.state_dict(), self.opt.state_dict()))
        if self.opt.passes == 2:
            with self.opt.clean():
                self.backward(x[:8], y[:8])
                self.backward(x[8:], y[8:])
            self.look()
        with self.opt.perturbed():
            self.backward(x[:8], y[:8])
            self.backward(x[8:], y[8:])
        self.look()
        self.opt.step()


@every_method_in_contexts
def test_looking_at_the_last_step_changes_nothing(case: Case) -> None:
    """Bit for bit the same training, whether somebody looks or not; what is seen is the last step, in all phases."""
    watched, plain = Watched(case, watch=True), Watched(case, watch=False)
    for trained in (watched, plain):
        torch.manual_seed(1)
        for x, y in batches(3):
            trained.step(x, y)
    assert watched.looks >= 3 * 7
    for name, value in watched.model.state_dict().items():
        assert torch.equal(value, plain.model.state_dict()[name]), name


def test_a_refresh_can_be_set_aside_too() -> None:
    """Eigen-SAM's finite differences move the weights between steps."""
    model = network().eval()
    opt = lesam.EigenSAM(sgd(model), model=model, every=1, iterations=1)
    before, (x, y) = copy.deepcopy(model.state_dict()), next(batches(1))
    moved = []

    def closure() -> Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        moved.append(not torch.equal(model[0].weight, before["0.weight"]))
        with at_last_step(opt._loop):
            assert torch.equal(model[0].weight, before["0.weight"])
        loss.backward()
        return loss

    opt.refresh(closure)
    assert any(moved)


def test_what_cannot_be_done_there() -> None:
    model = network()
    opt = lesam.SAM(sgd(model))
    x, y = next(batches(1))
    with opt.clean():
        nn.functional.cross_entropy(model(x), y).backward()
        with at_last_step(opt._loop):
            for call in (opt.step, opt.clean().__enter__, lambda: opt.load_state_dict(opt.state_dict())):
                with pytest.raises(RuntimeError, match=r"set aside; .* looked at and saved"):
                    call()


@pytest.mark.parametrize("name", ["sam", "s2sam"])
def test_averaged_weights_of_a_step_under_way(name: str) -> None:
    """A schedule-free base can be evaluated in the middle of a pass: as if it had been evaluated before it."""
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")
    model, twin = network(), network()
    opt = lesam.METHODS[name](pytorch_optimizer.ScheduleFreeSGD(model.parameters(), lr=0.1), model=model)
    plain = lesam.METHODS[name](pytorch_optimizer.ScheduleFreeSGD(twin.parameters(), lr=0.1), model=twin)
    for x, y in batches(4):
        for trained, module, looks in ((opt, model, True), (plain, twin, False)):
            for one_pass in (trained.clean, trained.perturbed)[2 - trained.passes :]:
                with one_pass():
                    torch.manual_seed(1)
                    loss = nn.functional.cross_entropy(module(x), y)
                    if looks:
                        with at_last_step(opt._loop):
                            opt.eval()
                            averaged = copy.deepcopy(module.state_dict())
                            opt.train()
                    loss.backward()
            if not looks:
                continue
            copied = copy.deepcopy(twin.state_dict())
            plain.bases[0].eval()
            torch.testing.assert_close(averaged, dict(twin.state_dict()), rtol=1e-12, atol=1e-12)
            twin.load_state_dict(copied)
            for group in plain.param_groups:
                group["train_mode"] = True
        opt.step()
        plain.step()
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-10, atol=1e-10)

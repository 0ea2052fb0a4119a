"""Two passes over one mini-batch differ in the weights alone: every random number, and every buffer that is named."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lesam

from .cases import batches, closure_for, every_method, network, sgd
from .faults import both_styles, step_in_style, step_once

# ---------------------------------------------------------------------- random numbers


class Draws:
    """A generator of each kind, and what the passes drew from them."""

    def __init__(self) -> None:
        self.own = torch.Generator().manual_seed(3)
        self.seen: list[tuple[float, ...]] = []

    def draw(self) -> None:
        self.seen.append(
            (random.random(), np.random.rand(), float(torch.rand(())), float(torch.rand((), generator=self.own)))
        )


def two_steps(draws: Draws, style: str, **options: Any) -> None:
    model = network()
    opt = lesam.LESAM(sgd(model), model=model, **options)
    for x, y in batches(2):

        def run_pass(x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            draws.draw()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        step_in_style(opt, run_pass, style)


@both_styles
@pytest.mark.parametrize(("replay", "replayed"), [(False, 0), (True, 3), ("own", 4)])
def test_the_second_pass_draws_what_the_first_drew(style: str, replay: Any, replayed: int):
    """Python's, NumPy's, torch's and, if it is named, a generator of the user's own."""
    draws = Draws()
    two_steps(draws, style, replay_rng=[draws.own] if replay == "own" else replay)
    for first, second in (draws.seen[:2], draws.seen[2:]):
        assert [a == b for a, b in zip(first, second, strict=True)] == [True] * replayed + [False] * (4 - replayed)
    assert all(a != b for a, b in zip(draws.seen[1], draws.seen[2], strict=True))


def test_after_the_step_random_numbers_continue_as_after_one_pass():
    ends = []
    for replay in (True, None):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        draws = Draws()
        if replay is None:
            draws.draw()
            draws.draw()
        else:
            two_steps(draws, "closure", replay_rng=[draws.own])
        draws.draw()
        ends.append(draws.seen[-1])
    assert ends[0] == ends[1]


def test_a_one_pass_method_replays_nothing():
    draws, model = Draws(), network()
    opt = lesam.MSAM(sgd(model))
    x, y = next(batches(1))
    for _ in range(2):
        opt.step(lambda: (draws.draw(), closure_for(opt, model, x, y)())[1])
    assert all(a != b for a, b in zip(*draws.seen, strict=True))


@pytest.mark.parametrize("value", [1, "all", [3], torch.Generator()])
def test_what_cannot_be_replayed_is_refused(value: Any):
    with pytest.raises(ValueError, match="replay_rng must be True, False or a list"):
        lesam.SAM(sgd(), replay_rng=value)


def test_numpy_is_not_loaded_for_its_generator():
    """A process that does not use NumPy has no random numbers of its own to replay."""
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import torch, lesam\n"
        "w = torch.nn.Parameter(torch.ones(2)); opt = lesam.SAM(torch.optim.SGD([w], lr=0.1))\n"
        "def closure():\n    opt.zero_grad(); loss = w.square().sum(); loss.backward(); return loss\n"
        "opt.step(closure); print(opt.steps)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1", done.stderr


# ---------------------------------------------------------------------- buffers


class Remembering(nn.Module):
    """Buffers of several kinds that move in every forward: a queue, a counter, power iteration, running statistics."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.inner = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 7))
            self.norm, self.outer = nn.BatchNorm1d(7), nn.Linear(7, 3)
        self.register_buffer("queue", torch.zeros(4, 7, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.inner(x))
        self.queue = torch.cat([hidden.detach().mean(0, keepdim=True), self.queue[:-1]])  # another tensor each time
        self.calls += 1
        return self.outer(torch.tanh(hidden) + self.queue.mean(0))


NORM = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
VECTORS = {"inner.parametrizations.weight.0._u", "inner.parametrizations.weight.0._v"}
ALL = NORM | VECTORS | {"queue", "calls"}


@both_styles
@pytest.mark.parametrize(
    ("which", "put_back"),
    [
        ("batchnorm", NORM),
        ("all", ALL),
        (["queue", "calls"], {"queue", "calls"}),
        (sorted(VECTORS), VECTORS),
        ([], set()),
    ],
    ids=["batchnorm", "all", "some", "vectors", "none"],
)
def test_the_named_buffers_are_those_of_the_clean_pass(style: str, which: Any, put_back: set[str]):
    model = Remembering()
    opt = lesam.SAM(torch.optim.SGD(model.parameters(), lr=0.0), rho=2.0, model=model, buffers=which)
    x, y = next(batches(1))
    once, twice = Remembering(), Remembering()
    once(x)
    step_once(opt, model, (x, y), style)
    found = dict(model.named_buffers())
    assert set(found) == ALL
    for name, expected in once.named_buffers():
        assert torch.equal(found[name], expected) == (name in put_back), name
    twice(x), twice(x)
    assert (found["calls"] == twice.calls) == ("calls" not in put_back)


@every_method
def test_an_abandoned_step_leaves_no_buffer_moved(case):
    model = Remembering()
    opt = case.make(sgd(model), model=model, buffers="all")
    data = list(batches(3))
    step_once(opt, model, data[0])
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        loss = closure_for(opt, model, *data[1])()
        if calls == opt.passes:
            raise KeyboardInterrupt
        return loss

    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


@pytest.mark.parametrize("which", ["batchnorm", "all"])
def test_a_one_pass_step_puts_nothing_back(which: str):
    model, once = Remembering(), Remembering()
    opt = lesam.MSAM(torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9), model=model, buffers=which)
    x, y = next(batches(1))
    step_once(opt, model, (x, y))
    once(x)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), once.buffers(), strict=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"buffers": ["queu"], "model": Remembering()}, "'queu'.*did you mean queue"),
        ({"buffers": ["nothing like it"], "model": nn.Linear(2, 2)}, "'nothing like it'.*none"),
        ({"buffers": "everything", "model": Remembering()}, "'everything'"),
        ({"buffers": 3, "model": Remembering()}, "3"),
        ({"buffers": None, "model": Remembering()}, "None"),
        ({"buffers": "all"}, "model="),
    ],
)
def test_buffers_that_are_not_there_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        lesam.SAM(sgd(), **options)


def test_refresh_due_tells_when_contexts_need_a_refresh():
    model = network()
    opt = lesam.EigenSAM(sgd(model), every=2, iterations=1, when=lambda step: step != 4)
    due = []
    for batch in batches(6):
        due.append(opt.refresh_due)
        step_once(opt, model, batch)
    assert due == [False, False, True, False, False, False]
    assert not lesam.SAM(sgd()).refresh_due

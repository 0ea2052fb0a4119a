"""Activation checkpointing, averaged weights and schedulers: what people put around a model and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint

import lesam

from ..optim.cases import BASES, CLOSURES_ONLY, ONE_OF_EACH, Case, batches, closure_for, every_method, flat, network
from ..optim.faults import both_styles, model_bits, same_bits, step_once
from ..reference import REFERENCES

# ---------------------------------------------------------------------- activation checkpointing


class Checkpointed(nn.Module):
    """Its middle is computed again in the backward, dropout included, if asked."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.start = nn.Linear(5, 7)
            self.middle = nn.Sequential(nn.Tanh(), nn.Linear(7, 7), nn.Dropout(0.5), nn.Tanh())
            self.end = nn.Linear(7, 3)
        self.mode = mode
        self.calls = 0
        self.middle[1].register_forward_hook(lambda *_: setattr(self, "calls", self.calls + 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        if self.mode == "plain":
            return self.end(self.middle(x))
        return self.end(checkpoint(self.middle, x, use_reentrant=self.mode == "reentrant"))


@every_method
@both_styles
@pytest.mark.parametrize("mode", ["reentrant", "not reentrant"])
def test_activation_checkpointing_changes_no_number(case: Case, style: str, mode: str):
    results, calls = [], []
    for kind in ("plain", mode):
        model = Checkpointed(kind).double()
        opt = case.make(BASES["sgd"](model.parameters()), model=model)
        torch.manual_seed(3)
        for batch in batches(6):
            step_once(opt, model, batch, style)
        results.append(flat(list(model.parameters())))
        calls.append(model.calls)
    assert calls[1] == 2 * calls[0]  # it was computed again
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-13)


# ---------------------------------------------------------------------- averaged weights


@every_method
@both_styles
def test_an_average_sees_the_weights_between_steps(case: Case, style: str):
    model, decay = network(), 0.8
    opt = case.make(BASES["sgd"](model.parameters()))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    expected: Tensor | None = None
    for batch in batches(6):
        step_once(opt, model, batch, style)
        average.update_parameters(model)
        now = flat(list(model.parameters()))
        expected = now if expected is None else decay * expected + (1 - decay) * now
    torch.testing.assert_close(flat(list(average.module.parameters())), expected, rtol=1e-12, atol=0)


def test_stochastic_weight_averaging_with_its_schedule_and_batch_norm():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)).double()
    opt = lesam.LESAM(BASES["sgd"](model.parameters()), model=model)
    average, schedule = AveragedModel(model), SWALR(opt, swa_lr=0.01, anneal_epochs=2)
    data, path = list(batches(4)), []
    for batch in data:
        step_once(opt, model, batch)
        average.update_parameters(model)
        schedule.step()
        path.append(flat(list(model.parameters())))
    assert opt.base.param_groups[0]["lr"] == pytest.approx(0.01)
    torch.testing.assert_close(flat(list(average.module.parameters())), torch.stack(path).mean(0))
    update_bn(data, average)
    statistics = average.module[1]
    hidden = torch.stack([average.module[0](x).mean(0) for x, _ in data])
    torch.testing.assert_close(statistics.running_mean, hidden.mean(0))


# ---------------------------------------------------------------------- schedulers


def one_cycle(optimizer: Any) -> Callable[[Tensor], None]:
    scheduler = OneCycleLR(optimizer, max_lr=0.2, total_steps=12)
    return lambda loss: scheduler.step()


def on_plateau(optimizer: Any) -> Callable[[Tensor], None]:
    scheduler = ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.3)
    return lambda loss: scheduler.step(loss.detach())


@pytest.mark.parametrize("schedule", [one_cycle, on_plateau])
@pytest.mark.parametrize("on", ["wrapper", "base"])
@pytest.mark.parametrize("name", ["sam", "lesam", "gsam", "lesamplus", "friendlysam"])
@pytest.mark.filterwarnings("error")
def test_a_scheduled_run_equals_the_long_hand_method_under_the_same_schedule(name: str, on: str, schedule: Any):
    case = next(case for case in ONE_OF_EACH if case.name == name)
    model, other = network(), network()
    opt = case.make(BASES["sgd"](model.parameters()))
    base = BASES["sgd"](other.parameters())
    reference = REFERENCES[name](list(other.parameters()), base, **case.options)
    tick, tock = schedule(opt if on == "wrapper" else opt.base), schedule(base)
    rates = set()
    for x, y in batches(10):
        tick(opt.step(closure_for(opt, model, x, y)))
        tock(reference.step(closure_for(base, other, x, y)))
        rates.add(base.param_groups[0]["lr"])
    assert len(rates) > 2
    torch.testing.assert_close(flat(list(model.parameters())), flat(list(other.parameters())), rtol=1e-9, atol=1e-10)


# ---------------------------------------------------------------------- accumulation and clipping, in contexts


@pytest.mark.parametrize("name", [c.name for c in ONE_OF_EACH if c.name not in ("eigensam", *CLOSURES_ONLY)])
def test_accumulating_inside_the_contexts_equals_the_big_batch(name: str):
    """Micro-batches inside one ``clean()`` and one ``perturbed()``, each loss divided by their number."""
    case = next(case for case in ONE_OF_EACH if case.name == name)
    model, other = network(), network()
    opt, whole = case.make(BASES["sgd"](model.parameters())), case.make(BASES["sgd"](other.parameters()))
    for x, y in batches(5):
        parts = list(zip(x.chunk(4), y.chunk(4), strict=True))
        for around in (opt.clean, opt.perturbed) if opt.passes == 2 else (opt.perturbed,):
            with around():
                for part in parts:
                    (nn.functional.cross_entropy(model(part[0]), part[1]) / 4).backward()
        opt.step()
        step_once(whole, other, (x, y))
    torch.testing.assert_close(flat(list(model.parameters())), flat(list(other.parameters())), rtol=1e-9, atol=1e-11)


def test_accumulating_with_a_scaler_equals_the_big_batch():
    model, other = network(dtype=torch.float32), network(dtype=torch.float32)
    opt, whole = (lesam.LESAMPlus(BASES["sgd"](m.parameters()), sigma=0.05) for m in (model, other))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for x, y in batches(5, dtype=torch.float32):
        for around in (opt.clean, opt.perturbed):
            with around(scaler):
                for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
                    scaler.scale(nn.functional.cross_entropy(model(a), b) / 2).backward()
        scaler.step(opt)
        scaler.update()
        step_once(whole, other, (x, y))
    torch.testing.assert_close(flat(list(model.parameters())), flat(list(other.parameters())), rtol=1e-4, atol=1e-5)


@both_styles
def test_clipping_in_the_closure_would_change_the_radius_and_max_norm_does_not(style: str):
    """The radius of the clipped run is that of the unclipped one as long as their weights agree: in the first step."""
    radii = []
    for max_norm in (None, 1e-3):
        model = network()
        opt = lesam.LESAM(BASES["sgd"](model.parameters()), sigma=0.01, rho_max=None, max_norm=max_norm)
        before = model_bits(model)
        step_once(opt, model, next(batches(1)), style)
        assert not same_bits(before, model_bits(model))
        radii.append(opt.last.rho)
    assert torch.equal(radii[0], radii[1])

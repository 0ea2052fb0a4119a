"""Two passes over one mini-batch: running statistics follow the clean one, random numbers are replayed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lesam

from .cases import BASES, EVERY_STEP, ONE_PASS, Case, batches, climbing, every_base, every_form, every_method
from .faults import Fault, both_styles, model_bits, passes_of, same_bits, step_once

TWO_PASS = {name for name in lesam.METHODS if name not in ONE_PASS}


class Subclass(nn.BatchNorm1d):
    """A user's own BatchNorm, with a third statistic in a buffer of its own name."""


class InPlace(nn.Module):
    """Home-made: no relation to torch's class, buffers updated in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(x.mean(0), 0.1)
                self.running_var.lerp_(x.var(0), 0.1)
            return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()
        return (x - self.running_mean) / (self.running_var + 1e-5).sqrt()


class Rebinding(InPlace):
    """Home-made, the way most are: the buffers are replaced by new tensors."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.running_mean = 0.9 * self.running_mean + 0.1 * x.mean(0).detach()
            self.running_var = 0.9 * self.running_var + 0.1 * x.var(0).detach()
            return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()
        return (x - self.running_mean) / (self.running_var + 1e-5).sqrt()


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "BatchNorm1d": nn.BatchNorm1d,
    "cumulative average": lambda width: nn.BatchNorm1d(width, momentum=None),
    "without statistics": lambda width: nn.BatchNorm1d(width, track_running_stats=False),
    "without affine": lambda width: nn.BatchNorm1d(width, affine=False),
    "SyncBatchNorm": nn.SyncBatchNorm,
    "subclass": Subclass,
    "home-made in place": InPlace,
    "home-made rebinding": Rebinding,
}
every_norm = pytest.mark.parametrize("norm", NORMS)


def normalised(norm: str = "BatchNorm1d", dropout: float = 0.0) -> nn.Sequential:
    """A net with the norm layer nested in a submodule."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner = nn.Sequential(NORMS[norm](7), nn.Tanh(), nn.Dropout(dropout))
        # no bias where a norm layer would take it out again: its gradient is rounding, which Adam blows up
        return nn.Sequential(nn.Linear(5, 7, bias=False), inner, nn.Linear(7, 3)).double()


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.named_buffers()}


def assert_equal_statistics(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert set(a) == set(b)
    for name in a:
        assert torch.equal(a[name], b[name]), f"{name}: {a[name]} and {b[name]}"


# ---------------------------------------------------------------------- running statistics


@every_method
@every_norm
@both_styles
def test_statistics_are_those_of_one_forward_at_the_right_weights(case: Case, norm: str, style: str):
    """At ``w`` for a method with a clean pass, at the perturbed weights for a method with one pass; seen once."""
    model = normalised(norm)
    opt = case.make(BASES["sgd"](model.parameters()), model=model)
    for x, y in batches(6):
        plain = copy.deepcopy(model)
        seen: list[list[Tensor]] = []
        handle = model.register_forward_pre_hook(
            lambda *_, s=seen: s.append([p.detach().clone() for p in model.parameters()])
        )
        step_once(opt, model, (x, y), style)
        handle.remove()
        if case.name not in TWO_PASS:
            assert len(seen) == 1
            with torch.no_grad():
                for p, value in zip(plain.parameters(), seen[0], strict=True):
                    p.copy_(value)
        plain(x)
        assert_equal_statistics(statistics(model), statistics(plain))
    if norm in ("BatchNorm1d", "SyncBatchNorm", "subclass", "cumulative average"):
        assert int(model[1][0].num_batches_tracked) == 6


def test_a_buffer_of_another_name_in_a_subclass_is_covered_too():
    """What moves with the running mean should not move twice."""

    class Counting(nn.BatchNorm1d):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.register_buffer("running_max", torch.zeros(width))

        def forward(self, x: Tensor) -> Tensor:
            self.running_max.copy_(torch.maximum(self.running_max, x.detach().amax(0)))
            return super().forward(x)

    model = nn.Sequential(nn.Linear(5, 7), Counting(7), nn.Linear(7, 3)).double()
    opt = lesam.SAM(BASES["sgd"](model.parameters()), rho=5.0, model=model)
    for x, y in batches(3):
        plain = copy.deepcopy(model)
        step_once(opt, model, (x, y))
        plain(x)
        assert_equal_statistics(statistics(model), statistics(plain))


@both_styles
def test_without_model_both_passes_count(style: str):
    model = normalised()
    opt = lesam.SAM(BASES["sgd"](model.parameters()))
    for batch in batches(3):
        step_once(opt, model, batch, style)
    assert int(model[1][0].num_batches_tracked) == 6


@every_method
@both_styles
def test_mode_and_momentum_stay(case: Case, style: str):
    """Also of a layer that is in evaluation mode by choice, and after an error in any pass."""
    model = nn.Sequential(normalised(), nn.BatchNorm1d(3, momentum=0.3).double()).train()
    frozen = model[1].eval()
    opt = climbing(case).make(BASES["sgd"](model.parameters()), model=model)

    def settings() -> list[tuple]:
        return [(m.training, getattr(m, "momentum", 0), getattr(m, "track_running_stats", 0)) for m in model.modules()]

    before, frozen_before = settings(), statistics(frozen)
    for step, batch in enumerate(batches(6)):
        if step == 4:
            for place in ("first", "second", "refresh"):
                if place in passes_of(opt):
                    with pytest.raises(RuntimeError, match="on purpose"):
                        step_once(opt, model, batch, style, Fault(RuntimeError, call=passes_of(opt)[place]))
                    assert settings() == before
        step_once(opt, model, batch, style)
        assert settings() == before
    assert_equal_statistics(statistics(frozen), frozen_before)


@every_norm
@both_styles
@pytest.mark.parametrize("place", ["first", "second"])
@pytest.mark.parametrize("name", ["sam", "lesamplus", "msam"])
def test_statistics_are_put_back_when_a_pass_raises(name: str, norm: str, style: str, place: str):
    model = normalised(norm)
    opt = lesam.METHODS[name](BASES["sgd"](model.parameters()), model=model)
    data = list(batches(3))
    for batch in data[:2]:
        step_once(opt, model, batch, style)
    before = statistics(model)
    with pytest.raises(KeyboardInterrupt):
        step_once(opt, model, data[2], style, Fault(KeyboardInterrupt, call=passes_of(opt)[place]))
    assert_equal_statistics(statistics(model), before)


@both_styles
def test_a_refresh_runs_batch_norm_in_evaluation_mode_and_gives_it_back(style: str):
    model = normalised(dropout=0.5)
    norm, dropout = model[1][0], model[1][2]
    opt = lesam.EigenSAM(BASES["sgd"](model.parameters()), every=2, iterations=3, model=model)
    modes: list[tuple[bool, bool]] = []
    norm.register_forward_pre_hook(lambda *_: modes.append((norm.training, dropout.training)))
    for step, batch in enumerate(batches(3)):
        modes.clear()
        plain = copy.deepcopy(model)
        step_once(opt, model, batch, style)
        refresh = [False] * (6 if step == 2 else 0)
        assert [training for training, _ in modes] == [*refresh, True, True]
        plain(batch[0])
        assert_equal_statistics(statistics(model), statistics(plain))
    assert norm.training
    assert dropout.training


def test_a_plain_step_where_when_is_false_updates_the_statistics_once():
    model = normalised()
    opt = lesam.SAM(BASES["sgd"](model.parameters()), model=model, when=lesam.schedules.every(2))
    for step, (x, y) in enumerate(batches(4)):
        plain = copy.deepcopy(model)
        step_once(opt, model, (x, y), "closure" if step < 2 else "contexts")
        plain(x)
        assert_equal_statistics(statistics(model), statistics(plain))


def test_every_micro_batch_counts_once():
    model = normalised()
    opt = lesam.LESAMPlus(BASES["sgd"](model.parameters()), model=model)
    plain = copy.deepcopy(model)
    data = list(batches(3))

    def closure_of(x: Tensor, y: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return closure

    opt.step([closure_of(x, y) for x, y in data])
    for x, _ in data:
        plain(x)
    assert_equal_statistics(statistics(model), statistics(plain))


def test_a_closure_called_for_its_hooks_leaves_the_statistics_alone():
    """step(closure) after perturbed(): the passes have been counted already."""
    model = normalised()
    opt = lesam.SAM(BASES["sgd"](model.parameters()), model=model)
    x, y = next(batches(1))
    plain = copy.deepcopy(model)
    plain(x)
    with opt.clean():
        nn.functional.cross_entropy(model(x), y).backward()
    with opt.perturbed():
        nn.functional.cross_entropy(model(x), y).backward()

    def closure() -> Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    opt.step(closure)
    assert_equal_statistics(statistics(model), statistics(plain))


# ---------------------------------------------------------------------- random numbers


def masks_of(model: nn.Module) -> list[Tensor]:
    """Every dropout mask the model draws from now on."""
    masks: list[Tensor] = []
    dropout = next(m for m in model.modules() if isinstance(m, nn.Dropout))
    dropout.register_forward_hook(lambda _m, _inputs, out: masks.append(out.detach() != 0))
    return masks


@pytest.mark.parametrize("name", sorted(TWO_PASS))
@both_styles
@pytest.mark.parametrize("replay", [True, False])
def test_both_passes_see_the_same_dropout_masks_if_asked(name: str, style: str, replay: bool):
    model = normalised(dropout=0.5)
    options = {"esam": {"gamma": 1.0}, **EVERY_STEP}.get(name, {})
    opt = lesam.METHODS[name](BASES["sgd"](model.parameters()), replay_rng=replay, **options)
    masks = masks_of(model)
    torch.manual_seed(11)
    steps = 4
    for batch in batches(steps):
        step_once(opt, model, batch, style)
    passes = [masks[number :: opt.passes] for number in range(opt.passes)]
    assert [len(each) for each in passes] == [steps] * opt.passes
    assert all(torch.equal(a, b) == replay for each in passes[1:] for a, b in zip(passes[0], each, strict=True))
    assert not any(torch.equal(passes[0][0], first) for first in passes[0][1:])  # a new mask at each step


@every_form
@every_base
@both_styles
def test_the_stream_of_random_numbers_is_that_of_one_pass(case: Case, base_name: str, style: str):
    """So data order and augmentation of a run do not depend on the method."""
    model, other = normalised(dropout=0.5), normalised(dropout=0.5)
    opt = case.make(BASES[base_name](model.parameters()), model=model)
    base = BASES[base_name](other.parameters())
    data = list(batches(6))
    torch.manual_seed(5)
    for batch in data:
        step_once(opt, model, batch, style)
    after = torch.rand(3)
    torch.manual_seed(5)
    for x, y in data:
        base.zero_grad()
        nn.functional.cross_entropy(other(x), y).backward()
        base.step()
    assert torch.equal(after, torch.rand(3))


@pytest.mark.parametrize("name", sorted(lesam.METHODS))
@every_base
@both_styles
def test_radius_zero_is_the_base_optimizer_with_dropout_and_batch_norm(name: str, base_name: str, style: str):
    radius = "sigma" if "lesam" in name else "rho"
    options = {"gamma": 1.0} if name == "esam" else {}
    model, other = normalised(dropout=0.5), normalised(dropout=0.5)
    opt = lesam.METHODS[name](BASES[base_name](model.parameters()), model=model, **{radius: 0.0}, **options)
    base = BASES[base_name](other.parameters())
    data = list(batches(5))
    torch.manual_seed(5)
    for batch in data:
        step_once(opt, model, batch, style)
    torch.manual_seed(5)
    for x, y in data:
        base.zero_grad()
        nn.functional.cross_entropy(other(x), y).backward()
        base.step()
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    # These scale the gradient by a quotient that is 1 up to rounding.
    if name not in ("gsam", "ssam", "lesamplus", "crsam"):
        assert same_bits(model_bits(model), model_bits(other))


def test_each_micro_batch_replays_its_own_masks():
    model = normalised(dropout=0.5)
    opt = lesam.SAM(BASES["sgd"](model.parameters()), model=model)
    masks = masks_of(model)

    def closure_of(x: Tensor, y: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return closure

    torch.manual_seed(2)
    opt.step([closure_of(x, y) for x, y in batches(3)])
    assert len(masks) == 6
    assert all(torch.equal(a, b) for a, b in zip(masks[:3], masks[3:], strict=True))
    assert not torch.equal(masks[0], masks[1])


def test_a_bare_first_backward_is_not_replayed():
    """Only ``clean()`` can know where the random numbers of pass one began."""
    model = normalised(dropout=0.5)
    opt = lesam.SAM(BASES["sgd"](model.parameters()))
    masks = masks_of(model)
    x, y = next(batches(1))
    torch.manual_seed(2)
    nn.functional.cross_entropy(model(x), y).backward()
    with opt.perturbed():
        nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
    assert not torch.equal(*masks)


def test_sample_losses_see_the_masks_of_the_first_pass():
    """The rise of each sample's loss is that of the weights, not of another mask."""
    model = normalised(dropout=0.5)
    opt = lesam.ESAM(BASES["sgd"](model.parameters()), beta=1.0, gamma=0.5, rho=0.0, model=model)
    masks = masks_of(model)
    x, y = next(batches(1))
    drawn: list[Tensor] = []

    def losses(indices: Tensor | None = None) -> Tensor:
        picked = slice(None) if indices is None else indices
        out = nn.functional.cross_entropy(model(x[picked]), y[picked], reduction="none")
        drawn.append(out.detach())
        return out

    torch.manual_seed(4)
    opt.step(sample_losses=losses)
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(drawn[0], drawn[1])
    assert len(drawn[2]) == 8

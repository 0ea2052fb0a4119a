"""A first pass on a part of the batch: the budget is of the batch's loss, and only the second pass sees all of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lesam
from tests.reference import PartialLESAMReference

from .cases import BASES, batches, closure_for, every_base, network
from .faults import batch_norm_network, both_styles, model_bits, same_bits, step_once

Batch = tuple[Tensor, Tensor]
SHARE = 0.25  # 4 of 16


def partial_step(
    opt: Any, model: nn.Module, batch: Batch, style: str = "closure", scaler: Any = None, of: Any = None
) -> Any:
    """A step as the card has it, the first pass with the gradients ``of`` some alone; returns what ``step`` does."""
    (x, y), few = batch, opt.few(len(batch[0]))
    scaled = (lambda loss: loss) if scaler is None else scaler.scale

    def climb() -> Tensor:
        loss = nn.functional.cross_entropy(model(x[:few]), y[:few])
        scaled(loss).backward(inputs=of)
        return loss

    if style == "closure":
        return opt.step(closure_for(opt, model, x, y), ascent=lambda: (opt.zero_grad(), climb())[1], share=few / len(x))
    if opt.passes == 2:
        with opt.clean(scaler, share=few / len(x)):
            climb()
    with opt.perturbed(scaler):
        scaled(nn.functional.cross_entropy(model(x), y)).backward()
    return opt.step() if scaler is None else scaler.step(opt)


def made(trained: nn.Module, base_name: str = "sgd", **options: Any) -> lesam.PartialLESAM:
    return lesam.PartialLESAM(BASES[base_name](trained.parameters()), **{"sigma": 0.05, "share": SHARE, **options})


@every_base
@both_styles
@pytest.mark.parametrize("options", [{"rho_max": None}, {"rho_max": 0.2}, {"rho_max": None, "weight": None}], ids=str)
def test_equals_the_long_hand_class(base_name: str, style: str, options: dict[str, float | None]) -> None:
    ours, theirs = network(), network()
    opt = made(ours, base_name, **options)
    base = BASES[base_name](theirs.parameters())
    reference = PartialLESAMReference(list(theirs.parameters()), base, sigma=0.05, **options)
    for x, y in batches(20):
        few = closure_for(base, theirs, x[:4], y[:4])
        expected = reference.step(closure_for(base, theirs, x, y), ascent=few, share=SHARE)
        loss = partial_step(opt, ours, (x, y), style)
        if style == "closure":
            torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_three_steps_by_hand() -> None:
    """Two samples, ``3 w^2 / 2`` and ``w^2 / 2``, the first of which is the part: along a line directions are signs."""
    w = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    opt = lesam.PartialLESAM(torch.optim.SGD([w], lr=0.1), sigma=0.6, share=0.5, theta=0.5, weight=1.5, rho_max=None)
    slopes = torch.tensor([3.0, 1.0], dtype=torch.float64)

    def mean(samples: slice) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            opt.zero_grad()
            loss = (slopes[samples] * w.square() / 2).mean()
            loss.backward()
            return loss

        return closure

    at, average = 2.0, math.nan
    for number in range(3):
        g = 3.0 * at
        u = g if number == 0 else (0.75 * g + 0.5 * average) / 1.25
        rho = 0.6 / (1.25 * u)
        g_hat = 2.0 * (at + rho)
        loss = opt.step(mean(slice(None)), ascent=mean(slice(1)), share=0.5)
        assert float(loss) == pytest.approx((at + rho) ** 2)
        assert float(opt.last.rho) == pytest.approx(rho)
        assert float(opt.last.slope) == pytest.approx(1.25 * u)
        average = g_hat if number == 0 else (average + g_hat) / 2
        at -= 0.1 * g_hat
        assert w.item() == pytest.approx(at)


def test_the_batch_rises_by_the_budget_through_the_part_alone() -> None:
    """LE-SAM's direction on a part; a sample's loss is a coordinate of ``w`` of its own, so the others do not rise."""
    w = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    slopes = torch.arange(1.0, 21.0, dtype=torch.float64)
    part = lesam.BatchPart(0.1)
    opt = lesam.SharpnessAware(torch.optim.SGD([w], lr=0.1), radius=lesam.LossBudget(0.3), part=part)
    few = part.count(20)

    def mean(samples: slice) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            opt.zero_grad()
            loss = (slopes * w)[samples].mean()
            loss.backward()
            return loss

        return closure

    loss = opt.step(mean(slice(None)), ascent=mean(slice(few)), share=few / 20)
    assert few == 2
    assert float(loss) == pytest.approx(0.3)
    assert float(opt.last.perturbed_loss) == pytest.approx(0.3)
    assert float(opt.last.rho * opt.last.slope) == pytest.approx(0.3)
    assert float(opt.last.grad_norm) == pytest.approx(math.hypot(0.5, 1.0))  # of the part's mean


@both_styles
def test_it_costs_one_pass_and_the_share_and_has_seen_no_clean_loss(style: str) -> None:
    model = network()
    opt = made(model, when=lambda step: step != 2)
    costs = []
    for batch in batches(4):
        partial_step(opt, model, batch, style)
        costs.append(round(float(opt.last.cost), 6))
        assert math.isnan(float(opt.last.loss)) or costs[-1] == 1
    assert costs == [1.25, 1.25, 1.0, 1.25]


def norms_of(model: nn.Module) -> list[nn.Parameter]:
    return [p for m in model.modules() if isinstance(m, nn.BatchNorm1d) for p in m.parameters()]


@both_styles
@pytest.mark.parametrize("weight", [None, 3.0])
@pytest.mark.parametrize("alone", [True, False])
def test_the_backward_of_a_part_may_leave_out_what_is_not_climbed(
    style: str, weight: float | None, alone: bool
) -> None:
    """The step is that of the long-hand class, which has all gradients; what was left out is counted, in every step."""
    ours, theirs = batch_norm_network(), batch_norm_network()
    opt = made(ours, weight=weight, perturb=norms_of(ours), model=ours)
    base = BASES["sgd"](theirs.parameters())
    reference = PartialLESAMReference(norms_of(theirs), base, sigma=0.05, weight=weight)
    assert [id(p) for p in opt.perturbable] == [id(p) for p in norms_of(ours)]
    for x, y in batches(4):
        few = closure_for(base, theirs, x[:4], y[:4])
        reference.step(closure_for(base, theirs, x, y), ascent=few, share=SHARE)
        partial_step(opt, ours, (x, y), style, of=opt.perturbable if alone else None)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        left_out = (35 + 7 + 21 + 3) / 80 if alone else 0  # weights and biases of 5 x 7 and 7 x 3
        assert float(opt.last.cost) == pytest.approx(1 + SHARE * (1 - left_out / 3))


def test_a_whole_pass_after_a_shortened_one_is_counted_whole() -> None:
    model = batch_norm_network()
    opt = made(model, perturb=norms_of(model), perturbation="local")
    x, y = next(batches(1))
    for share in (SHARE, 1.0):
        with opt.clean(share=share):
            loss = nn.functional.cross_entropy(model(x[: int(share * len(x))]), y[: int(share * len(x))])
            loss.backward(inputs=opt.perturbable)
        with opt.perturbed():
            nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
    first = 1 + SHARE * (1 - (35 + 7 + 21 + 3) / 80 / 3)
    assert float(opt.last.cost) == pytest.approx((first + 2) / 2)


@pytest.mark.parametrize("weight", [None, 3.0])
def test_what_is_climbed_may_lie_in_a_part_that_is_recomputed(weight: float | None) -> None:
    """Nothing about the model is changed for the first pass: a recomputed block needs the gradient of its input."""
    plain, again = (nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)).double() for _ in range(2))
    again.load_state_dict(plain.state_dict())
    opts = [made(one, weight=weight, rho_max=None, perturb=one[1].parameters()) for one in (plain, again)]

    def recomputed(x: Tensor) -> Tensor:
        return again[2](torch.utils.checkpoint.checkpoint(again[1], again[0](x), use_reentrant=True))

    for batch in batches(3):
        partial_step(opts[0], plain, batch)
        partial_step(opts[1], recomputed, batch)  # type: ignore[arg-type]
        assert float(opts[1].last.rho) == pytest.approx(float(opts[0].last.rho))
        assert float(opts[1].last.rho) > 0


def test_a_part_may_reach_nothing_that_is_climbed() -> None:
    """A head that none of the part's samples goes to: the step is the base's."""
    stem, one, other = nn.Linear(5, 7).double(), nn.Linear(7, 3).double(), nn.Linear(7, 3).double()
    model = nn.ModuleList([stem, one, other])
    opt = made(model, perturb=other.parameters())
    x, y = next(batches(1))
    for _ in range(3):
        before = [p.detach().clone() for p in other.parameters()]
        with opt.clean(share=SHARE):
            nn.functional.cross_entropy(one(stem(x[:4])), y[:4]).backward()
        with opt.perturbed():
            assert all(torch.equal(p, b) for p, b in zip(other.parameters(), before, strict=True))
            nn.functional.cross_entropy(other(stem(x)), y).backward()
        opt.step()


def test_a_layer_that_is_frozen_in_the_first_pass_is_seen() -> None:
    model = batch_norm_network()
    opt = made(model, perturb=norms_of(model))
    x, y = next(batches(1))
    partial_step(opt, model, (x, y))
    with opt.clean(share=SHARE):
        next(model.parameters()).requires_grad_(False)
        nn.functional.cross_entropy(model(x[:4]), y[:4]).backward()
    with pytest.raises(RuntimeError, match="frozen or unfrozen between"), opt.perturbed():
        pass


@pytest.mark.parametrize(
    ("share", "batch", "few"), [(0.1, 64, 6), (0.1, 100, 10), (0.3, 10, 3), (0.1, 8, 2), (0.1, 1, 1)]
)
def test_the_part_is_rounded_down_and_has_two_samples(share: float, batch: int, few: int) -> None:
    assert made(network(), share=share).few(batch) == few


@both_styles
def test_a_step_that_names_no_part_is_lesams_bit_for_bit_at_its_price(style: str) -> None:
    ours, theirs = batch_norm_network(), batch_norm_network()
    opt = made(ours, rho_max=0.2, model=ours)
    other = lesam.LESAM(BASES["sgd"](theirs.parameters()), sigma=0.05, rho_max=0.2, model=theirs)
    for batch in batches(5):
        for one, model in ((opt, ours), (other, theirs)):
            step_once(one, model, batch, style)
        assert same_bits(model_bits(ours), model_bits(theirs))
        assert float(opt.last.cost) == 2


@both_styles
def test_batch_norm_follows_the_pass_that_sees_the_whole_batch(style: str) -> None:
    model, seen = batch_norm_network(), batch_norm_network()
    opt = made(model, model=model)
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm1d))
    inputs: list[Tensor] = []
    norm.register_forward_hook(lambda _, args, __: inputs.append(args[0].detach().clone()))
    other = next(m for m in seen.modules() if isinstance(m, nn.BatchNorm1d))
    for number, batch in enumerate(batches(4), start=1):
        partial_step(opt, model, batch, style)
        assert [len(x) for x in inputs[-2:]] == [4, 16]
        other(inputs[-1])
        assert int(norm.num_batches_tracked) == number
        assert torch.equal(norm.running_mean, other.running_mean)
        assert torch.equal(norm.running_var, other.running_var)


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_step_leaves_nothing(late: bool) -> None:
    model = batch_norm_network()
    opt = made(model, model=model)
    (x, y), before = next(batches(1)), model_bits(model)

    def fails() -> Tensor:
        model(x)
        raise RuntimeError("on purpose")

    whole = fails if late else closure_for(opt, model, x, y)
    few = closure_for(opt, model, x[:4], y[:4]) if late else fails
    with pytest.raises(RuntimeError, match="on purpose"):
        opt.step(whole, ascent=few, share=SHARE)
    assert same_bits(before, model_bits(model))
    assert opt.steps == 0


def test_a_loss_scaler_does_not_change_the_radius() -> None:
    plain, scaled = network(), network()
    one, other = made(plain), made(scaled)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for batch in batches(5):
        partial_step(one, plain, batch, "contexts")
        partial_step(other, scaled, batch, "contexts", scaler)
        scaler.update()
        torch.testing.assert_close(float(other.last.rho), float(one.last.rho))
    for a, b in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_micro_batches_climb_on_a_part_of_each() -> None:
    """Two closures of undivided means each: the same as one batch whose part has a half of either."""
    ours, theirs = network(), network()
    opt, whole = made(ours), made(theirs)
    for x, y in batches(4):
        halves = [(x[:8], y[:8]), (x[8:], y[8:])]
        few = [closure_for(opt, ours, a[:2], b[:2]) for a, b in halves]
        opt.step([closure_for(opt, ours, a, b) for a, b in halves], ascent=few, share=SHARE)
        part = torch.tensor([0, 1, 8, 9])
        ascent = closure_for(whole, theirs, x[part], y[part])
        whole.step(closure_for(whole, theirs, x, y), ascent=ascent, share=SHARE)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_no_random_number_is_drawn_in_two_steps() -> None:
    """A part draws fewer numbers than the batch: what is put back to its end would be drawn again in the next step."""
    dropout = nn.Dropout(0.5)
    model = nn.Sequential(nn.Linear(5, 50), dropout, nn.Linear(50, 3)).double()
    masks: list[Tensor] = []
    dropout.register_forward_hook(lambda _, args, out: masks.append(out == 0))
    opt = made(model, share=0.25)
    for batch in batches(2):
        partial_step(opt, model, batch)
    first, second = (mask for mask in masks if len(mask) == 16)
    for shift in range(12):
        assert (first[shift:] == second[: 16 - shift]).double().mean() < 0.75


def test_a_slope_that_a_direction_gives_is_of_the_part_as_well() -> None:
    """Eigen-SAM's way up: the slope before and after its refresh is of the same size, and a refresh is on the part."""
    model, (x, y) = network(), next(batches(1))
    base = torch.optim.SGD(model.parameters(), lr=1e-9)
    direction = lesam.TopEigenvector(alpha=0.2, every=2, iterations=3)
    opt = lesam.SharpnessAware(base, direction=direction, radius=lesam.LossBudget(0.1), part=lesam.BatchPart(SHARE))
    slopes, costs = [], []
    for _ in range(4):
        opt.step(closure_for(opt, model, x, y), ascent=closure_for(opt, model, x[:4], y[:4]), share=SHARE)
        slopes.append(float(opt.last.slope))
        costs.append(float(opt.last.cost))
    assert slopes == pytest.approx([slopes[0]] * 4, rel=1e-6)
    assert costs == pytest.approx([1.25, 1.25, 1.25 + 6 * SHARE, 1.25])


def test_a_loss_scaler_does_not_change_what_is_remembered_at_theta_one() -> None:
    plain, scaled = network(), network()
    parts: dict[str, Any] = {
        "direction": lesam.Blended(1.0),
        "radius": lesam.Fixed(0.3),
        "part": lesam.BatchPart(SHARE),
    }
    one, other = (lesam.SharpnessAware(BASES["sgd"](model.parameters()), **parts) for model in (plain, scaled))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in batches(4):
        for opt, model, scale in ((one, plain, None), (other, scaled, scaler)):
            grown = (lambda loss: loss) if scale is None else scale.scale
            with opt.clean(scale, share=SHARE):
                grown(nn.functional.cross_entropy(model(x[:4]), y[:4])).backward()
            with opt.perturbed(scale):
                grown(nn.functional.cross_entropy(model(x), y)).backward()
            opt.step() if scale is None else scale.step(opt)
        scaler.update()
    for a, b in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_any_metric_and_radius_can_climb_on_a_part() -> None:
    """ASAM's metric, and SAM's radius, which no share changes."""
    model = network()
    parts: dict[str, Any] = {"metric": lesam.Adaptive(0.01), "radius": lesam.Fixed(0.3)}
    opt = lesam.SharpnessAware(BASES["sgd"](model.parameters()), part=lesam.BatchPart(SHARE), **parts)
    x, y = next(batches(1))
    opt.step(closure_for(opt, model, x, y), ascent=closure_for(opt, model, x[:4], y[:4]), share=SHARE)
    assert float(opt.last.rho) == pytest.approx(0.3)
    assert float(opt.last.cost) == pytest.approx(1.25)


# ---------------------------------------------------------------------- refusals


def test_an_ascent_or_a_share_without_the_other_is_refused_and_leaves_nothing() -> None:
    model = network()
    opt, (x, y), before = made(model), next(batches(1)), model_bits(model)
    closure = closure_for(opt, model, x, y)
    with pytest.raises(ValueError, match=r"cannot see how much of it ascent= is on.*share=few / len\(x\)"):
        opt.step(closure, ascent=closure_for(opt, model, x[:4], y[:4]))
    with pytest.raises(ValueError, match="give both, or neither"):
        opt.step(closure, share=SHARE)
    with opt.clean():
        nn.functional.cross_entropy(model(x), y).backward()
    with opt.perturbed():
        nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(ValueError, match=r"say it before, `with opt\.clean\(share"):
        opt.step(share=SHARE)
    opt.zero_grad()
    with pytest.raises(ValueError, match="not both"):
        opt.step(sample_losses=lambda indices=None: torch.zeros(16, requires_grad=True), share=SHARE)
    assert same_bits(before, model_bits(model))


@pytest.mark.parametrize("share", [0.0, 1.5, -0.1, float("nan"), "a tenth", True])
def test_shares_that_are_none(share: Any) -> None:
    model = network()
    opt, (x, y) = made(model), next(batches(1))
    closure = closure_for(opt, model, x, y)
    wanted = "share must be a number > 0 and <= 1, got"  # and not "or a schedule", which a share cannot be
    with pytest.raises(ValueError, match=wanted):
        opt.step(closure, ascent=closure, share=share)
    with pytest.raises(ValueError, match=wanted):
        opt.clean(share=share)
    with pytest.raises(ValueError, match=wanted):
        lesam.PartialLESAM(torch.optim.SGD(model.parameters(), lr=0.1), share=share)


def test_the_optimizer_names_the_part_it_climbs_on() -> None:
    assert "part=BatchPart(share=" in repr(made(network()))
    assert "part=" not in repr(lesam.SAM(torch.optim.SGD(network().parameters(), lr=0.1)))


def test_a_share_is_refused_where_the_whole_batch_is_climbed() -> None:
    model = network()
    opt, (x, y) = lesam.LESAM(BASES["sgd"](model.parameters())), next(batches(1))
    with pytest.raises(ValueError, match=r"share=0\.5 is for methods that climb on a part.*PartialLESAM"):
        opt.step(closure_for(opt, model, x, y), ascent=closure_for(opt, model, x, y), share=0.5)
    with pytest.raises(ValueError, match="PartialLESAM"):
        opt.clean(share=0.5)


@pytest.mark.parametrize(
    "parts",
    [
        {"combine": lesam.excess(0.5)},
        {"combine": lesam.gap(0.4)},
        {"combine": lesam.renormalized},
        {"gate": lesam.LargeGradients()},
        {"samples": lesam.TopSamples(0.5)},
        {"direction": lesam.Stale()},
    ],
    ids=str,
)
def test_parts_that_need_the_gradient_of_the_whole_batch(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"BatchPart\(share=0.1\) cannot be used with"):
        lesam.SharpnessAware(BASES["sgd"](network().parameters()), part=lesam.BatchPart(0.1), **parts)


def test_an_empty_batch_has_no_part() -> None:
    for batch in (0, True, "8"):
        with pytest.raises(ValueError, match="at least one sample, got"):
            lesam.BatchPart(0.1).count(batch)  # type: ignore[arg-type]


def test_without_an_average_the_part_is_climbed_in_the_norm_layers_alone_under_loss_scaling() -> None:
    """``rho = sigma / (p |g_p|)`` over the norm layers; nothing else moves, and nothing is remembered."""
    model = batch_norm_network()
    norms = lesam.norm_parameters(model)
    opt = made(model, sigma=0.01, weight=None, rho_max=None, perturb=norms, model=model)
    (x, y), few = next(batches(1)), 4
    slopes = torch.autograd.grad(nn.functional.cross_entropy(model(x[:few]), y[:few]), norms)
    length = torch.stack([slope.norm() for slope in slopes]).norm()
    before = {parameter: parameter.detach().clone() for parameter in model.parameters()}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with opt.clean(scaler, share=few / len(x)):
        scaler.scale(nn.functional.cross_entropy(model(x[:few]), y[:few])).backward()
    with opt.perturbed(scaler):
        moved = {parameter: parameter.detach() - start for parameter, start in before.items()}
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
    scaler.step(opt)
    assert float(opt.last.rho) == pytest.approx(float(0.01 / (few / len(x) * length)), rel=1e-6)
    for norm, slope in zip(norms, slopes, strict=True):
        torch.testing.assert_close(moved.pop(norm), float(opt.last.rho) * slope / length, rtol=1e-5, atol=1e-9)
    assert not any(step.any() for step in moved.values())
    assert not any(name.startswith("lesam") for entries in opt.state_dict()["state"].values() for name in entries)


def test_an_average_that_is_not_climbed_is_not_kept() -> None:
    """Loading a checkpoint with an average into a method without one leaves it out, there and in what it saves."""
    first, model = network(), network()
    with_average = made(first)
    partial_step(with_average, first, next(batches(1)))
    without = made(model, weight=None)
    without.load_state_dict(with_average.state_dict())
    assert not any("stale" in name for entries in without.state_dict()["state"].values() for name in entries)
    with pytest.raises(ValueError, match=r"theta must .*got 5"):
        made(model, weight=None, theta=5)

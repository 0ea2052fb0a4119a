"""Save, load, resume: bit for bit, in torch's own layout, through torch's own tools."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

import lesam

from .cases import BASES, Case, batches, climbing, every_base, every_form, every_method, network
from .faults import (
    Fault,
    assert_same_state,
    batch_norm_network,
    both_styles,
    model_bits,
    passes_of,
    same_bits,
    step_once,
)

MORE_BASES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01, alpha=0.97, momentum=0.8),
    "adadelta": lambda params: torch.optim.Adadelta(params, lr=0.5, rho=0.83),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, eps=1e-3, amsgrad=True),
}


def through_file(saved: dict[str, Any], path: Path) -> dict[str, Any]:
    """What comes back from disk without unsafe unpickling."""
    torch.save(saved, path)
    return torch.load(path, weights_only=True)


def resume_equals_uninterrupted(case: Case, make_base: Callable[..., Any], path: Path, style: str = "closure") -> None:
    def start() -> tuple[nn.Module, lesam.SharpnessAware, OneCycleLR]:
        model = batch_norm_network()
        opt = case.make(make_base(model.parameters()), model=model)
        return model, opt, OneCycleLR(opt, max_lr=0.1, total_steps=20, cycle_momentum=False)

    data = list(batches(11))
    model, opt, scheduler = start()
    for step, batch in enumerate(data):
        if step == 6:  # between two refreshes of Eigen-SAM
            everything = {"model": model.state_dict(), "opt": opt.state_dict(), "scheduler": scheduler.state_dict()}
            saved = through_file(everything, path)
        step_once(opt, model, batch, style)
        scheduler.step()

    again, opt_again, scheduler_again = start()
    again.load_state_dict(saved["model"])
    opt_again.load_state_dict(saved["opt"])
    scheduler_again.load_state_dict(saved["scheduler"])
    assert opt_again.steps == 6
    for batch in data[6:]:
        step_once(opt_again, again, batch, style)
        scheduler_again.step()
    assert same_bits(model_bits(model), model_bits(again))
    assert_same_state(opt.state_dict(), opt_again.state_dict())


@every_form
@every_base
def test_resumed_equals_uninterrupted(case: Case, base_name: str, tmp_path: Path):
    resume_equals_uninterrupted(case, BASES[base_name], tmp_path / "checkpoint.pt")


@every_method
def test_resumed_equals_uninterrupted_in_context_style(case: Case, tmp_path: Path):
    resume_equals_uninterrupted(case, BASES["adamw"], tmp_path / "checkpoint.pt", "contexts")


@every_method
@pytest.mark.parametrize("base_name", MORE_BASES)
def test_bases_whose_options_share_our_names(case: Case, base_name: str, tmp_path: Path):
    """RMSprop's alpha, Adadelta's rho and Adam's eps stay what they were, and the run resumes."""
    if case.name == "msam" and base_name == "adadelta":
        case = Case("lesam")  # MSAM needs momentum
    model = network()
    base = MORE_BASES[base_name](model.parameters())
    before = {k: v for k, v in base.param_groups[0].items() if k != "params"}
    opt = case.make(base)
    for batch in batches(2):
        step_once(opt, model, batch)
    after = opt.state_dict()["param_groups"][0]
    assert {key: after[key] for key in before} == before
    assert all(key.startswith("lesam_") for key in set(after) - set(before) - {"params"})
    assert all(key.startswith("lesam_") for key in set(base.param_groups[0]) - set(before) - {"params"})
    resume_equals_uninterrupted(case, MORE_BASES[base_name], tmp_path / "checkpoint.pt")


# ---------------------------------------------------------------------- layout


@every_method
@every_base
def test_standard_layout_without_a_copy_of_the_weights(case: Case, base_name: str):
    model = network()
    opt = case.make(BASES[base_name](model.parameters()))
    for batch in batches(6):
        step_once(opt, model, batch)
    saved = opt.state_dict()
    assert set(saved) == {"state", "param_groups"}
    assert set(saved["state"]) == set(range(4))
    for group, own in zip(saved["param_groups"], opt.param_groups, strict=True):
        assert group["params"] == list(range(len(own["params"])))
        scalars = [v for k, v in group.items() if k != "params"]
        assert all(isinstance(v, int | float | bool | str | tuple | None) for v in scalars), group
    weights = [p.detach() for p in model.parameters()]
    for entries in saved["state"].values():
        for key, value in entries.items():
            assert isinstance(value, torch.Tensor)
            assert not any(value.shape == w.shape and torch.equal(value, w) for w in weights), key

    size = len(pickled(saved))
    remembered = len(opt.parts.remembers)
    allowed = len(pickled(opt.base.state_dict())) + remembered * sum(8 * w.numel() + 900 for w in weights)
    assert size <= allowed + 200, f"{size} bytes, allowed {allowed}"


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@every_method
def test_loading_changes_neither_the_state_dict_nor_the_source(case: Case):
    model = network()
    opt = case.make(BASES["adamw"](model.parameters()))
    for batch in batches(5):
        step_once(opt, model, batch)
    saved = opt.state_dict()
    copied = copy.deepcopy(saved)
    other = case.make(BASES["adamw"](network().parameters()))
    other.load_state_dict(saved)
    assert_same_state(saved, copied)
    other.load_state_dict(copied)  # twice is once
    assert_same_state(other.state_dict(), copied)


@every_method
def test_a_checkpoint_of_the_bare_base_loads(case: Case):
    """Momentum is taken over; the method itself starts afresh, at step 0."""
    model = network()
    base = BASES["adamw"](model.parameters())
    for x, y in batches(3):
        base.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        base.step()
    opt = case.make(BASES["adamw"](model.parameters()))
    for batch in batches(2):
        step_once(opt, model, batch)
    opt.load_state_dict(copy.deepcopy(base.state_dict()))  # torch's load_state_dict shares tensors
    assert opt.steps == 0
    assert_same_state(opt.base.state_dict()["state"], base.state_dict()["state"])
    fresh_model = copy.deepcopy(model)
    fresh = case.make(BASES["adamw"](fresh_model.parameters()))
    fresh.base.load_state_dict(copy.deepcopy(base.state_dict()))
    for batch in batches(5, seed=3):
        step_once(opt, model, batch)
        step_once(fresh, fresh_model, batch)
    assert same_bits(model_bits(model), model_bits(fresh_model))


def test_a_checkpoint_of_ours_loads_into_the_bare_base():
    """Nobody is locked in."""
    model = network()
    opt = lesam.LESAM(BASES["adamw"](model.parameters()))
    for batch in batches(3):
        step_once(opt, model, batch)
    base = BASES["adamw"](network().parameters())
    base.load_state_dict(opt.state_dict())
    assert_same_state(base.state_dict()["state"], opt.base.state_dict()["state"])


# ---------------------------------------------------------------------- what has no value yet is not saved as one


class LateBranch(nn.Module):
    """A branch that joins in when told to."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            self.trunk, self.branch = nn.Linear(5, 3).double(), nn.Linear(5, 3).double()
        self.joined = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.trunk(x) + (self.branch(x) if self.joined else 0)


@pytest.mark.parametrize("prelude", ["nothing", "failed step", "bare step at lr 0"])
@pytest.mark.parametrize("name", ["friendlysam", "s2sam"])
def test_a_parameter_without_gradient_so_far_starts_afresh_after_resuming(name: str, prelude: str, tmp_path: Path):
    """A buffer that was only made room for must not come back as an average of zero."""

    def run(interrupted: bool) -> list[torch.Tensor]:
        model = LateBranch()
        opt = lesam.METHODS[name](torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), rho=0.5)
        data = list(batches(6))
        for batch in data[:3]:
            step_once(opt, model, batch)
        model.joined = True
        if interrupted and prelude == "failed step":
            with pytest.raises(RuntimeError, match="on purpose"):
                step_once(opt, model, data[3], fault=Fault(RuntimeError, call=passes_of(opt)["second"]))
        if interrupted and prelude == "bare step at lr 0":
            opt.zero_grad()
            opt.param_groups[0]["lr"] = 0.0
            opt.step()
            opt.param_groups[0]["lr"] = 0.05
        if interrupted:
            saved = through_file(opt.state_dict(), tmp_path / "checkpoint.pt")
            opt = lesam.METHODS[name](torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), rho=0.5)
            opt.load_state_dict(saved)
        for batch in data[3:]:
            step_once(opt, model, batch)
        return model_bits(model)

    assert same_bits(run(True), run(False))


def test_an_eigenvector_refreshed_before_the_first_step_is_saved(tmp_path: Path):
    def start() -> tuple[nn.Module, lesam.SharpnessAware]:
        model = network()
        return model, lesam.EigenSAM(BASES["sgd"](model.parameters()), alpha=0.9, rho=0.5, iterations=2)

    (x, y), *rest = batches(4)
    model, opt = start()

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    opt.refresh(closure)
    again, opt_again = start()
    opt_again.load_state_dict(through_file(opt.state_dict(), tmp_path / "checkpoint.pt"))
    for batch in rest:
        step_once(opt, model, batch)
        step_once(opt_again, again, batch)
    assert same_bits(model_bits(model), model_bits(again))


# ---------------------------------------------------------------------- groups


@every_method
@every_base
def test_param_groups_are_always_the_base_optimizers_own(case: Case, base_name: str):
    model = network()
    base = BASES[base_name](model[0].parameters())
    opt = case.make(base)
    assert opt.param_groups is base.param_groups
    opt.load_state_dict(opt.state_dict())
    assert opt.param_groups is base.param_groups
    opt.add_param_group({"params": model[2].parameters(), "lr": 0.01})
    assert opt.param_groups is base.param_groups
    assert len(base.param_groups) == 2
    for batch in batches(2):
        step_once(opt, model, batch)
    before = [p.detach().clone() for p in model.parameters()]
    opt.param_groups[0]["lr"] = 0.0
    step_once(opt, model, next(batches(1, seed=7)))
    still = [torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert still == [True, True, False, False]


@every_method
def test_a_group_added_later_is_perturbed_trained_and_saved(case: Case, tmp_path: Path):
    def start(groups: int) -> tuple[nn.Module, lesam.SharpnessAware]:
        model = network()
        opt = climbing(case).make(BASES["sgd"](model[0].parameters()))
        if groups == 2:
            opt.add_param_group({"params": list(model[2].parameters()), "lr": 0.01})
        return model, opt

    model, opt = start(groups=1)
    data = list(batches(9))
    for batch in data[:3]:
        step_once(opt, model, batch)
    opt.add_param_group({"params": list(model[2].parameters()), "lr": 0.01})
    assert opt.steps == 3
    seen: list[list[torch.Tensor]] = []
    handle = model.register_forward_pre_hook(lambda *_: seen.append(model_bits(model)))
    for batch in data[3:6]:
        before = model_bits(model)
        seen.clear()
        step_once(opt, model, batch)
    handle.remove()
    assert not torch.equal(before[2], seen[-1][2]) or case.name == "esam"
    assert not torch.equal(before[2], model_bits(model)[2])

    again, opt_again = start(groups=2)
    again.load_state_dict(model.state_dict())
    opt_again.load_state_dict(through_file(opt.state_dict(), tmp_path / "checkpoint.pt"))
    for batch in data[6:]:
        step_once(opt, model, batch)
        step_once(opt_again, again, batch)
    assert same_bits(model_bits(model), model_bits(again))


def test_a_group_that_is_refused_is_not_added():
    model = network()
    opt = lesam.SAM(BASES["sgd"](model.parameters()))
    with pytest.raises(ValueError, match=r"rho=0\.1"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "rho": 0.1})
    assert len(opt.param_groups) == 1
    step_once(opt, model, next(batches(1)))


@every_method
def test_state_can_be_written_to(case: Case):
    """As by code that resets momentum, or moves it to another device."""
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for batch in batches(2):
        step_once(opt, model, batch)
    for p in model.parameters():
        assert p in opt.state
        opt.state[p]["momentum_buffer"] = torch.full_like(p, 7.0)
        assert (opt.base.state[p]["momentum_buffer"] == 7.0).all()


# ---------------------------------------------------------------------- copies


@every_method
@both_styles
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_go_on_identically_and_independently(case: Case, style: str, how: str):
    model = batch_norm_network()
    opt = case.make(BASES["adamw"](model.parameters()), model=model)
    for batch in batches(5):
        step_once(opt, model, batch, style)
    pair = (model, opt)
    model_2, opt_2 = copy.deepcopy(pair) if how == "deepcopy" else pickle.loads(pickle.dumps(pair))
    assert type(opt_2) is type(opt)
    assert opt_2.param_groups is opt_2.base.param_groups
    assert opt_2.param_groups[0]["params"][0] is next(model_2.parameters())
    halfway = model_bits(model)
    for batch in batches(5, seed=2):
        step_once(opt_2, model_2, batch, style)
    assert same_bits(halfway, model_bits(model))
    for batch in batches(5, seed=2):
        step_once(opt, model, batch, style)
    assert same_bits(model_bits(model), model_bits(model_2))
    assert_same_state(opt.state_dict(), opt_2.state_dict())


def test_a_radius_tied_to_the_learning_rate_follows_its_own_copy():
    model = network()
    base = BASES["sgd"](model.parameters())
    opt = lesam.GSAM(base, rho=lesam.schedules.proportional_to_lr(base, rho_max=0.4))
    model_2, opt_2 = copy.deepcopy((model, opt))
    opt_2.param_groups[0]["lr"] /= 2
    for batch in batches(1):
        step_once(opt, model, batch)
        step_once(opt_2, model_2, batch)
    assert float(opt.last.rho) == pytest.approx(0.4)
    assert float(opt_2.last.rho) == pytest.approx(0.2)


# ---------------------------------------------------------------------- hooks


def test_hooks_on_the_wrapper_and_on_the_base_each_run_once():
    model = network()
    opt = lesam.LESAMPlus(BASES["sgd"](model.parameters()))
    calls: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: calls.append(name)

    for label, one in (("wrapper", opt), ("base", opt.base)):
        one.register_step_pre_hook(note(f"{label} before step"))
        one.register_step_post_hook(note(f"{label} after step"))
        one.register_state_dict_pre_hook(note(f"{label} before save"))
        one.register_state_dict_post_hook(note(f"{label} after save"))
        one.register_load_state_dict_pre_hook(note(f"{label} before load"))
        one.register_load_state_dict_post_hook(note(f"{label} after load"))
    step_once(opt, model, next(batches(1)))
    saved = opt.state_dict()
    opt.load_state_dict(saved)
    expected = [
        f"{label} {when} {what}"
        for what in ("step", "save", "load")
        for label, when in (("wrapper", "before"), ("base", "before"), ("base", "after"), ("wrapper", "after"))
    ]
    assert calls == expected


def test_hooks_may_change_what_is_saved_and_loaded():
    opt = lesam.SAM(BASES["sgd"](network().parameters()))
    opt.register_state_dict_post_hook(lambda _, saved: {**saved, "note": "hello"})
    assert opt.state_dict()["note"] == "hello"
    handle = opt.register_load_state_dict_pre_hook(
        lambda _, saved: {**saved, "param_groups": [{**g, "lr": 0.5} for g in saved["param_groups"]]}
    )
    saved = opt.state_dict()
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["lr"] == 0.5
    assert saved["param_groups"][0]["lr"] == 0.05
    handle.remove()


def test_a_step_hook_sees_the_wrapper_and_the_gradient_that_is_used():
    model = network()
    opt = lesam.SAM(torch.optim.SGD(model.parameters(), lr=1.0), rho=0.1)
    seen: list[Any] = []
    opt.register_step_post_hook(lambda o, args, kwargs: seen.append(o))
    opt.base.register_step_pre_hook(lambda o, args, kwargs: seen.append([p.grad.clone() for p in model.parameters()]))
    before = [p.detach().clone() for p in model.parameters()]
    step_once(opt, model, next(batches(1)))
    grads, wrapper = seen
    assert wrapper is opt
    for p, w, g in zip(model.parameters(), before, grads, strict=True):
        assert torch.equal(p, w - g)


# ---------------------------------------------------------------------- schedulers


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda opt: LambdaLR(opt, lambda epoch: 0.5**epoch),
    "OneCycleLR": lambda opt: OneCycleLR(opt, max_lr=0.2, total_steps=8),
    "ReduceLROnPlateau": lambda opt: ReduceLROnPlateau(opt, patience=0, factor=0.1),
    "CosineAnnealingLR": lambda opt: CosineAnnealingLR(opt, T_max=8),
}


@every_base
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_on_the_wrapper_move_the_base(name: str, base_name: str, recwarn):
    """Learning rates and momenta as on the bare base, and no warning about the order of calls."""
    model = network()
    opt = lesam.LESAM(BASES[base_name](model.parameters()))
    bare = BASES[base_name](network().parameters())
    ours, theirs = SCHEDULERS[name](opt), SCHEDULERS[name](bare)
    keys = ("lr", "momentum", "betas")
    rates = []
    for batch in batches(6):
        step_once(opt, model, batch)
        bare.step()
        for scheduler in (ours, theirs):
            scheduler.step(1.0) if name == "ReduceLROnPlateau" else scheduler.step()
        expected = {k: bare.param_groups[0].get(k) for k in keys}
        assert {k: opt.base.param_groups[0].get(k) for k in keys} == expected
        rates.append(opt.param_groups[0]["lr"])
    assert len(set(rates)) > 2
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]


# ---------------------------------------------------------------------- torch.distributed.checkpoint


@every_method
@every_base
@pytest.mark.parametrize("flatten", [False, True])
def test_through_distributed_checkpoint_state_dicts(case: Case, base_name: str, flatten: bool):
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    data = list(batches(9))
    model = network()
    opt = case.make(BASES[base_name](model.parameters()))
    for batch in data[:6]:
        step_once(opt, model, batch)
    saved = copy.deepcopy(get_optimizer_state_dict(model, opt, options=options))
    again = network()
    again.load_state_dict(model.state_dict())
    opt_again = case.make(BASES[base_name](again.parameters()))
    set_optimizer_state_dict(again, opt_again, saved, options=options)
    assert opt_again.steps == 6
    for batch in data[6:]:
        step_once(opt, model, batch)
        step_once(opt_again, again, batch)
    assert same_bits(model_bits(model), model_bits(again))


@every_form
@every_base
def test_a_bare_step_at_learning_rate_zero_allocates_and_advances_nothing(case: Case, base_name: str):
    model, other = batch_norm_network(), batch_norm_network()
    opt = case.make(BASES[base_name](model.parameters()), model=model)
    undisturbed = case.make(BASES[base_name](other.parameters()), model=other)
    lr = opt.param_groups[0]["lr"]
    for step, batch in enumerate(batches(7)):
        if step in (0, 5):
            opt.zero_grad()
            opt.param_groups[0]["lr"] = 0.0
            before, last = model_bits(model), opt.last
            assert opt.step() is None
            assert opt.steps == step
            assert opt.last is last
            assert same_bits(before, model_bits(model))
            opt.param_groups[0]["lr"] = lr
            if opt.parts.direction.remembers:
                assert all(len(entries) for entries in opt.state_dict()["state"].values())
                assert len(opt.state_dict()["state"]) == len(list(model.parameters()))
        step_once(opt, model, batch)
        step_once(undisturbed, other, batch)
    assert same_bits(model_bits(model), model_bits(other))


def test_a_bare_step_at_learning_rate_zero_lets_the_base_allocate_too():
    """With zero gradients in place, as torch.distributed.checkpoint has them."""
    model = network()
    opt = lesam.FriendlySAM(BASES["adamw"](model.parameters()))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    opt.param_groups[0]["lr"] = 0.0
    before = model_bits(model)
    opt.step()
    assert same_bits(before, model_bits(model))
    assert opt.steps == 0
    entries = opt.state_dict()["state"]
    assert all({"exp_avg", "exp_avg_sq", "step"} < set(entries[number]) for number in range(4))


def test_one_group_with_a_learning_rate_is_enough_to_refuse_a_bare_step():
    model = network()
    opt = lesam.SAM(torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]))
    with pytest.raises(RuntimeError, match="closure"):
        opt.step()

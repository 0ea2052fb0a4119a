"""Every optimizer of torch, timm and pytorch_optimizer as a base: it steps and resumes, or is refused by name."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import lesam

from .bases import FOUND, PACKAGES, Recipe, loss_at, network, recipe
from .cases import same, weights

# ---------------------------------------------------------------------- which ones


def asks_for_other_gradients(cls: type) -> bool:
    """Whether, within a step of its own, the net is evaluated at weights that are not those before the step."""
    way = recipe(name_of(cls))
    model = way.network()
    base = way.build(model)
    seen: list[list[Tensor]] = []
    if hasattr(base, "set_closure"):
        x, y = torch.randn(16, 6), torch.randint(0, 4, (16,))
        base.set_closure(nn.functional.cross_entropy, x, y)
    loss_at(model, 0).backward()
    before = weights(model)
    model.register_forward_pre_hook(lambda *_: seen.append(weights(model)))

    def closure() -> Tensor:
        with torch.enable_grad():
            base.zero_grad()
            loss = loss_at(model, 0)
            loss.backward()
        return loss

    base.step(*([] if hasattr(base, "set_closure") else [closure]))
    return any(not same(before, at) for at in seen)


def differentiates_the_gradient(cls: type) -> bool:
    """Whether it can step after ``backward(create_graph=True)`` only."""
    can = []
    for create_graph in (False, True):
        way = recipe(name_of(cls))
        model = way.network()
        base = way.build(model)
        loss_at(model, 0).backward(create_graph=create_graph)
        with contextlib.suppress(RuntimeError):
            base.step()
            can.append(create_graph)
    return can == [True]


def moves_weights_in_backward(cls: type) -> bool:
    way = recipe(name_of(cls))
    model = way.network()
    way.build(model)
    before = weights(model)
    loss_at(model, 0).backward()
    return not same(before, weights(model))


def has_no_groups(cls: type) -> bool:
    way = recipe(name_of(cls))
    return not hasattr(way.build(way.network()), "param_groups")


def refuses_dense_gradients(cls: type) -> bool:
    return not recipe(name_of(cls)).can_step()


def keeps_momentum_in_the_gradient(cls: type) -> bool:
    """It steps with a momentum, has no buffer for it, and changes .grad."""
    way = recipe(name_of(cls))
    model = way.network()
    base = way.build(model)
    loss_at(model, 0).backward()
    before = [p.grad.clone() for p in model.parameters()]
    base.step()
    changed = any(not torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), before, strict=True))
    return changed and "momentum" in base.defaults and not buffers(base)


#: Those that cannot be a base: why, how that is seen on the bare optimizer, and their names.
CANNOT: dict[str, tuple[Callable[[type], bool], tuple[str, ...]]] = {
    "It takes gradients at other weights within its own step, so it needs a closure that runs backward.": (
        asks_for_other_gradients,
        (
            "torch.optim.LBFGS",
            "pytorch_optimizer.BSAM",
            "pytorch_optimizer.FriendlySAM",
            "pytorch_optimizer.GSAM",
            "pytorch_optimizer.LookSAM",
            "pytorch_optimizer.SAM",
            "pytorch_optimizer.WSAM",
        ),
    ),
    "It differentiates the gradient, so it needs backward(create_graph=True).": (
        differentiates_the_gradient,
        ("timm.optim.Adahessian", "pytorch_optimizer.AdaHessian", "pytorch_optimizer.SophiaH"),
    ),
    "It moves the weights during backward and has no step.": (
        moves_weights_in_backward,
        ("pytorch_optimizer.AdaLOMO", "pytorch_optimizer.LOMO"),
    ),
    "It trains copies of its own and has no parameter groups.": (
        has_no_groups,
        ("pytorch_optimizer.SafeFP16Optimizer",),
    ),
    "It takes sparse gradients only, and a perturbation needs dense ones.": (
        refuses_dense_gradients,
        ("torch.optim.SparseAdam",),
    ),
    "It keeps its momentum in .grad, which every pass clears.": (
        keeps_momentum_in_the_gradient,
        ("pytorch_optimizer.SCIONLight",),
    ),
}
REFUSED = {name: is_so for is_so, names in CANNOT.values() for name in names}

#: They talk to other workers, so they are given a process group of one.
NEED_A_PROCESS_GROUP = ("pytorch_optimizer.DeMo", "pytorch_optimizer.DistributedMuon")

#: They cannot step without the loss, so they can be a base in closure style only.
NEED_THE_LOSS = ("pytorch_optimizer.AliG",)

#: They average the loss if they are given one, and step by its trend.
WATCH_THE_LOSS = ("pytorch_optimizer.EmoFact", "pytorch_optimizer.EmoLynx", "pytorch_optimizer.EmoNavi")

#: MSAM must not take these for a momentum: their buffer has its name and means something else.
NOT_A_MOMENTUM = {
    "pytorch_optimizer.AccSGD": "its momentum_buffer is a point between weights",
    "pytorch_optimizer.AliG": "its momentum_buffer points downhill",
}


def name_of(cls: type) -> str:
    return next(name for name, known in FOUND.items() if known is cls)


def of_a_package_here(names: Any) -> list[str]:
    """Without those of packages that are not installed, as on the oldest supported torch."""
    return [name for name in names if name.startswith(tuple(package + "." for package in PACKAGES))]


SUPPORTED = [name for name in FOUND if name not in REFUSED]
every_supported = pytest.mark.parametrize("name", SUPPORTED)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No compiling of tiny kernels, and no deprecations of other packages."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def process_group(request: pytest.FixtureRequest) -> Iterator[None]:
    """A group of one process for the optimizers that need one."""
    if request.getfixturevalue("name") not in NEED_A_PROCESS_GROUP:
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_lists_name_optimizers_that_exist():
    listed = [*REFUSED, *NEED_A_PROCESS_GROUP, *NEED_THE_LOSS, *WATCH_THE_LOSS, *NOT_A_MOMENTUM]
    assert set(of_a_package_here(listed)) <= set(FOUND)
    assert len(REFUSED) == sum(len(names) for _, names in CANNOT.values())
    assert all(len([name for name in FOUND if name.startswith(package)]) > 10 for package in PACKAGES)


# ---------------------------------------------------------------------- refused


@pytest.mark.parametrize("name", of_a_package_here(REFUSED))
def test_what_cannot_be_a_base_is_refused_by_name(name: str):
    assert REFUSED[name](FOUND[name]), "it can by now: take it out of CANNOT"
    way = recipe(name)
    model = way.network()
    base = way.build(model)
    before = weights(model)
    with pytest.raises((ValueError, RuntimeError), match=FOUND[name].__name__):
        step(lesam.LESAM(base), model, 0)
    assert same(before, weights(model))


class CallsTwice(torch.optim.SGD):
    """Like LBFGS, and unknown to everybody."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        return loss if closure is None else closure()


class ClimbsFirst(torch.optim.SGD):
    """A sharpness-aware optimizer that nobody has heard of."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for parameter in (p for group in self.param_groups for p in group["params"]):
                parameter.add_(parameter.grad)
        return super().step(closure)


@pytest.mark.parametrize("cls", [CallsTwice, ClimbsFirst])
def test_a_base_that_turns_out_to_want_other_gradients_is_named(cls: type[torch.optim.Optimizer]):
    model = network()
    with pytest.raises(RuntimeError, match=cls.__name__):
        step(lesam.LESAM(cls(model.parameters(), lr=0.1)), model, 0)


# ---------------------------------------------------------------------- supported


def step(opt: Any, model: nn.Module, number: int) -> Any:
    def closure() -> Tensor:
        opt.zero_grad()
        loss = loss_at(model, number)
        loss.backward()
        return loss

    return opt.step(closure)


def bare_step(base: Any, model: nn.Module, number: int) -> None:
    base.zero_grad()
    loss = loss_at(model, number)
    loss.backward()
    base.step(loss.detach)


def written_and_read(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def resumes(way: Recipe, wrap: Callable[[Any], Any], one_step: Callable[[Any, nn.Module, int], Any]) -> bool:
    """Whether a run that is interrupted after four steps ends as one that is not."""
    model = way.network()
    opt = wrap(way.build(model))
    for number in range(4):
        one_step(opt, model, number)
    saved, saved_model = written_and_read(opt.state_dict()), copy.deepcopy(model.state_dict())
    for number in range(4, 7):
        one_step(opt, model, number)

    fresh = way.network(seed=1)
    fresh.load_state_dict(saved_model)
    opt = wrap(way.build(fresh))
    opt.load_state_dict(saved)
    for number in range(4, 7):
        one_step(opt, fresh, number)
    assert all(torch.isfinite(p).all() for p in fresh.parameters())
    return same(weights(model), weights(fresh))


@every_supported
@pytest.mark.usefixtures("process_group")
def test_it_steps_and_resumes_bit_for_bit(name: str):
    way = recipe(name)
    resumed = resumes(way, lesam.LESAM, step)
    assert resumed or not resumes(way, lambda base: base, bare_step)


@every_supported
@pytest.mark.usefixtures("process_group")
def test_it_is_given_the_combined_gradient_and_the_clean_loss(name: str):
    """What the base step makes of them is what the bare optimizer makes of them."""
    way = recipe(name)
    model, twin = way.network(), way.network()
    base, bare = way.build(model), way.build(twin)
    opt = lesam.LESAM(base)
    given: list[Any] = []
    base.register_step_pre_hook(lambda *_: given.append([copy.deepcopy(p.grad) for p in model.parameters()]))
    for number in range(3):
        clean = step(opt, model, number).detach()
        for parameter, grad in zip(twin.parameters(), given[-1], strict=True):
            parameter.grad = grad
        loss_at(way.network(), number)  # the same random numbers
        bare.step(lambda loss=clean: loss)
        assert same(weights(model), weights(twin))
    assert not same(given[0], given[-1])


@every_supported
@pytest.mark.usefixtures("process_group")
def test_train_and_eval_are_those_of_the_base(name: str):
    way = recipe(name)
    model = way.network()
    base = way.build(model)
    opt = lesam.LESAM(base)
    for mode in ("train", "eval"):
        assert hasattr(opt, mode) == hasattr(base, mode)
    if not hasattr(base, "eval"):
        return
    twin = way.network()
    bare = way.build(twin)
    for number in range(2):
        step(opt, model, number)
    twin.load_state_dict(model.state_dict())
    bare.load_state_dict(written_and_read(base.state_dict()))
    for mode in ("eval", "train"):
        getattr(opt, mode)()
        getattr(bare, mode)()
        assert same(weights(model), weights(twin))


@pytest.mark.parametrize("name", of_a_package_here(WATCH_THE_LOSS))
def test_a_base_that_can_do_without_the_loss_is_given_it_too(name: str):
    way = recipe(name)
    model = way.network()
    base = way.build(model)
    opt = lesam.LESAM(base)
    clean = step(opt, model, 0)
    assert base.state["ema"]["short"] == pytest.approx(float(clean))
    assert float(opt.last.perturbed_loss) > float(clean) + 0.01


@pytest.mark.parametrize("name", of_a_package_here(NEED_THE_LOSS))
def test_a_base_that_needs_the_loss_is_refused_without_a_closure(name: str):
    way = recipe(name)
    model = way.network()
    opt = lesam.LESAM(way.build(model))
    before = weights(model)
    with pytest.raises(RuntimeError, match=rf"{FOUND[name].__name__}(.|\n)*closure"):
        step_without_closure(opt, model)
    assert same(before, weights(model))


def step_without_closure(opt: lesam.SharpnessAware, model: nn.Module) -> None:
    with opt.clean():
        loss_at(model, 0).backward()
    with opt.perturbed():
        loss_at(model, 0).backward()
    opt.step()


# ---------------------------------------------------------------------- MSAM


def buffers(base: torch.optim.Optimizer) -> set[str]:
    """Names of what a momentum could be: floating-point tensors of the parameter's shape."""
    return {
        key
        for parameter, entries in base.state.items()
        if isinstance(parameter, Tensor)
        for key, value in entries.items()
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point()
    }


def look_ahead(opt: lesam.SharpnessAware, model: nn.Module) -> list[Tensor]:
    """How far each parameter is from its place in the forward pass of the third step, on one batch throughout."""
    for _ in range(2):
        step(opt, model, 0)
    before, seen = weights(model), []
    hook = model.register_forward_pre_hook(lambda *_: seen.append(weights(model)))
    step(opt, model, 0)
    hook.remove()
    return [at - w for at, w in zip(seen[0], before, strict=True)]


@every_supported
@pytest.mark.usefixtures("process_group")
def test_msam_looks_ahead_or_names_the_buffers_it_found(name: str):
    """Never a plain step of the base, never with a part of its buffers, never backwards."""
    way = recipe(name)
    model = way.network()
    base = way.build(model)
    uphill = torch.autograd.grad(loss_at(model, 0), list(model.parameters()))
    opt, refusal = None, ""
    try:
        opt = lesam.MSAM(base, rho=0.1)
        ahead = look_ahead(opt, model)
    except (ValueError, RuntimeError) as error:
        refusal = str(error)
    if refusal:
        assert FOUND[name].__name__ in refusal
        assert opt is None or all(buffer in refusal for buffer in buffers(base))
        return
    assert name not in NOT_A_MOMENTUM, NOT_A_MOMENTUM[name]
    assert all(tensor.count_nonzero() > 0 for tensor in ahead)
    assert sum((g * d).sum() for g, d in zip(uphill, ahead, strict=True)) < 0


NAMED = [
    ("torch.optim.Rprop", "prev"),
    ("timm.optim.MADGRAD", "s"),
    ("timm.optim.SGDP", "momentum"),
    ("pytorch_optimizer.AdEMAMix", "exp_avg_slow"),
    ("pytorch_optimizer.NovoGrad", "moments"),
]


@pytest.mark.parametrize(("name", "buffer"), [(name, buffer) for name, buffer in NAMED if of_a_package_here([name])])
def test_msam_takes_the_buffer_it_is_told(name: str, buffer: str):
    way = recipe(name)
    model = way.network()
    base = way.build(model)
    opt = lesam.MSAM(base, rho=0.1, momentum=buffer)
    step(opt, model, 0)
    momentum = [base.state[p][buffer].clone() for p in model.parameters()]
    length = torch.cat([b.flatten() for b in momentum]).norm()
    expected = [w - 0.1 * b / length for w, b in zip(weights(model), momentum, strict=True)]
    seen: list[list[Tensor]] = []
    model.register_forward_pre_hook(lambda *_: seen.append(weights(model)))
    step(opt, model, 1)
    for at, w in zip(seen[0], expected, strict=True):
        torch.testing.assert_close(at, w)


def test_msam_names_the_buffers_when_told_a_wrong_one():
    model = network()
    opt = lesam.MSAM(torch.optim.Adam(model.parameters()), momentum="momentum_buffer")
    step(opt, model, 0)
    with pytest.raises((ValueError, RuntimeError), match=r"momentum_buffer(.|\n)*exp_avg"):
        step(opt, model, 1)

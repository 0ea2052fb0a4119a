"""What happens to a model around its steps: moved, cast, partly frozen, complex, under another default device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lesam

from .cases import BASES, ONE_OF_EACH, Case, batches, closure_for, every_method, flat, network, sgd, train, weights
from .faults import both_styles, model_bits, same_bits, step_once

# ---------------------------------------------------------------------- another dtype between steps


@every_method
@pytest.mark.parametrize("move", [nn.Module.double, lambda model: model.to(torch.float64)])
def test_weights_keep_their_precision_after_a_cast(case: Case, move):
    """At learning rate 0 a step leaves weights alone to the last bit, also those of a model that was cast."""
    model = network(dtype=torch.float32)
    opt = case.make(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    train(opt, model, 2)
    move(model)
    for state in opt.base.state.values():  # the base's own affair
        state["momentum_buffer"] = state["momentum_buffer"].double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.full_like(p, 1e-12))  # a digit that float32 does not have
    before = model_bits(model)
    for group in opt.param_groups:
        group["lr"] = 0.0
    for batch in batches(2):
        step_once(opt, model, batch)
    assert same_bits(before, model_bits(model))


@pytest.mark.parametrize("name", ["friendlysam", "eigensam", "s2sam"])
def test_what_a_method_remembers_follows_the_parameters(name: str):
    """From float32 to float64: the steps are those of an optimizer that has remembered in float64 from the start."""
    case = next(case for case in ONE_OF_EACH if case.name == name)
    model = network(dtype=torch.float32)
    opt = case.make(torch.optim.SGD(model.parameters(), lr=0.05))
    train(opt, model, 5)
    saved = opt.state_dict()
    model.double()
    twin = network()
    twin.load_state_dict(model.state_dict())
    fresh = case.make(torch.optim.SGD(twin.parameters(), lr=0.05))
    fresh.load_state_dict(saved)
    for batch in batches(3, seed=4):
        step_once(opt, model, batch)
        step_once(fresh, twin, batch)
    torch.testing.assert_close(flat(weights(model)), flat(weights(twin)), rtol=1e-12, atol=1e-14)
    remembered = [value for state in opt.state_dict()["state"].values() for value in state.values()]
    assert all(value.dtype == torch.float64 for value in remembered if value.ndim)


# ---------------------------------------------------------------------- another default device


@pytest.fixture
def meta_by_default() -> Iterator[None]:
    """Whatever is made without a device lands on "meta", where it has no value."""
    with torch.device("meta"):  # torch 2.6 cannot go back from set_default_device
        yield


@every_method
@both_styles
def test_the_default_device_does_not_matter(case: Case, style: str, request: pytest.FixtureRequest):
    model, data = network(), list(batches(6))
    opt = case.make(BASES["sgd"](model.parameters()), model=model)
    twin = network()
    expected = case.make(BASES["sgd"](twin.parameters()), model=twin)
    for batch in data:
        step_once(expected, twin, batch, style)
    request.getfixturevalue("meta_by_default")
    for batch in data:
        step_once(opt, model, batch, style)
    opt.load_state_dict(opt.state_dict())
    assert all(not bool(opt.last[name].is_meta) for name in opt.last)
    assert same_bits(model_bits(model), model_bits(twin))


# ---------------------------------------------------------------------- numbers of other libraries


@pytest.mark.parametrize(
    "value", [np.float32(0.25), np.float64(0.25), np.array(0.25), torch.tensor(0.25), torch.tensor(0.25).double()]
)
def test_scalars_of_numpy_and_torch_are_numbers(value: object):
    ends = []
    for rho in (0.25, value):
        model = network()
        opt = lesam.SAM(sgd(model), rho=rho, max_norm=rho)
        train(opt, model, 2)
        ends.append(model_bits(model))
    assert same_bits(*ends)


@pytest.mark.parametrize(
    "value", [np.bool_(True), torch.tensor(True), np.array([0.1]), torch.tensor([0.1]), np.float32("nan")]
)
def test_what_is_not_one_number_is_refused(value: object):
    with pytest.raises(ValueError, match="rho must be a number"):
        lesam.SAM(sgd(), rho=value)


# ---------------------------------------------------------------------- some parameters only


class Branch(nn.Module):
    """The last parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = network(), nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@every_method
@both_styles
def test_the_last_parameter_may_get_no_gradient(case: Case, style: str):
    model, twin = Branch(), network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for batch in batches(5):
        step_once(opt, model, batch, style)
    if case.name == "esam":  # whose random choice is another one among fewer tensors
        return
    alone = case.make(BASES["sgd"](twin.parameters()))
    for batch in batches(5):
        step_once(alone, twin, batch, style)
    torch.testing.assert_close(flat(weights(model.used)), flat(weights(twin)), rtol=1e-9, atol=1e-12)


def test_esam_leaves_out_gradients_from_the_second_step_on():
    """The first step shows which parameters have a gradient; from then on the backward is shortened."""
    model = Branch()
    opt = lesam.ESAM(sgd(model), rho=0.1, beta=0.3, gamma=1.0)
    costs = []
    for batch in batches(6):
        step_once(opt, model, batch)
        costs.append(float(opt.last.cost))
    assert costs[0] == 2.0
    assert max(costs[1:]) < 2.0
    assert all(p.requires_grad for p in model.parameters())


@every_method
def test_frozen_integer_parameters_are_left_alone(case: Case):
    """Quantised weights of a frozen base network (QLoRA), handed over with all the rest."""
    model, twin = network(), network()
    packed = nn.Parameter(torch.arange(12, dtype=torch.uint8).view(3, 4), requires_grad=False)
    opt = case.make(torch.optim.SGD([packed, *model.parameters()], lr=0.05, momentum=0.9))
    expected = case.make(sgd(twin))
    for batch in batches(5):
        step_once(opt, model, batch)
        step_once(expected, twin, batch)
    assert torch.equal(packed, torch.arange(12, dtype=torch.uint8).view(3, 4))
    if case.name != "esam":
        assert same_bits(model_bits(model), model_bits(twin))


# ---------------------------------------------------------------------- complex parameters


class ComplexNet(nn.Module):
    """|W x| with complex W, or the same net in real and imaginary parts."""

    def __init__(self, real: bool) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            w, b = torch.randn(3, 5, dtype=torch.complex128) * 0.5, torch.randn(3, dtype=torch.complex128) * 0.1
        self.real = real
        self.w = nn.Parameter(torch.view_as_real(w).clone() if real else w)
        self.b = nn.Parameter(torch.view_as_real(b).clone() if real else b)

    def forward(self, x: Tensor) -> Tensor:
        w, b = (torch.view_as_complex(p) if self.real else p for p in (self.w, self.b))
        return torch.view_as_real(x.to(torch.complex128) @ w.T + b).square().sum(-1)

    def numbers(self) -> Tensor:
        return torch.cat([(p if self.real else torch.view_as_real(p)).detach().flatten() for p in (self.w, self.b)])


@pytest.mark.parametrize("base_name", ["sgd", "adamw"])
@every_method
def test_complex_parameters_are_pairs_of_real_ones(case: Case, base_name: str):
    """As in torch's own optimizers."""
    if case.name == "eigensam":
        case = Case("eigensam", {"rho": 0.1, "every": 100})  # a random start has other numbers in another shape
    ends = []
    for real in (True, False):
        model = ComplexNet(real)
        opt = case.make(BASES[base_name](model.parameters()))
        for x, y in batches(5):
            opt.step(closure_for(opt, model, x, y))
        ends.append(model.numbers())
    if case.name == "asam":  # which scales by the number of dimensions: a vector of pairs has two
        assert torch.isfinite(ends[1]).all()
        return
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-11)


# ---------------------------------------------------------------------- what the last step saw


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("case", [case for case in ONE_OF_EACH if case.name != "esam"], ids=str)
def test_nothing_was_climbed_at_a_non_finite_gradient(case: Case, value: float):
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    x, y = next(batches(1))
    opt.step(closure_for(opt, model, x, y))
    if opt.passes == 2:
        assert float(opt.last.rho) > 0
        opt.step(closure_for(opt, model, x, y, factor=value))
        assert float(opt.last.rho) == 0.0


# ---------------------------------------------------------------------- another model's loss scaler


@pytest.mark.parametrize("case", [case for case in ONE_OF_EACH if case.name != "esam"], ids=str)
def test_the_scaler_of_another_model_is_none_of_our_business(case: Case):
    """A GAN: the discriminator is trained in fp16 with a scaler, and steps first."""
    other = network(dtype=torch.float32)
    bare = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    x, y = next(batches(1, dtype=torch.float32))
    scaler.scale(nn.functional.cross_entropy(other(x), y)).backward()
    scaler.step(bare)
    model = network(dtype=torch.float32)
    opt = case.make(torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9))
    opt.step(closure_for(opt, model, x, y, factor=1e4))
    assert opt.steps == 1


@pytest.mark.parametrize(("name", "refused"), [("sam", False), ("asam", False), ("lesam", True), ("fishersam", True)])
def test_a_scaler_nobody_mentioned_matters_only_where_the_scale_of_the_loss_does(name: str, refused: bool):
    model = network(dtype=torch.float32)
    opt = lesam.METHODS[name](torch.optim.SGD(model.parameters(), lr=1e-9))
    scaler = torch.amp.GradScaler("cpu")
    x, y = next(batches(1, dtype=torch.float32))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        return loss

    if refused:
        with pytest.raises(RuntimeError, match="GradScaler"):
            opt.step(closure)
    else:
        opt.step(closure)

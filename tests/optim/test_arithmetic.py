"""Arithmetic on whole models: random rounding, sums of half-precision numbers, complex numbers, layouts, parts."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from lesam.optim._arithmetic import Scratch, Space, clone_all, copy_all_
from lesam.optim.selfcheck.counting import Bytes, Operations

BFLOAT16 = torch.bfloat16
LARGEST, SMALLEST_NORMAL = torch.finfo(BFLOAT16).max, torch.finfo(BFLOAT16).tiny
SMALLEST = SMALLEST_NORMAL * 2.0**-7


def number(value: float) -> Tensor:
    return torch.tensor(value)


def climb_(space: Space, y: list[Tensor], coefficient: float = 1.0, skip: float = 0.0, seed: int = 0, **more) -> None:
    space.climb_(space.weights(), space.vector(y), number(coefficient), number(skip), seed, **more)


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int16)


def layouts(dtype: torch.dtype) -> list[Tensor]:
    """Tensors of every layout that a parameter may have; the fourth is large enough to be cut."""
    made = [
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(5, 300),
        torch.randn(9, 2, 8)[:, :, ::2],
        torch.randn(400),
        torch.randn(3, 7).t(),
    ]
    return [copy.deepcopy(tensor).to(dtype) for tensor in made]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


# ---------------------------------------------------------------------- rounding at random


def draws_of(w: float, move: float, draws: int = 4096) -> Tensor:
    """Where one bfloat16 weight lands, in many draws: float64."""
    weights = torch.full((draws,), w, dtype=BFLOAT16)
    assert float(weights[0]) == w
    climb_(Space([weights]), [torch.ones(draws, dtype=BFLOAT16)], move)
    return weights.double()


@pytest.mark.parametrize(
    ("w", "move"),
    [
        (1.0, 0.002),
        (1.0, -0.002),  # the distance to the next number halves below 1
        (-1.0, 0.001),
        (-1.5, -0.004),
        (-3.0, 3.0001),  # over zero
        (0.0, 1e-3),
        (0.0, -1e-20),
        (0.0, 0.3 * SMALLEST),
        (0.0, -0.3 * SMALLEST),
        (3 * SMALLEST, 0.25 * SMALLEST),
        (SMALLEST_NORMAL, -0.5 * SMALLEST),
        (LARGEST, -0.2 * 2.0**120),
    ],
)
def test_each_weight_goes_to_one_of_its_two_neighbours_and_to_the_right_place_on_average(w: float, move: float):
    landed, exact = draws_of(w, move), float(torch.tensor(w) + torch.tensor(move))
    below, above = landed[landed <= exact], landed[landed >= exact]
    assert below.numel() + above.numel() == landed.numel()
    lower, upper = below.unique(), above.unique()
    assert lower.numel() == 1
    assert upper.numel() == 1
    # nothing representable lies between the two
    towards = torch.nextafter(lower.to(BFLOAT16), upper.to(BFLOAT16)).double()
    assert towards.item() == upper.item()
    gap = float(upper - lower)
    assert abs(landed.mean().item() - exact) < 5 * 0.5 * gap / math.sqrt(landed.numel())


def test_a_weight_whose_place_is_a_bfloat16_number_goes_there_in_every_draw():
    for w, move, expected in (
        (1.0, 0.0, 1.0),
        (-0.75, 0.25, -0.5),
        (3.0, -3.0, 0.0),
        (SMALLEST, SMALLEST, 2 * SMALLEST),
    ):
        assert torch.equal(draws_of(w, move).unique(), torch.tensor([expected], dtype=torch.float64))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("move", [0.7 * 2.0**119, 2.0**120, 3e38])
def test_nothing_leaves_the_range_of_bfloat16(sign: float, move: float):
    assert torch.equal(draws_of(sign * LARGEST, sign * move).unique(), torch.tensor([sign * LARGEST]).double())


@pytest.mark.parametrize("gradient", [math.inf, -math.inf, math.nan, 1.0])
def test_where_it_skips_no_bit_of_a_weight_changes(gradient: float):
    """Every bfloat16 number, both zeros and infinities included."""
    w = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(BFLOAT16)
    w = w[~w.isnan()]
    before = bits(w).clone()
    for coefficient in (0.0, 1.0, math.nan):
        climb_(Space([w]), [torch.full_like(w, gradient)], coefficient, skip=1.0)
        assert torch.equal(bits(w), before)


def test_a_weight_that_is_no_number_stays_none():
    for skip in (0.0, 1.0):
        w = torch.tensor([math.nan, -math.nan, 1.0], dtype=BFLOAT16)
        climb_(Space([w]), [torch.ones_like(w)], skip=skip)
        assert w.isnan().tolist() == [True, True, False]


def test_equal_seeds_draw_equally_and_the_random_stream_is_left_alone():
    def drawn(seed: int) -> Tensor:
        w = torch.ones(5000, dtype=BFLOAT16)
        climb_(Space([w]), [torch.ones_like(w)], 2.0**-8, seed=seed)  # half way to the next number
        return w

    state = torch.get_rng_state()
    assert torch.equal(drawn(3), drawn(3))
    assert torch.equal(torch.get_rng_state(), state)
    one, other = drawn(3) > 1, drawn(4) > 1
    assert 0.4 < (one == other).double().mean() < 0.6
    # nor does one climb repeat itself, chunk by chunk
    assert max(float((one[lag:] == one[:-lag]).double().mean()) for lag in range(1, 4000)) < 0.6


def test_every_layout_is_climbed_as_a_whole():
    """With moves to bfloat16 numbers nothing is left to chance."""
    w = layouts(BFLOAT16)
    with torch.no_grad():
        for tensor in w:
            tensor.copy_(tensor.mul(8).round().div(8))
    y = [torch.randint(-4, 5, t.shape).to(BFLOAT16) for t in w]
    expected = [a.double() + 0.5 * b.double() for a, b in zip(w, y, strict=True)]
    assert all(torch.equal(e.to(BFLOAT16).double(), e) for e in expected)
    climb_(Space(w), y, 0.5)
    for tensor, wanted in zip(w, expected, strict=True):
        assert torch.equal(tensor.double(), wanted)


def test_tensors_of_other_kinds_beside_bfloat16_climb_exactly():
    w = [torch.ones(50, dtype=BFLOAT16), torch.ones(50), torch.ones(50, dtype=torch.float64)]
    climb_(Space(w), [torch.full_like(t, 0.5) for t in w], 0.001)
    assert set(w[0].double().unique().tolist()) <= {1.0, 1.0 + 2.0**-7}
    assert torch.equal(w[1], torch.full((50,), 1.0005))
    torch.testing.assert_close(w[2], torch.full((50,), 1.0005, dtype=torch.float64), rtol=1e-9, atol=0)


def test_some_parameters_draw_as_they_do_among_all_of_them():
    """In the room of a larger space, whichever of its parameters take part."""
    shapes = [(40, 30), (7,), (50, 20), (300,)]
    y = [torch.ones(shape, dtype=BFLOAT16) for shape in shapes]
    together, apart = ([torch.ones(shape, dtype=BFLOAT16) for shape in shapes] for _ in range(2))
    climb_(Space(together), y, 0.002, seed=5)
    whole = Space(apart)
    for chosen in ([0, 3], [2], [1]):
        climb_(Space([apart[i] for i in chosen]), [y[i] for i in chosen], 0.002, seed=5, within=whole)
    for one, other in zip(together, apart, strict=True):
        assert torch.equal(one, other)


# ---------------------------------------------------------------------- sums of half-precision numbers


@pytest.mark.parametrize("dtype", [BFLOAT16, torch.float16, torch.float32, torch.float64])
def test_norm_and_dot_over_every_layout(dtype: torch.dtype):
    w, x, y = layouts(dtype), layouts(dtype), layouts(dtype)
    space = Space(w)
    flat_x, flat_y = (torch.cat([t.double().reshape(-1) for t in tensors]) for tensors in (x, y))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert space.norm(space.vector(x)).item() == pytest.approx(flat_x.norm().item(), rel=tolerance)
    dot = space.dot(space.vector(x), space.vector(y), Scratch(space))
    assert dot.dtype == space.scalar_dtype
    assert dot.item() == pytest.approx((flat_x @ flat_y).item(), abs=tolerance * (flat_x * flat_y).abs().sum().item())


def test_products_of_float16_gradients_do_not_underflow():
    """Whose product, 1e-10, is below float16's smallest number."""
    x, y = ([torch.full((100, 7), 1e-5, dtype=torch.float16) for _ in range(3)] for _ in range(2))
    space = Space(x)
    exact = 2100 * x[0][0, 0].double() ** 2
    assert space.dot(space.vector(x), space.vector(y), Scratch(space)).item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [BFLOAT16, torch.float16, torch.float32])
def test_a_dot_over_some_parameters_sees_nothing_of_the_others(dtype: torch.dtype):
    w = [torch.ones(40, 30, dtype=dtype), torch.ones(50, dtype=dtype), torch.ones(20, 20, dtype=dtype)]
    whole, some = Space(w), Space([w[1]])
    scratch = Scratch(whole)
    bad = [torch.full_like(t, math.inf) for t in w]
    assert not torch.isfinite(whole.dot(whole.vector(bad), whole.vector(w), scratch))
    ones = [torch.ones_like(w[1])]
    assert some.dot(some.vector(ones), some.vector(ones), scratch).item() == 50.0


@pytest.mark.parametrize("dtype", [BFLOAT16, torch.float16])
@pytest.mark.parametrize(("number_of_tensors", "shape"), [(1, (512, 1024)), (1000, (10, 10))])
def test_half_precision_costs_few_operations_and_little_memory(
    dtype: torch.dtype, number_of_tensors: int, shape: tuple[int, ...]
):
    """What whole steps need is in ``tests/setups/test_bfloat16.py``."""
    w, y = ([torch.randn(shape).to(dtype) for _ in range(number_of_tensors)] for _ in range(2))
    space, size = Space(w), 2 * number_of_tensors * math.prod(shape)
    scratch = Scratch(space)
    for call, operations, copies in (
        (lambda: climb_(space, y, 0.01), 36, 1.36),
        (lambda: space.dot(space.vector(y), space.weights(), scratch), 20, 1.36),
        (lambda: space.norm(space.weights()), 5, 0.6),
    ):
        call()  # views are made once
        with Operations() as counted:
            call()
        assert counted.total <= operations
        assert counted.host_reads == 0
        with Bytes() as followed:
            call()
        assert followed.peak <= copies * size


@pytest.mark.parametrize("dtype", [BFLOAT16, torch.float16, torch.float32])
def test_a_process_may_hold_nothing(dtype: torch.dtype):
    """Shards of a parameter with fewer rows than there are processes are empty on some of them."""
    w = [torch.zeros(0, 3, dtype=dtype)]
    space = Space(w)
    climb_(space, [torch.zeros_like(w[0])])
    assert space.norm(space.weights()).item() == 0.0
    assert space.dot(space.weights(), space.weights(), Scratch(space)).item() == 0.0


# ---------------------------------------------------------------------- complex numbers


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_tensor_takes_part_as_the_real_numbers_it_is_made_of(dtype: torch.dtype):
    w = [torch.randn(3, 4, dtype=dtype), torch.randn(5, dtype=dtype), torch.randn(2, dtype=dtype.to_real())]
    x, y = ([torch.randn_like(t) for t in w] for _ in range(2))
    before = [t.clone() for t in w]
    space = Space(w)
    assert [kind.dtype for kind in space.kinds] == [dtype.to_real()]
    assert space.scalar_dtype == dtype.to_real()

    norm = torch.cat([t.abs().flatten() for t in x]).norm()
    torch.testing.assert_close(space.norm(space.vector(x)), norm)
    inner = sum((a.conj() * b).real.sum() if a.is_complex() else (a * b).sum() for a, b in zip(x, y, strict=True))
    scratch = Scratch(space)
    torch.testing.assert_close(space.dot(space.vector(x), space.vector(y), scratch), inner)

    climb_(space, x, 0.25)
    for moved, start, step in zip(w, before, x, strict=True):
        torch.testing.assert_close(moved, start + 0.25 * step)
    space.copy_(scratch.vector(space), space.vector(before))
    space.copy_(space.weights(), scratch.vector(space))
    for restored, start in zip(w, before, strict=True):
        assert torch.equal(restored, start)


def test_whether_a_complex_parameter_is_a_matrix_is_told_by_its_own_dimensions():
    w = [torch.tensor([[3.0 - 4.0j]]), torch.tensor([3.0 - 4.0j]), torch.tensor([[-2.0]]), torch.tensor([-2.0])]
    space = Space(w)
    root = Scratch(space).vector(space)
    space.magnitude_(root, space.weights(), 0.5)
    magnitudes = [[[[3.5, 4.5]]], [[1.0, 1.0]], [[2.5]], [1.0]]
    assert [tensor.tolist() for tensor in root[0]] == magnitudes


def test_a_gradient_that_is_a_conjugate_yet_to_be_worked_out():
    """What autograd leaves for ``w.conj()``: a view with the wrong imaginary part in memory."""
    w, a = nn.Parameter(torch.randn(3, dtype=torch.complex64)), torch.randn(3, dtype=torch.complex64)
    (w.conj() * a).sum().real.backward()
    assert w.grad.is_conj()
    with torch.no_grad():
        space = Space([w])
        torch.testing.assert_close(torch.view_as_complex(space.gradients()[0][0]), a)
        space.scale_(space.gradients(), 2.0)
    torch.testing.assert_close(w.grad, 2 * a)


# ---------------------------------------------------------------------- parts of a space


def test_a_part_is_the_same_tensors_in_the_order_of_the_other_space():
    w = [torch.randn(2), torch.randn(3).double(), torch.randn(4), torch.randn(5).double(), torch.randn(6).to(BFLOAT16)]
    whole, some = Space(w), Space([w[3], w[2], w[0]])
    scratch = Scratch(whole)
    part = whole.part(scratch.vector(whole), some)
    assert [[t.numel() for t in tensors] for tensors in part] == [[5], [4, 2]]
    some.copy_(part, some.weights())
    for index in (0, 2, 3):
        assert torch.equal(scratch.views[w[index]], w[index])
    for index in (1, 4):
        assert not scratch.views[w[index]].any()


def test_one_climb_with_a_sign_of_its_own_for_each_part():
    w = [torch.zeros(3), torch.zeros(2), torch.zeros(4).to(BFLOAT16)]
    y = [torch.ones_like(t) for t in w]
    whole, up, down = Space(w), Space(w[:1]), Space(w[1:])
    weights, u = whole.weights(), whole.vector(y)
    for space, sign in ((up, 1.0), (down, -1.0)):
        x, v = whole.part(weights, space), whole.part(u, space)
        space.climb_(x, v, number(0.5 * sign), number(0.0), seed=0, within=whole)
    assert [float(t[0]) for t in w] == [0.5, -0.5, -0.5]


def test_a_part_for_parameters_of_another_space_is_refused():
    space, other = Space([torch.zeros(2)]), Space([torch.zeros(7, 3)])
    with pytest.raises(ValueError, match=r"others of shapes \[\(7, 3\)\]"):
        space.part(space.weights(), other)


# ---------------------------------------------------------------------- loose tensors, other default devices


def test_copies_of_loose_tensors_of_any_kind():
    tensors = [
        torch.tensor([-0.0, math.nan, 1e-45]),
        torch.tensor(7),
        torch.tensor([True, False]),
        torch.randn(2).double(),
    ]
    with Operations() as counted:
        copies = clone_all(tensors)
    assert counted.total == 1
    kept = [t.clone() for t in tensors]
    for tensor in tensors:
        tensor.zero_()
    for one, wanted in zip(copies, kept, strict=True):
        assert one.dtype == wanted.dtype
        assert one.numpy().tobytes() == wanted.numpy().tobytes()
    copy_all_(tensors, copies)
    for tensor, wanted in zip(tensors, kept, strict=True):
        assert tensor.numpy().tobytes() == wanted.numpy().tobytes()
    assert clone_all([]) == []


@pytest.mark.parametrize("dtype", [BFLOAT16, torch.float16, torch.float32, torch.complex64])
def test_another_default_device_changes_nothing(dtype: torch.dtype):
    def results() -> list[Tensor]:
        w, y = ([torch.linspace(-1, 1, n, device="cpu").to(dtype) for n in (30, 40)] for _ in range(2))
        space = Space(w)
        scratch = Scratch(space)
        space.copy_(scratch.vector(space), space.weights())
        coefficient, skip = (torch.tensor(value, device="cpu") for value in (0.01, 0.0))
        space.climb_(space.weights(), space.vector(y), coefficient, skip, seed=1)
        space.add_(space.weights(), space.vector(y), 0.5)
        norm, dot = space.norm(space.weights()), space.dot(space.weights(), space.vector(y), Scratch(space))
        return [*w, *scratch.views.values(), norm, dot, space.scalar(2.0), space.like, *clone_all(w)]

    usual = results()
    with torch.device("meta"):  # torch 2.6 cannot go back from set_default_device
        elsewhere = results()
    for one, other in zip(usual, elsewhere, strict=True):
        assert other.device.type == "cpu"
        assert torch.equal(one, other)

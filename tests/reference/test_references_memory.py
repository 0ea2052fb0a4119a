"""The references that remember or select something: what they visit, call by call."""

import pytest
import torch
from torch import Tensor

from .esam import ESAMReference
from .long_hand import norm
from .test_references import Problem, build, curved_problem


def unit(vector: list[Tensor]) -> list[Tensor]:
    return [x / norm(vector) for x in vector]


def assert_same(actual: list[Tensor], expected: list[Tensor], tolerance: float = 1e-12) -> None:
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)


def test_friendly_sam_subtracts_the_average_of_earlier_raw_gradients() -> None:
    rho, weight, decay = 0.3, 0.7, 0.6
    problem = curved_problem()
    reference = build("friendlysam", problem, rho=rho, weight=weight, decay=decay)
    for _ in range(3):
        reference.step(problem.closure)
    first, second, third = problem.gradients[0], problem.gradients[2], problem.gradients[4]
    assert_same(problem.eps(1, 0), [rho * x for x in unit(first)])
    d = [b - weight * a for a, b in zip(first, second, strict=True)]
    assert_same(problem.eps(3, 2), [rho * x for x in unit(d)])
    m = [decay * a + (1 - decay) * b for a, b in zip(first, second, strict=True)]
    d = [c - weight * a for a, c in zip(m, third, strict=True)]
    assert_same(problem.eps(5, 4), [rho * x for x in unit(d)])


def test_s2_sam_climbs_the_gradient_it_last_descended_with() -> None:
    problem = curved_problem()
    reference = build("s2sam", problem, rho=0.3)
    for call in range(3):
        clean = [w.detach().clone() for w in problem.w]
        reference.step(problem.closure)
        eps = [v - w for v, w in zip(problem.visited[call], clean, strict=True)]
        expected = [0.0 * e for e in eps] if call == 0 else [0.3 * x for x in unit(problem.gradients[call - 1])]
        assert_same(eps, expected)
    assert len(problem.visited) == 3


@pytest.mark.parametrize(("base", "buffer"), [("sgd", "momentum_buffer"), ("adamw", "exp_avg")])
def test_msam_looks_ahead_against_the_momentum(base: str, buffer: str) -> None:
    problem = curved_problem()
    reference = build("msam", problem, lr=0.05, base=base, rho=0.3)
    for call in range(3):
        clean = [w.detach().clone() for w in problem.w]
        momentum = [reference.base.state[w][buffer].clone() for w in problem.w] if call else []
        reference.step(problem.closure)
        eps = [v - w for v, w in zip(problem.visited[call], clean, strict=True)]
        expected = [-0.3 * x for x in unit(momentum)] if call else [0.0 * e for e in eps]
        assert_same(eps, expected)
    assert len(problem.visited) == 3


# L = w' diag(1, 4, 9) w / 2: the top eigenvector is the third axis.
CURVATURE = torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)


@pytest.mark.parametrize("form", ["official", "top"])
def test_eigen_sam_finds_the_top_eigenvector_and_perturbs_by_the_formula(form: str) -> None:
    rho, alpha, iterations = 0.1, 0.2, 60
    problem = Problem(lambda w: 0.5 * (CURVATURE * w.square()).sum(), [1.0, 2.0, -0.5])
    reference = build("eigensam", problem, lr=0.0, rho=rho, alpha=alpha, every=2, iterations=iterations, form=form)
    for calls in (2, 4, 6 + 2 * iterations, 8 + 2 * iterations):
        reference.step(problem.closure)
        assert len(problem.visited) == calls

    g = problem.gradients[0][0]
    u = g / g.norm()
    v = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    assert_same(problem.eps(3), [rho * u])  # no eigenvector yet: SAM
    expected = rho * (u - alpha * (v - (v @ u) * u)) if form == "official" else -rho * v  # <g, v> < 0
    assert_same(problem.eps(-1), [expected], tolerance=1e-7)  # the error of the central difference


def test_eigen_sam_power_iteration_is_warm_started_at_distance_h() -> None:
    problem = Problem(lambda w: 0.5 * (CURVATURE * w.square()).sum(), [1.0, 2.0, -0.5])
    start = torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64)
    reference = build("eigensam", problem, lr=0.0, every=1, iterations=1, h=0.25, start=lambda: [start])
    for _ in range(3):
        reference.step(problem.closure)
    v = start / 5.0
    for call in (2, 6):  # the first call of each refresh, one step unrefreshed before it
        assert_same(problem.eps(call), [0.25 * v])
        assert_same(problem.eps(call + 1), [-0.25 * v])
        v = CURVATURE * v / (CURVATURE * v).norm()


SLOPES = torch.tensor([[1.0, 0.0], [5.0, 1.0], [5.0, 1.0], [2.0, -1.0], [5.0, 1.0]], dtype=torch.float64)


class Samples:
    """Five linear samples, ``l_i(a, b) = s_i0 a + s_i1 b``, so the rise of each is known exactly."""

    def __init__(self) -> None:
        self.a = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        self.b = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        self.asked: list[list[int] | None] = []
        self.visited: list[tuple[float, float]] = []

    def losses(self, indices: Tensor | None = None) -> Tensor:
        self.asked.append(None if indices is None else indices.tolist())
        self.visited.append((self.a.item(), self.b.item()))
        rows = SLOPES if indices is None else SLOPES[indices]
        return rows[:, 0] * self.a + rows[:, 1] * self.b


@pytest.mark.parametrize(("gamma", "kept"), [(0.2, [1]), (0.4, [1, 2]), (0.5, [1, 2, 4]), (1.0, [0, 1, 2, 3, 4])])
def test_esam_perturbs_the_masked_tensors_and_keeps_the_samples_that_rose_most(gamma: float, kept: list[int]) -> None:
    samples = Samples()
    base = torch.optim.SGD([samples.a, samples.b], lr=0.1)
    reference = ESAMReference(
        [samples.a, samples.b], base, mask=lambda t: [t == 0, t == 1], rho=0.3, beta=0.5, gamma=gamma
    )
    loss = reference.step(sample_losses=samples.losses)
    assert loss.item() == 0.0
    assert samples.asked == [None, None, kept]
    # Only the first tensor moves, by rho / beta; the samples with slope 5 tie and go by index.
    for a, b in samples.visited[1:]:
        assert a == pytest.approx(0.3 / 0.5)
        assert b == 0.0
    mean = SLOPES[kept].mean(dim=0)
    assert samples.a.item() == pytest.approx(-0.1 * mean[0].item())
    assert samples.b.item() == pytest.approx(-0.1 * mean[1].item())


@pytest.mark.parametrize(("gamma", "samples", "count"), [(0.1, 30, 3), (0.7, 10, 7), (0.5, 7, 4)])
def test_esam_counts_samples_as_decimals_do(gamma: float, samples: int, count: int) -> None:
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    asked: list[int] = []

    def losses(indices: Tensor | None = None) -> Tensor:
        asked.append(samples if indices is None else len(indices))
        return w.expand(asked[-1])

    reference = ESAMReference([w], torch.optim.SGD([w], lr=0.1), mask=lambda t: [True], gamma=gamma)
    reference.step(sample_losses=losses)
    assert asked == [samples, samples, count]


def test_esam_needs_sample_losses_to_select_samples() -> None:
    problem = curved_problem()
    reference = build("esam", problem, gamma=0.5)
    with pytest.raises(ValueError, match="gamma"):
        reference.step(problem.closure)
    assert all(torch.equal(w, start) for w, start in zip(problem.w, curved_problem().w, strict=True))

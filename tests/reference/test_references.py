"""The oracles themselves, checked against closed forms and limit cases before they judge anything."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from . import REFERENCES, Reference
from .long_hand import dot, norm


class Problem:
    """A loss of a few float64 tensors that remembers where it was evaluated and what it found there."""

    def __init__(self, loss: Callable[..., Tensor], *start: Any) -> None:
        self.w = [torch.tensor(s, dtype=torch.float64, requires_grad=True) for s in start]
        self.loss = loss
        self.visited: list[list[Tensor]] = []
        self.losses: list[float] = []
        self.gradients: list[list[Tensor]] = []

    def closure(self) -> Tensor:
        for w in self.w:
            w.grad = None
        loss = self.loss(*self.w)
        loss.backward()
        self.visited.append([w.detach().clone() for w in self.w])
        self.losses.append(loss.item())
        self.gradients.append([torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in self.w])
        return loss

    def eps(self, call: int, origin: int = 0) -> list[Tensor]:
        """Where call number ``call`` was evaluated, seen from call number ``origin``."""
        return [there - here for there, here in zip(self.visited[call], self.visited[origin], strict=True)]


def build(name: str, problem: Problem, lr: float = 0.1, base: str = "sgd", **options: Any) -> Reference:
    if name == "eigensam":
        options.setdefault("start", lambda: [torch.ones_like(w) for w in problem.w])
    if name == "esam":
        options.setdefault("mask", lambda t: [True for _ in problem.w])
        options.setdefault("beta", 1.0)
        options.setdefault("gamma", 1.0)
    optimizer = (
        torch.optim.SGD(problem.w, lr=lr, momentum=0.9) if base == "sgd" else torch.optim.AdamW(problem.w, lr=lr)
    )
    return REFERENCES[name](problem.w, optimizer, **options)


def curved(A: Tensor, b: Tensor) -> Tensor:
    return torch.cosh(A).sum() + (A @ b).square().sum() + 0.3 * (b - 1.0).pow(4).sum()


def curved_problem() -> Problem:
    return Problem(curved, [[0.3, -1.2], [0.7, 0.4], [-0.2, 0.9]], [0.5, -0.8])


def trajectory(name: str, steps: int = 6, **options: Any) -> Tensor:
    problem = curved_problem()
    reference = build(name, problem, lr=0.02, **options)
    for _ in range(steps):
        reference.step(problem.closure)
    return torch.cat([w.detach().flatten() for w in problem.w])


def quadratic(w: Tensor) -> Tensor:
    return 0.5 * 3.0 * w.square().sum()


# One dimension, L = h w^2 / 2 with h = 3, w = 2: g = h w = 6, and g_hat = h (w + eps) for every method.
H, W = 3.0, 2.0
ONE_DIMENSIONAL_UPDATE: dict[str, tuple[dict[str, Any], float]] = {
    "sam": ({"rho": 0.5}, H * (W + 0.5)),
    "asam": ({"rho": 0.5}, H * (W + 0.5)),  # a vector: T = 1
    "fishersam": ({"rho": 0.5, "eta": 2.0}, H * (W + 0.5 / math.sqrt(1 + 2.0 * 36.0))),
    "eigensam": ({"rho": 0.5}, H * (W + 0.5)),
    "friendlysam": ({"rho": 0.5}, H * (W + 0.5)),
    "gsam": ({"rho": 0.5, "alpha": 0.4}, H * (W + 0.5)),  # nothing is orthogonal to g_hat
    "ssam": ({"rho": 0.5}, H * W),
    "esam": ({"rho": 0.5, "beta": 0.25}, H * (W + 0.5 / 0.25)),
    "msam": ({"rho": 0.5}, H * W),
    "s2sam": ({"rho": 0.5}, H * W),
    "lesam": ({"sigma": 1.5, "rho_max": None}, H * W + 1.5 / W),
    "lesamplus": ({"sigma": 1.5, "alpha": 0.5, "rho_max": None}, H * W + 1.5 * 1.5 / W),
    "looksam": ({"rho": 0.5}, H * (W + 0.5)),
    "vasso": ({"rho": 0.5}, H * (W + 0.5)),
    "wsam": ({"rho": 0.5, "gamma": 0.8}, H * (W + 4.0 * 0.5)),
    "emasam": ({"rho": 0.5}, H * W),
    "crsam": ({"rho": 0.5, "alpha": 0.3, "beta": 0.1}, H * (W + 0.5) + 0.1 * H * 1.0),  # of no third derivative
    "onepasslesam": ({"sigma": 0.5}, H * W),
    "partiallesam": ({"sigma": 1.5, "rho_max": None}, H * W + 1.5 / W),  # the part is the whole
    "aesam": ({"rho": 0.5}, H * (W + 0.5)),  # the average has only a tenth of the first gradient
}


@pytest.mark.parametrize("name", REFERENCES)
def test_first_update_on_a_parabola(name: str) -> None:
    options, update = ONE_DIMENSIONAL_UPDATE[name]
    problem = Problem(quadratic, [W])
    loss = build(name, problem, **options).step(problem.closure)
    assert loss.item() == 0.5 * H * W**2
    assert problem.w[0].item() == pytest.approx(W - 0.1 * update, rel=1e-12)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_radius_zero_is_the_base_optimizer(name: str, base: str) -> None:
    zero: dict[str, Any] = {"sigma": 0.0} if "lesam" in name else {"rho": 0.0}
    problem = curved_problem()
    plain = (
        torch.optim.SGD(problem.w, lr=0.02, momentum=0.9) if base == "sgd" else torch.optim.AdamW(problem.w, lr=0.02)
    )
    for _ in range(6):
        plain.step(problem.closure)
    expected = torch.cat([w.detach().flatten() for w in problem.w])
    torch.testing.assert_close(trajectory(name, base=base, **zero), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", REFERENCES)
def test_weights_come_back_and_a_zero_gradient_perturbs_nothing(name: str) -> None:
    problem = curved_problem()
    start = [w.detach().clone() for w in problem.w]
    reference = build(name, problem, lr=0.0)
    for _ in range(3):
        reference.step(problem.closure)
    assert all(torch.equal(w, s) for w, s in zip(problem.w, start, strict=True))

    flat = Problem(quadratic, [0.0])
    reference = build(name, flat)
    for _ in range(3):
        reference.step(flat.closure)
    assert all(v[0].item() == 0.0 for v in flat.visited)
    assert flat.w[0].item() == 0.0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fishersam", {"eta": 0.0}),
        ("eigensam", {"alpha": 0.0, "every": 2}),
        ("friendlysam", {"weight": 0.0}),
        ("gsam", {"alpha": 0.0}),
        ("esam", {"beta": 1.0, "gamma": 1.0}),
        ("looksam", {"every": 1}),
        ("vasso", {"theta": 1.0}),
        ("aesam", {"threshold": -100.0}),
        ("crsam", {"alpha": 0.0, "beta": 0.0}),
        ("wsam", {"gamma": 0.5, "decoupled": False}),
    ],
)
def test_limit_case_is_sam(name: str, options: dict[str, Any]) -> None:
    sam = trajectory("sam", rho=0.3)
    torch.testing.assert_close(trajectory(name, rho=0.3, **options), sam, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(sam, trajectory("sam", rho=0.0), atol=1e-3)


def test_capped_lesam_is_sam_and_uncapped_is_not() -> None:
    sam = trajectory("sam", rho=0.3)
    torch.testing.assert_close(trajectory("lesam", sigma=1e6, rho_max=0.3), sam, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(trajectory("lesam", sigma=1.0, rho_max=None), sam, atol=1e-3)


def test_lesam_rise_is_the_budget_plus_the_curvature_term() -> None:
    sigma = 1.5
    parabola = Problem(quadratic, [W])
    build("lesam", parabola, sigma=sigma, rho_max=None).step(parabola.closure)
    rise = parabola.losses[1] - parabola.losses[0]
    assert rise == pytest.approx(sigma + 0.5 * sigma**2 / (H * W**2), rel=1e-12)

    slope = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    line = Problem(lambda w: slope @ w, [0.0, 0.0, 0.0])
    build("lesam", line, sigma=sigma, rho_max=None).step(line.closure)
    assert line.losses[1] - line.losses[0] == pytest.approx(sigma, rel=1e-11)


def test_lesam_varrho_enters_the_denominator_and_sigma_may_be_a_schedule() -> None:
    problem = Problem(quadratic, [W])
    reference = build("lesam", problem, lr=0.0, sigma=lambda t: [1.5, 0.6][t], rho_max=None, varrho=4.0)
    reference.step(problem.closure)
    reference.step(problem.closure)
    assert problem.eps(1)[0].item() == pytest.approx(1.5 / (6.0 + 4.0))
    assert problem.eps(3)[0].item() == pytest.approx(0.6 / (6.0 + 4.0))


def test_lesam_plus_forms() -> None:
    g, g_hat, alpha = H * W, H * W + 1.5 / W, 0.25
    for form, update in [("paper", (1 + alpha) * g_hat - alpha * g), ("reference", g_hat - alpha * g)]:
        problem = Problem(quadratic, [W])
        reference = build("lesamplus", problem, sigma=1.5, alpha=alpha, rho_max=None, form=form)
        reference.step(problem.closure)
        assert problem.w[0].item() == pytest.approx(W - 0.1 * update, rel=1e-12)


def test_asam_scales_matrices_and_leaves_vectors() -> None:
    rho, eta = 0.5, 0.1
    problem = Problem(lambda A, b: 3.0 * A.sum() + 4.0 * b.sum(), [[2.0]], [7.0])
    build("asam", problem, rho=rho, eta=eta).step(problem.closure)
    length = math.hypot((2.0 + eta) * 3.0, 4.0)
    eps_A, eps_b = problem.eps(1)
    assert eps_A.item() == pytest.approx(rho * (2.0 + eta) ** 2 * 3.0 / length)
    assert eps_b.item() == pytest.approx(rho * 4.0 / length)


def test_fisher_perturbation_lies_on_the_ellipsoid_and_climbs_most() -> None:
    rho, eta = 0.3, 2.0
    problem = curved_problem()
    build("fishersam", problem, rho=rho, eta=eta).step(problem.closure)
    eps, g = problem.eps(1), problem.gradients[0]
    fisher = [1.0 + eta * g_i**2 for g_i in g]
    assert dot(eps, [F * e for F, e in zip(fisher, eps, strict=True)]) == pytest.approx(rho**2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        other = [torch.randn(e.shape, generator=generator, dtype=e.dtype) for e in eps]
        length = math.sqrt(dot(other, [F * o for F, o in zip(fisher, other, strict=True)]))
        assert dot(g, other) * rho / length <= dot(g, eps) + 1e-12


def test_gsam_correction_is_minus_alpha_times_the_orthogonal_part() -> None:
    problem = curved_problem()
    build("gsam", problem, lr=1.0, rho=0.3, alpha=0.4).step(problem.closure)
    g, g_hat = problem.gradients
    update = [before - w.detach() for before, w in zip(problem.visited[0], problem.w, strict=True)]
    correction = [u - p for u, p in zip(update, g_hat, strict=True)]
    assert dot(correction, g_hat) == pytest.approx(0.0, abs=1e-10)
    assert dot(correction, g) == pytest.approx(-0.4 * (dot(g, g) - dot(g, g_hat) ** 2 / dot(g_hat, g_hat)))
    assert norm(correction) > 1e-2


def test_ssam_descends_along_the_perturbed_gradient_with_the_clean_length() -> None:
    problem = curved_problem()
    build("ssam", problem, lr=1.0, rho=0.3).step(problem.closure)
    g, g_hat = problem.gradients
    update = [before - w.detach() for before, w in zip(problem.visited[0], problem.w, strict=True)]
    assert norm(update) == pytest.approx(norm(g))
    assert dot(update, g_hat) == pytest.approx(norm(g) * norm(g_hat))
    assert abs(norm(g) - norm(g_hat)) > 0.1

"""The table that drives the optimizer tests: a method that is not in it does not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lesam


@dataclass(frozen=True)
class Case:
    """A method with hyper-parameters under which all of it is at work."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    def __str__(self) -> str:
        return self.label or self.name

    def make(self, base: torch.optim.Optimizer, **more: Any) -> lesam.SharpnessAware:
        return lesam.METHODS[self.name](base, **{**self.options, **more})


ONE_OF_EACH = [
    Case("sam", {"rho": 0.1}),
    Case("asam", {"rho": 0.5}),
    Case("fishersam", {"rho": 0.1, "eta": 2.0}),
    Case("eigensam", {"rho": 0.1, "alpha": 0.3, "every": 4, "iterations": 2}),
    Case("friendlysam", {"rho": 0.1, "weight": 0.9, "decay": 0.8}),
    Case("gsam", {"rho": 0.1, "alpha": 0.4}),
    Case("ssam", {"rho": 0.1}),
    Case("esam", {"rho": 0.1, "beta": 0.6, "gamma": 1.0}),
    Case("msam", {"rho": 0.1}),
    Case("s2sam", {"rho": 0.1}),
    Case("lesam", {"sigma": 0.05, "rho_max": 0.2}),
    Case("lesamplus", {"sigma": 0.05, "rho_max": 0.2, "alpha": 0.5}),
    Case("looksam", {"rho": 0.1, "alpha": 0.5, "every": 5}),
    Case("vasso", {"rho": 0.1, "theta": 0.3}),
    Case("wsam", {"rho": 0.1, "gamma": 0.8}),
    Case("emasam", {"rho": 0.1, "decay": 0.9}),
    Case("aesam", {"rho": 0.1, "threshold": 0.3, "decay": 0.7}),
    Case("crsam", {"rho": 0.1, "alpha": 0.3, "beta": 0.1}),
    Case("onepasslesam", {"sigma": 0.05, "theta": 0.6, "rho_max": 0.2}),
    Case("partiallesam", {"sigma": 0.05, "rho_max": 0.2}),  # of whole batches; parts: test_part_of_the_batch
]
ONE_PASS = ("msam", "s2sam", "emasam", "onepasslesam")
CLOSURES_ONLY = ("crsam",)  # three passes
EVERY_STEP: dict[str, dict[str, Any]] = {"looksam": {"every": 1}, "aesam": {"threshold": -100.0}}


def climbing(case: Case) -> Case:
    """The method with its second pass in every step, for tests that look into that pass."""
    return Case(case.name, {**case.options, **EVERY_STEP.get(case.name, {})}, case.label)


FORMS = [
    Case("eigensam", {"rho": 0.1, "every": 4, "iterations": 2, "form": "top"}, "eigensam-top"),
    Case("lesamplus", {"sigma": 0.05, "alpha": 0.5, "form": "reference"}, "lesamplus-reference"),
    Case("lesam", {"sigma": 0.02, "rho_max": None}, "lesam-uncapped"),
    Case("lesam", {"sigma": lesam.schedules.cosine_tail(0.05, 5, 20)}, "lesam-annealed"),
    Case("wsam", {"rho": 0.1, "gamma": 0.8, "decoupled": False}, "wsam-coupled"),
]

BASES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.02, weight_decay=1e-2),
}


def sgd(model: nn.Module | None = None) -> torch.optim.SGD:
    """SGD with momentum over a model, or over one of its own."""
    return torch.optim.SGD((model or network()).parameters(), lr=0.05, momentum=0.9)


every_method = pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
every_method_in_contexts = pytest.mark.parametrize(
    "case", [case for case in ONE_OF_EACH if case.name not in CLOSURES_ONLY], ids=str
)
every_form = pytest.mark.parametrize("case", ONE_OF_EACH + FORMS, ids=str)
every_base = pytest.mark.parametrize("base_name", BASES)


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A small net with matrices and vectors among its parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def batches(steps: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Iterator[tuple[Tensor, Tensor]]:
    """A different mini-batch at each step."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 5, generator=generator, dtype=torch.float64).to(dtype)
        yield x, torch.randint(0, 3, (16,), generator=generator)


def closure_for(opt: Any, model: nn.Module, x: Tensor, y: Tensor, factor: float = 1.0) -> Callable[[], Tensor]:
    """The closure of the README."""

    def closure() -> Tensor:
        opt.zero_grad()
        loss = factor * nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def context_step(opt: lesam.SharpnessAware, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """One step without a closure."""
    direction = opt.parts.direction
    if direction.refresh_due(opt.steps):
        opt.refresh(closure_for(opt, model, x, y))
    clean = opt.passes == 2
    if clean:
        with opt.clean():
            nn.functional.cross_entropy(model(x), y).backward()
    if not clean or opt.passes == 2:  # else a gate has decided that one pass is enough
        with opt.perturbed():
            nn.functional.cross_entropy(model(x), y).backward()
    opt.step()


def train(opt: lesam.SharpnessAware, model: nn.Module, steps: int, seed: int = 1, style: str = "closure") -> None:
    """Train for some steps on the batches of ``seed``."""
    dtype = next(model.parameters()).dtype
    for x, y in batches(steps, seed, dtype):
        if style == "closure" or opt.passes > 2:
            opt.step(closure_for(opt, model, x, y))
        else:
            context_step(opt, model, x, y)


def weights(model: nn.Module) -> list[Tensor]:
    """Copies of the parameters."""
    return [p.detach().clone() for p in model.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Equal bit for bit."""
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def flat(tensors: list[Tensor]) -> Tensor:
    """All numbers in a row."""
    return torch.cat([t.detach().flatten() for t in tensors])

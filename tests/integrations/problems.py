"""Small problems whose plain-torch training every framework must reproduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytorch_optimizer
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lesam

Batch = tuple[Tensor, Tensor]

#: methods that differ in what an integration has to get right: passes, mixing, memory, loss scale
METHODS: dict[str, dict[str, Any]] = {
    "lesam": {"sigma": 0.05, "rho_max": None},
    "lesamplus": {"sigma": 0.05, "alpha": 0.5, "rho_max": None},
    "gsam": {"rho": 0.1, "alpha": 0.3},
    "friendlysam": {"rho": 0.1},
    "eigensam": {"rho": 0.1, "every": 2, "iterations": 2},
    "msam": {"rho": 0.3},
    "s2sam": {"rho": 0.1},
    "onepasslesam": {"sigma": 0.05, "rho_max": None},
    "partiallesam": {"sigma": 0.05, "rho_max": None},
    "aesam": {"rho": 0.1, "threshold": 0.3, "decay": 0.7},
}


def network(dtype: torch.dtype = torch.float64, dropout: float = 0.25, batchnorm: bool = True) -> nn.Sequential:
    """Dropout and BatchNorm on purpose: both must see two passes as one."""
    torch.manual_seed(0)
    norm: nn.Module = nn.BatchNorm1d(8) if batchnorm else nn.Identity()
    return nn.Sequential(nn.Linear(6, 8), norm, nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3)).to(dtype)


def data(batches: int, size: int = 4, dtype: torch.dtype = torch.float64, seed: int = 1) -> list[Batch]:
    """Batches with a learnable rule."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batches * size, 6, generator=generator, dtype=torch.float64)
    y = (x[:, :3] + 0.5 * torch.randn(batches * size, 3, generator=generator, dtype=torch.float64)).argmax(1)
    x = x.to(dtype)
    return [(x[i : i + size], y[i : i + size]) for i in range(0, batches * size, size)]


def loader(batches: Sequence[Batch]) -> DataLoader[Any]:
    """A loader of ready-made batches, which draws no random number that dropout would have drawn."""
    return DataLoader(batches, batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]


def optimizer(name: str, model: nn.Module, lr: float = 0.2, **options: Any) -> lesam.SharpnessAware:
    """The method around SGD with momentum."""
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return lesam.METHODS[name](base, model=model, **{**METHODS[name], **options})


def muon_and_adamw(name: str, model: nn.Module, **options: Any) -> lesam.SharpnessAware:
    """The method around two bases: Muon for matrices, AdamW for the rest."""
    muon = getattr(torch.optim, "Muon", partial(torch.optim.SGD, momentum=0.95, nesterov=True))  # from torch 2.9 on
    bases = [
        muon([p for p in model.parameters() if p.ndim == 2], lr=0.02),
        torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=0.01),
    ]
    return lesam.METHODS[name](bases, model=model, **{**METHODS[name], **options})


def schedule_free(name: str, model: nn.Module, **options: Any) -> lesam.SharpnessAware:
    """The method around schedule-free SGD, whose averaged weights are far from the trained ones."""
    base = pytorch_optimizer.ScheduleFreeSGD(model.parameters(), lr=0.5)
    return lesam.METHODS[name](base, model=model, **{**METHODS[name], **options})


def closure(opt: Any, model: nn.Module, batch: Batch, bf16: bool = False) -> Callable[[], Tensor]:
    """The plain closure of a batch."""

    def run() -> Tensor:
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    return run


def train(opt: Any, model: nn.Module, windows: Sequence[Sequence[Batch]], bf16: bool = False) -> list[float]:
    """Plain torch: one step for each window of micro-batches; returns the clean losses."""
    torch.manual_seed(2)
    model.train()
    losses = []
    for window in windows:
        closures = [closure(opt, model, batch, bf16) for batch in window]
        losses.append(float(opt.step(closures if len(closures) > 1 else closures[0]).detach()))
    return losses


def windows(batches: Sequence[Batch], k: int) -> list[list[Batch]]:
    """Batches in groups of k."""
    return [list(batches[i : i + k]) for i in range(0, len(batches), k)]


def assert_same(model: nn.Module, reference: nn.Module, **tolerance: float) -> None:
    """All parameters and buffers equal."""
    expected = reference.state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def assert_resumes(make: Callable[[], nn.Module], run: Callable[[nn.Module, str, Callable[[], None]], None]) -> None:
    """Half of the training, all objects anew, the other half: bit for bit the uninterrupted run.

    Args:
        make: The model at the start.
        run: ``run(model, part, begin)`` trains a part: "whole"; "first", then saves; or loads that, then "second".
            It calls ``begin`` when all is set up, for the random numbers to be those of the uninterrupted run.
    """
    through, first, second = make(), make(), make()
    run(through, "whole", _seed)
    run(first, "first", _seed)
    halfway = torch.get_rng_state()
    run(second, "second", lambda: torch.set_rng_state(halfway))
    assert_same(second, through, rtol=0, atol=0)
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), through.parameters(), strict=True))


def _seed() -> None:
    torch.manual_seed(2)

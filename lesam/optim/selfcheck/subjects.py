"""What the checks train: small networks, batches, every method, and one step of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .._sharpness_aware import SharpnessAware
from ..methods import METHODS

Batch = tuple[Tensor, Tensor]

#: Hyper-parameters under which all of a method is at work within a few steps; other methods have their defaults.
AT_WORK: dict[str, dict[str, Any]] = {
    "eigensam": {"every": 2, "iterations": 2},
    "msam": {"rho": 0.1},
    "lesam": {"sigma": 0.05},
    "lesamplus": {"sigma": 0.05},
    "looksam": {"every": 2},
    "aesam": {"threshold": -100.0},
}
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def network(device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Matrices, vectors and running statistics; the same weights at each call and on each device."""

    def build() -> nn.Sequential:
        # A bias before BatchNorm has no gradient but rounding errors, of which Adam makes whole steps.
        return nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))

    return seeded(build, device, dtype)


def seeded(build: Callable[[], nn.Sequential], device: torch.device, dtype: torch.dtype) -> nn.Sequential:
    """A network whose weights are drawn on the CPU from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().to(device, dtype)


def batches(device: torch.device, steps: int, dtype: torch.dtype = torch.float32) -> list[Batch]:
    """A different mini-batch for each step."""
    generator = torch.Generator().manual_seed(1)
    drawn = [
        (torch.randn(32, 8, generator=generator), torch.randint(0, 4, (32,), generator=generator)) for _ in range(steps)
    ]
    return [(x.to(device, dtype), y.to(device)) for x, y in drawn]


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    """A base that every method can wrap: some need its momentum."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def make(name: str, base: torch.optim.Optimizer, **options: Any) -> SharpnessAware:
    """A method by name, with all of it at work."""
    return METHODS[name](base, **{**AT_WORK.get(name, {}), **options})


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The mean loss."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def backward(loss: Tensor) -> None:
    """``loss.backward()``, which torch has no types for."""
    loss.backward()  # type: ignore[no-untyped-call]


def plain_step(model: nn.Module, batch: Batch) -> None:
    """A forward and a backward without the library: whether torch itself can do it."""
    backward(loss_of(model, batch))
    model.zero_grad()


def step(opt: Any, model: nn.Module, batch: Batch, during: Callable[[], None] = lambda: None) -> Any:
    """One step with a closure; ``during`` is called in the middle of every pass."""
    x, y = batch

    def closure() -> Tensor:
        opt.zero_grad()
        loss = loss_of(model, batch)
        during()
        backward(loss)
        return loss

    def losses(indices: Tensor | None = None) -> Tensor:
        during()
        xs, ys = (x, y) if indices is None else (x[indices], y[indices])
        return nn.functional.cross_entropy(model(xs), ys, reduction="none")

    return opt.step(closure) if opt.parts.samples is None else opt.step(sample_losses=losses)


def context_step(opt: SharpnessAware, model: nn.Module, batch: Batch) -> None:
    """One step of a two-pass method without a closure."""
    with opt.clean():
        backward(loss_of(model, batch))
    with opt.perturbed():
        backward(loss_of(model, batch))
    opt.step()


def weights(model: nn.Module) -> Tensor:
    """All parameters in a row, gathered if they are sharded, in float64 on the CPU."""
    whole: list[Tensor] = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    return torch.cat([tensor.detach().cpu().double().flatten() for tensor in whole])


def bits(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies as integers: -0.0 is not 0.0 here, and NaN equals itself."""
    return [t.detach().clone().contiguous().view(INTEGERS[t.element_size()]) for t in tensors]


def differing(a: Iterable[Tensor], b: Iterable[Tensor]) -> int:
    """The number of elements that are not equal."""
    return sum(int((x != y).sum()) for x, y in zip(a, b, strict=True))


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


def supports(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether plain torch trains in ``dtype`` on ``device``."""
    try:
        plain_step(network(device, dtype), batches(device, 1, dtype)[0])
    except (RuntimeError, TypeError):  # the latter: float64 on Apple's GPUs
        return False
    return True

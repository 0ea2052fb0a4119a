"""A batch shared between processes, and what they are compared with: one process on the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..optim.cases import BASES, Case, batches, closure_for, network
from .processes import WORLD

STEPS = 6  # Eigen-SAM of the table refreshes at step 4

Batch = tuple[Tensor, Tensor]


def share(batch: Batch) -> Batch:
    """This rank's half of a batch: the mean over ranks of mean losses is then the mean loss of the whole."""
    return batch[0].chunk(WORLD)[dist.get_rank()], batch[1].chunk(WORLD)[dist.get_rank()]


def shared_batches(steps: int = STEPS) -> Iterator[Batch]:
    """This rank's halves of the batches that one process would see."""
    return map(share, batches(steps))


def micro(batch: Batch, number: int) -> list[Batch]:
    """A batch cut into micro-batches of equal size."""
    return list(zip(batch[0].chunk(number), batch[1].chunk(number), strict=True))


def numbers(model: nn.Module) -> Tensor:
    """All parameters in a row, gathered if they are sharded."""
    whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in whole]).clone()


def alone(
    case: Case,
    base_name: str = "sgd",
    steps: int = STEPS,
    make_model: Callable[[], nn.Module] = network,
    **options: Any,
) -> Tensor:
    """The weights one process reaches on the whole batches."""
    model = make_model()
    opt = case.make(BASES[base_name](model.parameters()), model=model, **options)
    for x, y in batches(steps):
        opt.step(closure_for(opt, model, x, y))
    return numbers(model)


def assert_equal_to(expected: Tensor, found: list[Tensor]) -> None:
    """Every rank is where it should be, and all of them at the same place."""
    assert torch.equal(found[0], found[1]), "the ranks have drifted apart"
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-11)

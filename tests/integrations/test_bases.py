"""Bases people train with: each gets LE-SAM's gradient, and takes the step that it takes alone with that gradient."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import lesam

pytest.importorskip("schedulefree")
pytest.importorskip("bitsandbytes")
pytest.importorskip("lion_pytorch")

import bitsandbytes
import lion_pytorch
import schedulefree

from tests import needs

from . import long_hand

pytestmark = pytest.mark.filterwarnings("ignore")
SIGMA = 0.3
STEPS = 4


def network() -> nn.Sequential:
    """Matrices of 64 x 64: the smallest whose states are kept in eight bits."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(16, 64, generator=generator), torch.randint(0, 8, (16,), generator=generator)


def muon_and_adamw(parameters: list[Tensor]) -> list[torch.optim.Optimizer]:
    matrices, others = [p for p in parameters if p.ndim == 2], [p for p in parameters if p.ndim != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]


def of_torchao(name: str, parameters: list[Tensor]) -> Any:
    import torchao.optim  # not for every torch

    return getattr(torchao.optim, name)(parameters, lr=0.01)


BASES: dict[str, Callable[[list[Tensor]], Any]] = {
    "Muon and AdamW": muon_and_adamw,
    "Lion": functools.partial(lion_pytorch.Lion, lr=0.01),
    "Adafactor of torch": functools.partial(torch.optim.Adafactor, lr=0.01),
    "Adafactor of transformers": functools.partial(transformers.Adafactor, lr=None, warmup_init=True),
    "schedule-free AdamW": functools.partial(schedulefree.AdamWScheduleFree, lr=0.01, warmup_steps=2),
    "schedule-free SGD": functools.partial(schedulefree.SGDScheduleFree, lr=0.5),
    "torchao, 8 bits": functools.partial(of_torchao, "AdamW8bit"),
    "torchao, 4 bits": functools.partial(of_torchao, "AdamW4bit"),
    "torchao, fp8": functools.partial(of_torchao, "AdamWFp8"),
    "bitsandbytes, 8 bits": functools.partial(bitsandbytes.optim.AdamW8bit, lr=0.01),
    "bitsandbytes, Lion in 8 bits": functools.partial(bitsandbytes.optim.Lion8bit, lr=0.01),
}
NEEDS = {"Muon and AdamW": [needs.muon]} | {name: [needs.torchao] for name in BASES if name.startswith("torchao")}
every_base = pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in BASES])


@pytest.fixture(autouse=True)
def _eagerly() -> Iterator[None]:
    """torchao compiles its steps, which takes a minute and changes nothing of what is tested here."""
    with torch.compiler.set_stance("force_eager"):
        yield


def as_list(base: Any) -> list[Any]:
    return base if isinstance(base, list) else [base]


def training(opt: Any) -> None:
    if hasattr(opt, "train"):
        opt.train()


def take_step(opt: Any, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    return opt.step(closure)


@every_base
def test_a_step_is_the_bases_own_with_the_gradient_uphill(name: str) -> None:
    """The gradient is the long hand's; the step equals, bit for bit, that of the same base alone with that gradient.

    Comparing weights alone would not do: Muon computes in bfloat16 and Lion takes signs, so rounding grows.
    """
    model, reference = network(), network()
    bases, alone = BASES[name](list(model.parameters())), BASES[name](list(reference.parameters()))
    opt = lesam.LESAM(bases, sigma=SIGMA, rho_max=None, model=model)
    given: dict[str, Tensor] = {}
    for base in opt.bases:
        base.register_step_pre_hook(lambda *_: given.update({n: p.grad.clone() for n, p in model.named_parameters()}))
    training(opt)
    for base in as_list(alone):
        training(base)
    for x, y in batches(STEPS):
        take_step(opt, model, (x, y))
        plain = torch.autograd.grad(F.cross_entropy(reference(x), y), list(reference.parameters()))
        long_hand.climb(list(reference.parameters()), lambda x=x, y=y: F.cross_entropy(reference(x), y), SIGMA)
        for (label, p), unperturbed in zip(reference.named_parameters(), plain, strict=True):
            torch.testing.assert_close(given[label], p.grad, rtol=1e-3, atol=1e-6)
            assert not torch.allclose(given[label], unperturbed, rtol=1e-2, atol=1e-5), "nothing was climbed"
            p.grad = given[label]
        for base in as_list(alone):
            base.step()
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.equal(p, q)
    if hasattr(opt, "eval"):
        opt.eval()
        alone.eval()
        assert all(map(torch.equal, model.parameters(), reference.parameters()))


@every_base
def test_resumes_from_a_file(name: str) -> None:
    """Friendly-SAM, which remembers a gradient of its own, beside states that are no plain tensors."""
    model = network()
    opt = lesam.FriendlySAM(BASES[name](list(model.parameters())), rho=0.1, model=model)
    training(opt)
    *first, last = batches(3)
    for batch in first:
        take_step(opt, model, batch)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, file)
    file.seek(0)
    saved, again = torch.load(file, weights_only=False), network()
    again.load_state_dict(saved["model"])
    resumed = lesam.FriendlySAM(BASES[name](list(again.parameters())), rho=0.1, model=again)
    resumed.load_state_dict(saved["optimizer"])
    take_step(opt, model, last)
    take_step(resumed, again, last)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


@pytest.mark.parametrize("name", [pytest.param("torchao, 8 bits", marks=needs.torchao), "bitsandbytes, 8 bits"])
def test_states_stay_in_eight_bits(name: str) -> None:
    model = network()
    opt = lesam.LESAM(BASES[name](list(model.parameters())), sigma=SIGMA, model=model)
    take_step(opt, model, next(batches(1)))
    entries = opt.base.state[model[0].weight]
    codes = [getattr(value, "codes", value) for key, value in entries.items() if key in ("exp_avg", "state1")]
    assert [code.dtype for code in codes] == [torch.uint8]


def test_a_wrapper_that_is_no_optimizer_of_torch_is_refused() -> None:
    base = schedulefree.ScheduleFreeWrapper(torch.optim.AdamW(network().parameters()), momentum=0.9)
    with pytest.raises(ValueError, match=r"must be a torch\.optim\.Optimizer.*ScheduleFreeWrapper"):
        lesam.LESAM(base)

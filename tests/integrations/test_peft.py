"""Low-rank adapters over a frozen base: only they are perturbed and cost memory, and the step is the long hand's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lesam
from lesam.optim.selfcheck.counting import Bytes

pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")

import bitsandbytes

from . import long_hand
from .language import adapted, llama, sentences, sum_over_tokens

pytestmark = pytest.mark.filterwarnings("ignore")
SIGMA = 0.3
SENTENCES = [sentences([3, 12, 4]), sentences([9, 5])]  # the micro-batches of a step
TOKENS = sum(len(sentence) - 1 for batch in SENTENCES for sentence in batch)


def in_four_bits() -> Any:
    """A base whose linear layers are packed into bytes (QLoRA's NF4)."""
    model = llama()
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if isinstance(linear, nn.Linear):
                    packed = bitsandbytes.nn.Linear4bit(
                        linear.in_features, linear.out_features, bias=False, quant_type="nf4"
                    )
                    packed.load_state_dict(linear.state_dict())
                    setattr(part, name, packed.to("cpu"))  # packs them
    model.is_loaded_in_4bit = True  # as `from_pretrained(quantization_config=...)` says it
    return model


KINDS: dict[str, Callable[[], Any]] = {
    "lora": adapted,
    "dora": lambda: adapted(use_dora=True),
    "four bits": lambda: adapted(in_four_bits()),
}


def adapters(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def frozen(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters() if not p.requires_grad]


def micro_batch(opt: Any, model: Any, batch: list[list[int]]) -> Callable[[], Tensor]:
    """Its share of the mean over all tokens; the library averages over micro-batches."""

    def closure() -> Tensor:
        opt.zero_grad()
        total = torch.stack([sum_over_tokens(model, sentence) for sentence in batch]).sum()
        loss = total * len(SENTENCES) / TOKENS
        loss.backward()
        return loss

    return closure


def mean_over_tokens(model: Any) -> Tensor:
    return torch.stack([sum_over_tokens(model, s) for batch in SENTENCES for s in batch]).sum() / TOKENS


@pytest.mark.parametrize("kind", KINDS)
def test_accumulated_and_checkpointed_steps_equal_the_plain_ones(kind: str) -> None:
    model = KINDS[kind]()
    assert any(not p.is_floating_point() for p in model.parameters()) == (kind == "four bits")
    reference, start, before = copy.deepcopy(model), long_hand.trained(model), frozen(model)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    model.train()
    opt = lesam.LESAM(torch.optim.AdamW(model.parameters(), lr=0.01), sigma=SIGMA, rho_max=None, model=model)
    base = torch.optim.AdamW(adapters(reference), lr=0.01)
    reference.train()
    for _ in range(3):
        loss = opt.step([micro_batch(opt, model, batch) for batch in SENTENCES])
        clean = long_hand.step(base, lambda: mean_over_tokens(reference), SIGMA)
        assert float(loss.detach()) == pytest.approx(clean, rel=1e-5)
    long_hand.assert_same_update(model, reference, start, rel=1e-4)
    assert all(map(torch.equal, frozen(model), before))


@pytest.mark.parametrize("kind", ["lora", "dora"])  # four bits are rounded again, by more than training moved them
def test_merging_after_training(kind: str) -> None:
    """The merged model predicts what base and adapters did: trained weights are in place, not perturbed ones."""
    model = KINDS[kind]()
    opt = lesam.LESAM(torch.optim.SGD(adapters(model), lr=0.1), sigma=SIGMA, model=model)
    untrained = model(input_ids=torch.tensor(SENTENCES[0][:1])).logits.detach()
    for _ in range(2):
        opt.step([micro_batch(opt, model, batch) for batch in SENTENCES])
    tokens = torch.tensor(SENTENCES[0][:1])
    with torch.no_grad():
        wanted = model(input_ids=tokens).logits
        merged = model.merge_and_unload()
        got = merged(input_ids=tokens).logits
    far = float((wanted - untrained).norm())
    assert far > 0.1
    assert float((got - wanted).norm()) < 1e-4 * far


def test_what_moves_in_the_merged_weights() -> None:
    """Climbing on the factors moves their product within twice their rank, and the frozen weights not at all."""
    model = adapted()
    layer = model.base_model.model.model.layers[0].mlp.up_proj
    opt = lesam.LESAM(torch.optim.SGD(adapters(model), lr=0.1), sigma=SIGMA, rho_max=None)
    products, bases = [layer.get_delta_weight("default").detach()], [layer.base_layer.weight.detach().clone()]
    with opt.clean():
        mean_over_tokens(model).backward()
    with opt.perturbed():
        products.append(layer.get_delta_weight("default").detach())
        bases.append(layer.base_layer.weight.detach().clone())
        mean_over_tokens(model).backward()
    opt.step()
    moved = torch.linalg.svdvals((products[1] - products[0]).double())
    assert moved[0] > 1e-3
    assert 2 * layer.r["default"] == 4
    assert moved[4] < 1e-5 * moved[0]
    assert torch.equal(*bases)


def test_memory_is_a_copy_of_the_adapters() -> None:
    """What LE-SAM keeps and what it needs at the worst moment, beyond two passes of the base: bytes of the adapters."""
    followed = {}
    for label in ("ours", "bare"):
        model = adapted(r=64)
        base = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
        opt = lesam.LESAM(base, sigma=SIGMA, model=model) if label == "ours" else base

        def closure(opt: Any = opt, model: Any = model) -> Tensor:
            opt.zero_grad()
            loss = sum_over_tokens(model, SENTENCES[0][0])
            loss.backward()
            return loss.detach()

        def bare(base: Any = base, closure: Any = closure) -> None:
            closure()
            closure()
            base.step()

        with Bytes() as followed[label]:
            for _ in range(2):
                opt.step(closure) if label == "ours" else bare()
    size = sum(p.nbytes for p in adapters(model))
    assert size > 5 * sum(p.nbytes for p in frozen(model))  # so that a tenth of it is less than a copy of those
    for moment in ("peak", "left"):
        extra = getattr(followed["ours"], moment) - getattr(followed["bare"], moment)
        assert 0.95 * size <= extra <= 1.1 * size, moment

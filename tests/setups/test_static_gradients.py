"""Gradients in memory that every backward overwrites: what ``torch.cuda.make_graphed_callables`` hands to autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..optim.cases import BASES, Case, batches, closure_for, every_method, flat, network, same, train, weights


class Replayed(torch.autograd.Function):
    """A linear layer whose gradients are those of a graph that was captured once: always in the same memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, outputs: tuple[Tensor, Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.outputs = outputs
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.outputs[0].copy_(grad.t() @ x)
        ctx.outputs[1].copy_(grad.sum(0))
        return grad @ weight, ctx.outputs[0].detach(), ctx.outputs[1].detach(), None


class Graphed(nn.Module):
    """A network whose linear layers are replayed."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.model = model
        self.outputs = {layer: tuple(torch.zeros_like(p).detach() for p in layer.parameters()) for layer in model}

    def forward(self, x: Tensor) -> Tensor:
        for layer, outputs in self.outputs.items():
            x = Replayed.apply(x, layer.weight, layer.bias, outputs) if outputs else layer(x)
        return x


@every_method
def test_equal_to_gradients_of_ones_own(case: Case):
    model, plain = network(), network()
    graphed = Graphed(model)
    opt, other = (case.make(BASES["sgd"](m.parameters())) for m in (model, plain))
    train(opt, graphed, 5)
    train(other, plain, 5)
    torch.testing.assert_close(flat(weights(model)), flat(weights(plain)), rtol=1e-9, atol=1e-11)


@every_method
def test_with_micro_batches(case: Case):
    model, plain = network(), network()
    graphed = Graphed(model)
    opt, other = (case.make(BASES["sgd"](m.parameters())) for m in (model, plain))
    for x, y in batches(5):
        for one, network_ in ((opt, graphed), (other, plain)):
            parts = zip(x.chunk(2), y.chunk(2), strict=True)
            one.step([closure_for(one, network_, a, b) for a, b in parts])
    assert not same(weights(model), weights(network()))
    torch.testing.assert_close(flat(weights(model)), flat(weights(plain)), rtol=1e-9, atol=1e-11)

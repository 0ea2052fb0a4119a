"""Ways to multiply the Hessian of a scalar function by a vector.

Each takes the function, the point (detached tensors) and a vector in the point's shapes, and returns the product in
the same shapes. Costs in gradients (a forward and a backward pass) of a convolutional network:

| way | cost | error |
|---|---|---|
| `GradientGraph`, first product / each further one | 3.5 / 2.5 | rounding |
| `finite_difference` | 2 | `h^2/6 |D^4 L[v, v, v, .]| + rounding / h` for smooth networks |

Forward-over-reverse costs as much as the first product (0.85 to 1.2 times, by batch size), can serve one vector only,
and nested forward derivatives of norm layers have been wrong in torch releases without an error
(https://github.com/pytorch/pytorch/issues/196700), so it is not used.

Of a ReLU network finite differences measure something else: the gradient jumps at kinks, and a step of any length
crosses some. On a trained ResNet the two differ by as much as the product itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Point = Sequence[Tensor]
Function = Callable[[Point], Tensor]


class GradientGraph:
    """The gradient with its graph, for several products at the same point on the same batch (double backward)."""

    def __init__(self, function: Function, point: Point) -> None:
        self._leaves = [_leaf(p) for p in point]
        gradient = torch.autograd.grad(function(self._leaves), self._leaves, create_graph=True, allow_unused=True)
        # A gradient without a graph is a constant: its row of the Hessian is zero.
        self._entries = [(i, g) for i, g in enumerate(gradient) if g is not None and g.requires_grad]

    def product(self, vector: Point, keep: bool = True) -> list[Tensor]:
        """Hessian times `vector`; `keep=False` frees the graph, for the last product."""
        if not self._entries:
            return [torch.zeros_like(leaf) for leaf in self._leaves]
        found = torch.autograd.grad(
            [g for _, g in self._entries],
            self._leaves,
            [vector[i] for i, _ in self._entries],
            retain_graph=keep,
            allow_unused=True,
        )
        return [torch.zeros_like(p) if h is None else h for p, h in zip(self._leaves, found, strict=True)]


def finite_difference(function: Function, point: Point, vector: Point, step: float) -> list[Tensor]:
    """Central difference of the gradient, `(grad(w + h v) - grad(w - h v)) / 2h` with `h = step / |v|`."""
    length = torch.stack([v.double().norm() for v in vector]).norm().item()
    if length == 0.0:
        return [torch.zeros_like(p) for p in point]
    h = step / length
    sides = []
    for sign in (h, -h):
        moved = [torch.add(p, v, alpha=sign).requires_grad_() for p, v in zip(point, vector, strict=True)]
        sides.append(torch.autograd.grad(function(moved), moved, allow_unused=True))
    return [
        torch.zeros_like(p) if up is None or down is None else (up - down) / (2 * h)
        for p, up, down in zip(point, *sides, strict=True)
    ]


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()

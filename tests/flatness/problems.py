"""Small float64 models with exact Hessians, computed by other means than the library's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call


class TinyTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(tokens)).mean(dim=1))


@dataclass
class Problem:
    model: nn.Module
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor
    sizes: tuple[int, ...]

    @property
    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Batches of uneven sizes, so that a plain average over batches is wrong."""
        return list(zip(self.inputs.split(self.sizes), self.targets.split(self.sizes), strict=True))

    def dense(self) -> Tensor:
        """The Hessian in eval mode on all samples at once."""
        was = self.model.training
        self.model.eval()
        matrix = dense_hessian(self.model, self.loss_fn, self.inputs, self.targets)
        self.model.train(was)
        return matrix


def dense_hessian(model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
    """Row by row with reverse mode only: `torch.func.hessian` is wrong for layer norms in some torch versions."""
    named = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    shapes = [p.shape for p in named.values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = flat.split([shape.numel() for shape in shapes])
        params = {name: piece.view(shape) for name, piece, shape in zip(named, pieces, shapes, strict=True)}
        return loss_fn(functional_call(model, params, (inputs,)), targets)

    flat = torch.cat([p.reshape(-1) for p in named.values()])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return hessian(loss, flat).detach()


def mlp() -> Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    return Problem(model, F.cross_entropy, torch.randn(11, 4).double(), torch.randint(0, 3, (11,)), (5, 4, 2))


def cnn() -> Problem:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 2, 3, stride=2),
        nn.BatchNorm2d(2),
        nn.Softplus(),
        nn.Flatten(),
        nn.Linear(8, 3),
    ).double()
    for _ in range(3):  # running statistics worth the name
        model(torch.randn(16, 1, 6, 6).double())
    return Problem(model, F.cross_entropy, torch.randn(10, 1, 6, 6).double(), torch.randint(0, 3, (10,)), (6, 4))


def transformer() -> Problem:
    torch.manual_seed(2)
    model = TinyTransformer().double()
    return Problem(model, F.cross_entropy, torch.randint(0, 5, (7, 3)), torch.randint(0, 3, (7,)), (4, 3))


PROBLEMS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def quadratic(spectrum: list[float], seed: int = 0) -> Problem:
    """A linear model whose Hessian is `Q' diag(spectrum) Q`: rows `sqrt(n) q_i`, loss `mean(t_i out_i^2) / 2`."""
    torch.manual_seed(seed)
    values = torch.tensor(spectrum, dtype=torch.float64)
    n = len(spectrum)
    q, _ = torch.linalg.qr(torch.randn(n, n).double())
    model = nn.Linear(n, 1, bias=False).double()
    return Problem(model, half_weighted_square, q * n**0.5, values[:, None], (n,))


def half_weighted_square(output: Tensor, target: Tensor) -> Tensor:
    return (target * output.square()).mean() / 2

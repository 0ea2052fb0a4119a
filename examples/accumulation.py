"""Gradient accumulation: one closure for each micro-batch equals the big batch; "local" perturbs for each of them."""

import torch
from torch import nn

import lesam


def train(number: int, perturbation: str = "global") -> torch.Tensor:
    """The weights after ten steps with batches cut into this number of micro-batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = lesam.LESAM(base, sigma=0.05, model=model, perturbation=perturbation)
    for _ in range(10):
        x, y = torch.randn(32, 8, dtype=torch.float64), torch.randint(0, 3, (32,))

        def closure_of(a, b):
            def closure():
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(a), b)  # its own mean loss, not divided
                loss.backward()
                return loss

            return closure

        opt.step([closure_of(a, b) for a, b in zip(x.chunk(number), y.chunk(number), strict=True)])
    return torch.cat([p.detach().flatten() for p in model.parameters()])


whole, four, local = train(1), train(4), train(4, perturbation="local")
print(f"apart from the big batch: {(four - whole).abs().max():.1e}, local: {(local - whole).abs().max():.1e}")
assert torch.allclose(four, whole, rtol=1e-9)
assert not torch.allclose(local, whole, rtol=1e-3)

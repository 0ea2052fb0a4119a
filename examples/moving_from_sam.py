"""Coming from first_step() / second_step(): the same numbers, and what changes in the loop."""

import torch
from torch import nn

import lesam


class TwoCallSAM:
    """SAM as most packages have it: the user runs both backwards and calls twice."""

    def __init__(self, parameters, base, rho):
        self.parameters, self.base, self.rho = list(parameters), base, rho

    @torch.no_grad()
    def first_step(self):
        length = torch.cat([p.grad.flatten() for p in self.parameters]).norm()
        self.backup = [p.clone() for p in self.parameters]
        for p in self.parameters:
            p.add_(p.grad, alpha=float(self.rho / length))
        self.base.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p, backup in zip(self.parameters, self.backup, strict=True):
            p.copy_(backup)
        self.base.step()
        self.base.zero_grad()


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


batches = [(torch.randn(32, 8, dtype=torch.float64), torch.randint(0, 3, (32,))) for _ in range(20)]

model, base = build()
two_calls = TwoCallSAM(model.parameters(), base, rho=0.05)
for x, y in batches:
    nn.functional.cross_entropy(model(x), y).backward()
    two_calls.first_step()
    nn.functional.cross_entropy(model(x), y).backward()
    two_calls.second_step()
before = torch.cat([p.detach().flatten() for p in model.parameters()])

model, base = build()
opt = lesam.SAM(base, rho=0.05)
for x, y in batches:
    with opt.clean():  # was: up to first_step()
        nn.functional.cross_entropy(model(x), y).backward()
    with opt.perturbed():  # was: up to second_step()
        nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
after = torch.cat([p.detach().flatten() for p in model.parameters()])

print(f"largest difference after {len(batches)} steps: {(before - after).abs().max():.1e}")
assert torch.allclose(before, after, rtol=1e-9)

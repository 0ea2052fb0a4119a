"""torch.compile: compile the model, leave the closure plain. Perturbing and restoring recompiles nothing."""

import torch
from torch import nn
from torch._dynamo.utils import counters

import lesam


def train(compiled: bool) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    # aot_eager traces like the default compiler without generating code, which would take longer than the training
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    opt = lesam.LESAMPlus(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sigma=0.05, model=run)
    for _ in range(10):
        x, y = torch.randn(32, 8, dtype=torch.float64), torch.randint(0, 3, (32,))

        def closure(x=x, y=y):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(run(x), y)
            loss.backward()
            return loss

        opt.step(closure)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


eager, compiled = train(False), train(True)
print(f"{counters['stats']['unique_graphs']} graph, difference {(eager - compiled).abs().max():.1e}")
assert torch.allclose(eager, compiled, rtol=1e-9)
assert counters["stats"]["unique_graphs"] == 1

"""Fabric: nothing to add. Its proxies pass ``clean()``, ``perturbed()`` and ``step()`` on, also with fp16 scaling.

Fabric keeps its loss scaler to itself, so the scaler is made here and given to both Fabric and the passes.

Run: python examples/fabric.py
"""

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from torch import nn
from torch.nn.functional import cross_entropy

import lesam

torch.manual_seed(0)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
fabric = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", device="cpu", scaler=scaler)])
fabric.launch()

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
base = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
model, opt = fabric.setup(model, lesam.LESAM(base, sigma=0.05, rho_max=None, model=model))

losses, budgets = [], []
for _ in range(15):
    x = torch.randn(32, 8)
    y = (x[:, :2].sum(1) > 0).long()
    with opt.clean(scaler):
        loss = cross_entropy(model(x), y)
        fabric.backward(loss)
    with opt.perturbed(scaler):
        fabric.backward(cross_entropy(model(x), y))
    opt.step()
    losses.append(loss.item())
    budgets.append((opt.last.rho * opt.last.slope).item())

# The radius is that of the unscaled loss: to first order every step has raised it by sigma.
torch.testing.assert_close(torch.tensor(budgets), torch.full((15,), 0.05), rtol=1e-3, atol=1e-5)
assert sum(losses[-5:]) < 0.5 * sum(losses[:5]), losses
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} under a loss scale of {scaler.get_scale():.0f}")

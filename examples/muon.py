"""Muon for matrices and AdamW for the rest, as one optimizer: one norm, one perturbation, one state dict.

Run: python examples/muon.py
"""

import torch

import lesam

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.LayerNorm(32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
x = torch.randn(256, 8)
y = x[:, :3].argmax(1)

matrices = [p for p in model[0].parameters() if p.ndim == 2]  # hidden ones; the head is AdamW's
others = [p for p in model.parameters() if all(p is not m for m in matrices)]
bases = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]
opt = lesam.LESAM(bases, sigma=0.02, rho_max=0.4, model=model)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=100)  # both bases


def closure():
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


losses = []
for _ in range(100):
    losses.append(float(opt.step(closure).detach()))
    scheduler.step()

assert losses[-1] < 0.3 * losses[0], losses
assert len(opt.state_dict()["param_groups"]) == 2
print(f"clean loss {losses[0]:.3f} -> {losses[-1]:.3f}, radius of the last step {float(opt.last.rho):.3f}")

"""Accelerate: nothing to add. The prepared optimizer holds ours as ``opt.optimizer``; take the passes from there.

``accelerator.backward`` divides the loss by the number of micro-batches, and ``clean()`` and ``perturbed()`` each go
around all of them: one perturbation for the effective batch.

Run: python examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy

import lesam

MICRO_BATCHES = 4

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
base = torch.optim.AdamW(model.parameters(), lr=0.02)
model, opt = accelerator.prepare(model, lesam.LESAM(base, sigma=0.05, rho_max=None, model=model))
sharp = opt.optimizer

losses = []
for _ in range(40):
    x = torch.randn(32, 8)
    y = (x[:, :2].sum(1) > 0).long()
    micro_batches = list(zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True))
    total = 0.0
    for one_pass in (sharp.clean, sharp.perturbed):
        with one_pass():
            for inputs, targets in micro_batches:
                with accelerator.accumulate(model):
                    loss = cross_entropy(model(inputs), targets)
                    accelerator.backward(loss)
                    total += loss.item() / MICRO_BATCHES if one_pass == sharp.clean else 0.0
    accelerator.clip_grad_norm_(model.parameters(), 1.0)  # the combined gradient
    opt.step()
    losses.append(total)

# The radius is that of the mean loss of all four micro-batches: to first order it rises by sigma.
torch.testing.assert_close(sharp.last.rho * sharp.last.slope, torch.tensor(0.05), rtol=1e-4, atol=1e-6)
assert sum(losses[-5:]) < 0.5 * sum(losses[:5]), losses
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")

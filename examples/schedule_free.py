"""A schedule-free base: the averaged weights are evaluated and saved, the others trained; no scheduler.

Run: python examples/schedule_free.py
"""

import schedulefree
import torch

import lesam

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
x = torch.randn(256, 8)
y = x[:, :3].argmax(1)

base = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01, warmup_steps=10)
opt = lesam.LESAM(base, sigma=0.02, rho_max=0.4, model=model)


def closure():
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


opt.train()  # before the first step, and after each evaluation
losses = [float(opt.step(closure).detach()) for _ in range(100)]
trained = [p.detach().clone() for p in model.parameters()]

opt.eval()  # before an evaluation, and before saving
with torch.no_grad():
    averaged = float(torch.nn.functional.cross_entropy(model(x), y))

assert averaged < 0.5 * losses[0], (losses[0], averaged)
assert not any(map(torch.equal, model.parameters(), trained)), "the averaged weights are in place"
opt.train()
for p, before in zip(model.parameters(), trained, strict=True):
    torch.testing.assert_close(p.detach(), before)
print(f"clean loss {losses[0]:.3f} -> {losses[-1]:.3f}, of the averaged weights {averaged:.3f}")

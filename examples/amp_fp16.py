"""fp16 with a loss scaler: the radius is that of the unscaled gradient, and an overflow skips the whole step."""

import torch
from torch import nn

import lesam

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(64, 8, device=device)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).to(device)
opt = lesam.LESAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sigma=0.05, model=model)
scaler = torch.amp.GradScaler(device, init_scale=2.0**20)  # far too large: the first steps overflow

for _ in range(40):
    with opt.clean(scaler), torch.autocast(device, torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
    with opt.perturbed(scaler), torch.autocast(device, torch.float16):
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
    scaler.step(opt)
    scaler.update()

print(f"{opt.steps} of 40 steps taken, scale {scaler.get_scale():.0f}, loss {loss.item():.3f}")
assert loss < 0.3
assert int(model[1].num_batches_tracked) == opt.steps  # skipped steps left no trace in BatchNorm either

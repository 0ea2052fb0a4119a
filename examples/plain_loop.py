"""A plain training loop: LE-SAM around SGD, with a budget that is annealed at the end."""

import torch
from torch import nn

import lesam

torch.manual_seed(0)
x = torch.randn(256, 2)
y = (x.prod(dim=1) > 0).long()  # exclusive or: no straight line separates it
model = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))

EPOCHS, BATCH = 30, 32
steps = EPOCHS * len(x) // BATCH
base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
sigma = lesam.schedules.cosine_tail(0.1, start=int(0.8 * steps), stop=steps)
opt = lesam.LESAM(base, sigma=sigma, rho_max=0.4, model=model)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=EPOCHS)

for _ in range(EPOCHS):
    for index in torch.randperm(len(x)).split(BATCH):

        def closure(index=index):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x[index]), y[index])
            loss.backward()
            return loss

        loss = opt.step(closure)
    scheduler.step()

model.eval()
accuracy = (model(x).argmax(dim=1) == y).float().mean().item()
print(f"accuracy {accuracy:.3f}, loss of the last step {loss.item():.3f}, radius {opt.last.rho.item():.3f}")
assert accuracy > 0.95
assert opt.last.rho == 0.0  # annealed

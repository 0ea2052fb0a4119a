"""bfloat16: autocast over float32 weights, and weights that are bfloat16 themselves."""

import torch
from torch import nn

import lesam

torch.manual_seed(0)
x = torch.randn(64, 8)
y = (x[:, 0] > 0).long()


def train(dtype: torch.dtype) -> float:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(dtype)
    opt = lesam.LESAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sigma=0.05, model=model)

    def closure():
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x.to(dtype)), y)
        loss.backward()
        return loss

    for _ in range(40):
        loss = opt.step(closure)
    return loss.item()


over_float32, in_bfloat16 = train(torch.float32), train(torch.bfloat16)
print(f"loss: float32 weights {over_float32:.3f}, bfloat16 weights {in_bfloat16:.3f}")
assert over_float32 < 0.3
assert in_bfloat16 < 0.3

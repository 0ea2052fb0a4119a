"""States of the base in eight bits (bitsandbytes; torchao.optim.AdamW8bit alike), resumed from a file.

Run: python examples/eight_bit.py
"""

import io

import bitsandbytes
import torch

import lesam

x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
y = x[:, :3].argmax(1)


def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    base = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=0.003)
    return model, lesam.LESAM(base, sigma=0.02, rho_max=0.4, model=model)


def train(model, opt, steps):
    def closure():
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return [float(opt.step(closure).detach()) for _ in range(steps)]


model, opt = build()
losses = train(model, opt, 30)
file = io.BytesIO()
torch.save((model.state_dict(), opt.state_dict()), file)

again, resumed = build()
weights, state = torch.load(io.BytesIO(file.getvalue()))
again.load_state_dict(weights)
resumed.load_state_dict(state)
losses += train(model, opt, 10)
train(again, resumed, 10)

assert opt.base.state[model[0].weight]["state1"].dtype == torch.uint8
assert all(map(torch.equal, model.parameters(), again.parameters())), "resumes bit for bit"
assert losses[-1] < 0.5 * losses[0], losses
print(f"clean loss {losses[0]:.3f} -> {losses[-1]:.3f}, states in eight bits")

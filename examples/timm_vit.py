"""timm: a vision transformer with timm's NAdamW, layer-wise rates and warm-up, made sharpness-aware.

Run: python examples/timm_vit.py
"""

import timm
import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from timm.scheduler import CosineLRScheduler
from torch import Tensor
from torch.nn.functional import cross_entropy

import lesam

STEPS = 40

torch.manual_seed(0)
model = timm.create_model(
    "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=2
)
groups = param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.75)
opt = lesam.LESAM(create_optimizer_v2(groups, opt="nadamw", lr=0.01), sigma=0.02, rho_max=0.2, model=model)
scheduler = CosineLRScheduler(opt, t_initial=STEPS, warmup_t=5, warmup_lr_init=1e-4, t_in_epochs=False)

losses = []
for step in range(STEPS):
    scheduler.step_update(step)
    images = torch.randn(32, 3, 16, 16)
    labels = torch.randint(0, 2, (32,))
    images[:, 0] += 2.0 * labels.view(-1, 1, 1) - 1.0

    def closure(images: Tensor = images, labels: Tensor = labels) -> Tensor:
        opt.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        return loss

    losses.append(opt.step(closure).item())

rates = [group["lr"] / group["lr_scale"] for group in opt.param_groups]
torch.testing.assert_close(torch.tensor(rates), torch.full((len(rates),), rates[0]))
assert sum(losses[-5:]) < 0.3 * sum(losses[:5]), losses
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")

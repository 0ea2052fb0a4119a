# %% [markdown]
# # A new method in thirty lines
#
# A sharpness-aware method is a choice of parts: which way to climb, in which geometry, how far, and what to descend
# with ([equations](../equations.md)). A new idea is usually one new part. Restoring weights, BatchNorm, mixed
# precision, accumulation and distributed training come with the loop; so does resuming, of what parts declare.
#
# Our idea: a loss budget that is *relative*. LE-SAM lets the loss rise by a constant $\sigma$. Let it rise in
# proportion to how steep the slope usually is, $\rho = \kappa\, \bar s / s$ with the running mean $\bar s$ of
# earlier slopes: a radius of $\kappa$ on average, shorter where it is steeper than usual and longer where it is
# flatter. It needs no unit of the loss.
#
# This page is a script that runs as it stands, in seconds; it needs `pip install "lesam[lab]"`.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import lesam


class RelativeBudget(lesam.Radius):
    """``kappa`` times the usual slope over this one, at most ``rho_max``."""

    needs_slope = True  # so the loop computes <g, eps_hat>, and refuses directions that do not know it
    bounded = True  # the cap holds where the slope vanishes

    def __init__(self, kappa, rho_max=1.0, decay=0.9):
        self.kappa, self.rho_max, self.decay = kappa, rho_max, decay
        self.usual = None

    def __call__(self, slope, step):
        usual = slope.abs() if self.usual is None else self.usual
        self.usual = self.decay * usual + (1 - self.decay) * slope.abs()
        # LE-SAM's radius with a budget of 1, in a unit of the loss that moves along: kappa times the usual slope
        return lesam.LossBudget(1.0, rho_max=self.rho_max)(slope / (self.kappa * usual), step)


class RelativeSAM(lesam.SharpnessAware):
    """SAM whose radius follows the slope."""

    def __init__(self, base, kappa=0.1, **options):
        super().__init__(base, radius=RelativeBudget(kappa), **options)


# %% [markdown]
# That is the method. It takes any base optimizer and every option of the others: `model=`, `max_norm=`, `when=`,
# accumulation, the two contexts.
#
# ## Does it do what the formula says?
#
# Test a limit that you know. On a loss whose slope is constant the usual slope is the slope, so the method must be
# SAM with radius `kappa`, up to rounding:

# %%
direction = torch.tensor([3.0, -4.0])


def trajectory(wrap):
    w = torch.nn.Parameter(torch.zeros(2))
    opt = wrap(torch.optim.SGD([w], lr=0.1))

    def closure():
        opt.zero_grad()
        loss = direction @ w
        loss.backward()
        return loss

    for _ in range(5):
        opt.step(closure)
    return w.detach(), float(opt.last.rho)


ours, radius = trajectory(lambda base: RelativeSAM(base, kappa=0.1))
theirs, _ = trajectory(lambda base: lesam.SAM(base, rho=0.1))
print("ours", ours.tolist(), "SAM", theirs.tolist(), f"radius {radius:.3f}")
torch.testing.assert_close(ours, theirs)

# %% [markdown]
# ## How does it behave?

# %%
images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x, y = (images / 16).float(), labels


def train(name, wrap, epochs=15):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    opt = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    radii, slopes = [], []
    for _ in range(epochs):
        for batch in torch.randperm(1000).split(100):

            def closure(batch=batch):
                opt.zero_grad()
                loss = cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                return loss

            opt.step(closure)
            radii.append(float(opt.last.rho))
            slopes.append(float(opt.last.slope))
    with torch.no_grad():
        print(f"{name:18} test accuracy {100 * float((model(x[1000:]).argmax(1) == y[1000:]).float().mean()):.1f} %")
    return radii, slopes


methods = {
    "SAM, rho 0.1": lambda base: lesam.SAM(base, rho=0.1),
    "LE-SAM, sigma 0.1": lambda base: lesam.LESAM(base, sigma=0.1, rho_max=1.0),
    "ours, kappa 0.1": lambda base: RelativeSAM(base, kappa=0.1),
}
followed = {name: train(name, wrap) for name, wrap in methods.items()}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for name, (radii, slopes) in followed.items():
    axes[0].plot(radii, label=name)
    axes[1].plot([rho * slope for rho, slope in zip(radii, slopes, strict=True)], label=name)
axes[0].set(xlabel="step", ylabel="radius", yscale="log")
axes[1].set(xlabel="step", ylabel="rise of the linearised loss", yscale="log")
axes[0].legend()

# %% [markdown]
# SAM holds the radius and lets the rise of the loss fall with the slope, LE-SAM holds the rise and lets the radius
# grow, and ours stays near SAM's radius and swings against the slope.
#
# What the sketch lacks: `usual` is an attribute, so it is not in the optimizer's state dict, a resumed run starts
# its mean anew, and a step that is skipped has changed it. Parts that remember declare it (`Noise` in
# `lesam/optim/_directions.py` is the shortest example). To bring a method into the library, write its long-hand
# reference first: [contributing](../../CONTRIBUTING.md#adding-a-method).

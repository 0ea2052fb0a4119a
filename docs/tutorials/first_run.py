# %% [markdown]
# # Your first LE-SAM run, and how to see whether it helps
#
# A small network learns handwritten digits of which four in ten carry a wrong label. We train it with SGD, with
# LE-SAM, and with SGD for twice as long (a sharpness-aware step costs two passes), on three seeds each, and look at
# differences seed by seed. This page is a script that runs as it stands, in seconds; it needs `pip install
# "lesam[lab]"`.

# %%
import statistics

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import lesam

images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
images = (images / 16).float()


def data(seed):
    """400 images to train on, 40 % of them mislabelled, and the rest to test on."""
    source = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=source)
    train, test = order[:400], order[400:]
    y = labels[train].clone()
    wrong = torch.rand(len(y), generator=source) < 0.4
    y[wrong] = (y[wrong] + torch.randint(1, 10, (int(wrong.sum()),), generator=source)) % 10
    return images[train], y, images[test], labels[test]


# %% [markdown]
# ## The training loop
#
# It is the same for every optimizer. With `wrap` three lines differ from a plain loop: the optimizer, the closure,
# the step. Whatever the step saw is in `opt.last`; reading it is all the logging there is.


# %%
def train(seed, epochs, wrap=None):
    x, y, x_test, y_test = data(seed)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if wrap is not None:
        opt = wrap(opt, steps=epochs * 4)
    accuracy, seen = [], []
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(100):

            def closure(batch=batch):
                opt.zero_grad()
                loss = cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                return loss

            opt.step(closure)
            if wrap is not None:
                rise = float(opt.last.perturbed_loss) - float(opt.last.loss)
                seen.append((float(opt.last.rho), rise, float(opt.last.sigma), float(opt.last.capped)))
        with torch.no_grad():
            accuracy.append(100 * float((model(x_test).argmax(1) == y_test).float().mean()))
    return accuracy, seen


def le_sam(base, steps):
    """A budget of 0.35, warmed up over the first fifth: early gradients are small and would buy a long way."""
    return lesam.LESAM(base, sigma=lesam.schedules.warmup(0.35, steps=steps // 5), rho_max=2.0)


SEEDS, EPOCHS = (0, 1, 2), 60
runs = {
    "SGD": [train(seed, EPOCHS) for seed in SEEDS],
    "SGD, twice the epochs": [train(seed, 2 * EPOCHS) for seed in SEEDS],
    "LE-SAM": [train(seed, EPOCHS, le_sam) for seed in SEEDS],
}
for name, found in runs.items():
    last = [accuracy[-1] for accuracy, _ in found]
    print(f"{name:22} {statistics.fmean(last):5.1f} ± {statistics.stdev(last):.1f} %   (n = {len(last)})")

# %% [markdown]
# ## Does it help?
#
# Compare on equal seeds, so that luck with the data is in both numbers and cancels, and compare with what the same
# compute buys without it. Three seeds are few: read the sign of all of them, not the digits of the mean.

# %%
gains = {}
for name in ("SGD", "SGD, twice the epochs"):
    pairs = zip(runs["LE-SAM"], runs[name], strict=True)
    gains[name] = [ours[0][-1] - theirs[0][-1] for ours, theirs in pairs]
    print(f"LE-SAM minus {name}: " + ", ".join(f"{gain:+.1f}" for gain in gains[name]))
assert all(gain > 0 for each in gains.values() for gain in each)

# %% [markdown]
# ## Is it LE-SAM that runs?
#
# Two looks tell. Where `capped` is 1 the cap decides, and the step is SAM with that radius: lower `sigma` or raise
# the cap if that is most of them. And the loss should rise by about `sigma` from the clean to the perturbed
# weights: much more, and the linear picture behind the budget no longer holds.

# %%
seen = runs["LE-SAM"][0][1]
late = seen[len(seen) // 5 :]
print(f"capped: {statistics.fmean(capped for *_, capped in late):.0%} of the steps after the warm-up")
print(f"rise beside the budget: {statistics.fmean(rise / sigma for _, rise, sigma, _ in late):.2f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for number, (name, found) in enumerate(runs.items()):
    for accuracy, _ in found:
        passes = 2 if name == "LE-SAM" else 1
        places = [passes * (epoch + 1) for epoch in range(len(accuracy))]
        label = name if accuracy is found[0][0] else None
        left.plot(places, accuracy, color=f"C{number}", zorder=3 - number, label=label)
left.set(xlabel="passes over the data", ylabel="test accuracy (%)", title="at equal compute")
left.legend()
right.plot([rho for rho, *_ in seen], color="C2")
right.set(xlabel="step", ylabel="radius", title="how far LE-SAM climbs, seed 0", yscale="log")

# %% [markdown]
# SGD learns the digits first and the wrong labels afterwards; LE-SAM does not get to the second part. On clean
# data, and on large networks, expect tenths of a point to a few points, and sometimes nothing: [how to
# choose](../how-to-choose.md) has the numbers of a fair search, and [the study](../study.md) a verdict on every
# claim.

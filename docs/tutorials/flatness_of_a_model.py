# %% [markdown]
# # Measure the flatness of a model you already have
#
# All it takes is a model, its loss, and data as an iterable of pairs. Nothing is changed: not the weights, not
# BatchNorm's statistics, not gradients, modes or the random state. This page is a script that runs as it stands, in
# seconds; it needs `pip install "lesam[lab]"`.
#
# Here are two models to compare, of the same shape and trained on the same digits for as long, one with SGD and one
# with SAM. Put your own in their place.

# %%
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import lesam
from lesam.flatness import HessianOperator, by_layer, figures, landscape, low_pass_filter, top_eigenvalues, trace

images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x, y = (images[:600] / 16).float(), labels[:600]


def trained(method=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    opt = opt if method is None else method(opt)
    for _ in range(40):
        for batch in torch.randperm(len(x)).split(100):

            def closure(batch=batch):
                opt.zero_grad()
                loss = cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                return loss

            opt.step(closure)
    return model


models = {"SGD": trained(), "SAM": trained(lambda base: lesam.SAM(base, rho=0.3))}
data = [(x[:200], y[:200]), (x[200:400], y[200:400])]  # the same samples for both: else nothing can be compared

# %% [markdown]
# ## Eigenvalues and trace of the Hessian
#
# The largest eigenvalue is the curvature in the worst direction, the trace the sum over all directions. Both come
# with errors: `converged` says for each eigenvalue whether its residual is small enough, `stderr` how far chance
# may have moved the trace.

# %%
eigenvalues, traces = {}, {}
for name, model in models.items():
    operator = HessianOperator(model, cross_entropy, data)
    eigenvalues[name] = top_eigenvalues(operator, k=10)
    traces[name] = trace(operator, samples=60, method="hutch++")
    print(name, *eigenvalues[name].lines(), *traces[name].lines(), sep="\n  ")
    assert eigenvalues[name].converged.all()
assert eigenvalues["SAM"].values[0] < eigenvalues["SGD"].values[0]

# %% [markdown]
# ## Where in the network
#
# Each layer's own block, with the others held still.

# %%
for name, model in models.items():
    print(name, *by_layer(model, cross_entropy, data, k=1, samples=20).lines(), sep="\n  ")

# %% [markdown]
# ## What noise does to the loss
#
# The low-pass filter measure is the mean loss under Gaussian noise on all weights. Draws are the same for all
# models of one shape, so their difference is known better than either value.

# %%
smoothed = {name: low_pass_filter(model, cross_entropy, data, sigma=0.1, samples=40) for name, model in models.items()}
difference, error = smoothed["SAM"].minus(smoothed["SGD"])
print(*(f"{name}: {found.lines()[0]}" for name, found in smoothed.items()), sep="\n")
print(f"SAM minus SGD: {difference:+.4f} ± {error:.4f}")

# %% [markdown]
# ## The landscape
#
# The loss on a plane through the weights, with directions scaled filter by filter. It is a picture, not a measure:
# two directions of thousands. Levels and limits are the same for both.

# %%
planes = {name: landscape(model, cross_entropy, data, points=15, span=(-1.0, 1.0)) for name, model in models.items()}
contours = figures.landscapes(planes)

# %%
spectrum = figures.spectrum(
    {name: {40: found} for name, found in eigenvalues.items()}, {name: {40: found} for name, found in traces.items()}
)

# %% [markdown]
# A flatter minimum is not always one that generalises better: rescaling the layers of a ReLU network changes its
# eigenvalues and not its function. Compare models of one shape and one training set, and say how you measured:
# `print(eigenvalues["SGD"])` shows the settings that every result carries. [The guide](../flatness.md) has all
# measures and their options.

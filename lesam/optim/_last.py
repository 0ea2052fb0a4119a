"""``opt.last``: what the last step saw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

FIELDS = ("loss", "perturbed_loss", "grad_norm", "slope", "rho", "sigma", "capped", "cost")


class Last(Mapping[str, Tensor]):
    """0-d tensors that describe one step; NaN for what the method or calling style does not see.

    ========================  =====================================================================
    ``loss``                  at the weights, first pass
    ``perturbed_loss``        at the perturbed weights, second (or only) pass
    ``grad_norm``             ``|g|`` over the perturbed parameters
    ``slope``                 ``<g, eps_hat>``
    ``rho``                   how far the step climbed
    ``sigma``                 the loss budget
    ``capped``                1 where the cap decided the radius, else 0
    ``cost``                  passes really spent
    ========================  =====================================================================

    Reading a value (``float(opt.last.rho)``) waits for the device; keeping the tensor does not.

    Example:
        >>> last = Last(rho=torch.tensor(0.5))
        >>> last.rho, last["rho"], bool(last.loss.isnan())
        (tensor(0.5000), tensor(0.5000), True)
    """

    loss: Tensor
    perturbed_loss: Tensor
    grad_norm: Tensor
    slope: Tensor
    rho: Tensor
    sigma: Tensor
    capped: Tensor
    cost: Tensor

    def __init__(self, **values: Tensor) -> None:
        missing = torch.full((), float("nan"), device=next((v.device for v in values.values()), None))
        for name in FIELDS:
            setattr(self, name, values.get(name, missing))

    def __getitem__(self, name: str) -> Tensor:
        if name not in FIELDS:
            raise KeyError(name)
        value: Tensor = getattr(self, name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(FIELDS)

    def __len__(self) -> int:
        return len(FIELDS)

    def __repr__(self) -> str:
        return "Last(" + ", ".join(f"{name}={float(self[name]):.4g}" for name in FIELDS) + ")"

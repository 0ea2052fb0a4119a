"""``opt.last``: what the last step saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

Seen = Tensor | float | Callable[[], Tensor]
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

    Each is an attribute and an item. Reading a value (``float(opt.last.rho)``) waits for the device; keeping the tensor
    does not.

    Example:
        >>> last = Last({"rho": torch.tensor(0.5), "sigma": 0.3})
        >>> last.rho, last["sigma"], bool(last.loss.isnan())
        (tensor(0.5000), tensor(0.3000), True)
    """

    def __init__(self, seen: Mapping[str, Seen], like: Tensor | None = None) -> None:
        # Numbers become tensors (of the device and dtype of `like`) when somebody asks: most steps are never looked at.
        self._seen, self._like = dict(seen), torch.zeros((), device="cpu") if like is None else like

    def __getitem__(self, name: str) -> Tensor:
        if name not in FIELDS:
            raise KeyError(name)
        value = self._seen.get(name, float("nan"))
        if callable(value):
            value = value()
        if isinstance(value, Tensor):
            return value if value.is_floating_point() else value.to(self._like.dtype)
        return torch.full_like(self._like, value)

    def __getattr__(self, name: str) -> Tensor:
        if name in FIELDS:
            return self[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}; it has {', '.join(FIELDS)}")

    def __iter__(self) -> Iterator[str]:
        return iter(FIELDS)

    def __len__(self) -> int:
        return len(FIELDS)

    def __repr__(self) -> str:
        return "Last(" + ", ".join(f"{name}={float(self[name]):.4g}" for name in FIELDS) + ")"

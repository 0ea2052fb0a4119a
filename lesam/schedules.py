"""Schedules of :mod:`lesam.optim.schedules`, under the name users know."""

from .optim.schedules import (
    Schedule,
    constant,
    cosine_tail,
    every,
    from_step,
    per_epoch,
    proportional_to_lr,
    warmup,
)

__all__ = [
    "Schedule",
    "constant",
    "cosine_tail",
    "every",
    "from_step",
    "per_epoch",
    "proportional_to_lr",
    "warmup",
]

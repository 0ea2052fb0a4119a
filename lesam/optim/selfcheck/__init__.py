"""Check on this machine what the optimizers promise: ``python -m lesam.optim.selfcheck``.

A check is a function of a device. The first line of its docstring is the promise; it returns what it measured, raises
``BrokenPromiseError`` where the promise does not hold, and ``NotApplicableError`` where the device, or plain torch on
it, has nothing to show.
"""

from .command import CHECKS, main

__all__ = ["CHECKS", "main"]

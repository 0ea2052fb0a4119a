"""Why a run failed, in one sentence; a traceback goes to a file, where nobody expected the error."""

from __future__ import annotations

import errno
import traceback

import torch

from lesam.lab.files import write_atomically
from lesam.lab.runs.folder import RunFolder

LOG = "failure.log"
"""File with the traceback of an error that nobody expected."""


def sentence(error: BaseException) -> str | None:
    """What an ordinary mistake has to say; None for an error that is a defect of the program.

    >>> sentence(OSError(28, "No space left on device"))
    '[Errno 28] No space left on device; make room, and the same command resumes'
    >>> sentence(KeyError("rho")) is None
    True
    """
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return f"{error}; make room, and the same command resumes" if full else str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        words = str(error).partition("\n")[0] or "there is not enough memory"
        return f"{words}; a smaller network or batch (model.options, data.batch_size) or more devices need less of it"
    if isinstance(error, ModuleNotFoundError) and (error.name or "lesam").partition(".")[0] != "lesam":
        return f"the package {error.name!r} is missing: pip install it"
    return str(error) if isinstance(error, ValueError | RuntimeError) and raised_here(error) else None


def told(error: BaseException, run: RunFolder) -> str:
    """One sentence about the failure of a run; a traceback goes to a file in the run's folder, or beside it."""
    words = sentence(error)
    if words is not None:
        return words
    beside = run.path.with_name(f"{run.path.name}.{LOG}")
    file = run.path / LOG if run.path.is_dir() else beside
    last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, "".join(traceback.format_exception(error)))
    except OSError as second:
        return f"{last}; where it happened could not be written to {file}: {second}"
    return f"{last}; {file} has the traceback"


def raised_here(error: BaseException) -> bool:
    """Whether it was this package that raised an error, with a sentence for people, and not one that it uses."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "lesam"

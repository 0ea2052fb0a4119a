"""How a process ends that trained a run together with others."""

from __future__ import annotations

import atexit
import os
import sys
import threading

import torch.distributed


def end_if_one_of_several(code: int) -> None:
    """End this process here if it belongs to a group of processes; return if it does not.

    Python is not torn down: a group's threads live as long as anything refers to the group, as DTensor's caches do, and
    one that lets go of a tensor while Python is torn down aborts the process (pytorch/pytorch#190489). ``torchrun``
    would take a finished run for a failed one. Threads are joined, exit functions called and streams flushed before.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    if code == 0:  # all have come this far; after an error the others may never
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    # As multiprocessing ends its processes; Python has no public names for the two.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

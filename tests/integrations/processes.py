"""Scripts that start processes of their own, run with a hard limit and cleaned up whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_script(source: str | Path, *arguments: object, limit: float = 120.0) -> str:
    """Run Python source text, or a file, in a process group of its own; returns its output."""
    if isinstance(source, str):
        script = Path(str(arguments[0])).with_suffix(".py")  # launchers start the script again, by its path
        script.write_text(source)
    else:
        script = source
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("LOCAL_", "NODE_", "WORLD_"))},
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return run_command([sys.executable, str(script), *map(str, arguments)], ROOT, environment, limit=limit)


def run_command(command: Sequence[str], folder: Path, environment: Mapping[str, str], *, limit: float) -> str:
    """The output of a command that must succeed; nothing that it started outlives it."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != 0:
        raise AssertionError(f"{command} ended with {process.returncode}:\n{output[-4000:]}")
    return output


def assert_loaded(saved: Path, reference: nn.Module) -> None:
    """The saved weights are those of ``reference``."""
    torch.testing.assert_close(torch.load(saved), dict(reference.state_dict()), rtol=1e-10, atol=1e-11)

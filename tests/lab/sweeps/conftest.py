"""A real PostgreSQL server, in a folder of its own and on a free port of the loopback interface."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.lab.sweeps.searching import free_port, until

PROGRAMS = "/usr/lib/postgresql/*/bin"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    program = needs.program("postgres", "LESAM_POSTGRES", elsewhere=PROGRAMS)
    if program is None:
        pytest.skip("needs a PostgreSQL server, Debian's package postgresql")
    folder = Path(tempfile.mkdtemp(prefix="lesam-postgres-"))  # pytest's own may not be entered by other users
    as_user: list[str] = []
    if os.getuid() == 0:  # the server refuses to be root
        user = pwd.getpwnam("nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    programs, port = Path(program).resolve().parent, free_port()
    options = ["-U", "lesam", "--auth=trust", "--locale=C", "--encoding=UTF8", "--no-sync"]
    made = subprocess.run(
        [*as_user, programs / "initdb", "-D", folder / "data", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*as_user, program, "-D", folder / "data", "-h", "127.0.0.1", "-p", str(port), "-k", folder, "-F"],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        until(lambda: server.poll() is not None or subprocess.run(ready, check=False).returncode == 0)
        assert server.poll() is None, (folder / "log").read_text()
        yield f"postgresql://lesam@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)  # ends connections and stops
        server.wait()
        shutil.rmtree(folder)

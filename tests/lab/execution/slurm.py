"""A real SLURM on this machine: one node, its daemons started in a folder of their own and stopped by process id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

CONFIGURATION = """
ClusterName=lesam
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=10
MinJobAge=300
JobRequeue=1
EnforcePartLimits=ALL
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=short Nodes={host} Default=YES MaxTime=60 State=UP
"""


class Slurm:
    """Its daemons; ``environment`` makes the commands of SLURM talk to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        ports = free_ports(2)
        text = CONFIGURATION.format(folder=self.folder, host=host(), controller=ports[0], node=ports[1])
        (self.folder / "slurm.conf").write_text(text)
        files = [f"--{kind}-file={self.folder / f'munge.{kind}'}" for kind in ("key", "pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={self.folder / 'munge.socket'}", *files)
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", "-D")
        self.start_node()

    def start_node(self) -> None:
        """Start the daemon of the node, and wait until it takes tasks."""
        self._start("slurmd", "-D")
        self("scontrol", "update", f"NodeName={host()}", "State=RESUME")
        self._wait(lambda: self("sinfo", "-h", "-o", "%T").strip() in ("idle", "mixed", "allocated"), "slurmd")

    def kill_node(self) -> None:
        """What a node that disappears leaves: nothing of its daemon and of its tasks."""
        daemon = self.daemons.pop("slurmd")
        ours = ("SLURM_CONF", str(self.folder / "slurm.conf"))
        tasks = [
            process
            for process in psutil.process_iter(["environ"])
            if ours in (process.info["environ"] or {}).items() and "SLURM_JOB_ID" in process.info["environ"]
        ]
        steps = [parent for task in tasks for parent in task.parents() if parent.name() == "slurmstepd"]
        daemon.kill()
        daemon.wait()
        for process in [*steps, *tasks]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # What the controller would notice by itself, a minute later.
        self("scontrol", "update", f"NodeName={host()}", "State=DOWN", "Reason=lost")

    def __call__(self, *command: str) -> str:
        """The output of a command of SLURM."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        return done.stdout

    def stop(self) -> None:
        self("scancel", "--state=PENDING", "--state=RUNNING")
        for name in ("slurmd", "slurmctld", "munged"):
            if (daemon := self.daemons.pop(name, None)) is not None:
                daemon.terminate()
                try:
                    daemon.wait(20)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()

    def _start(self, program: str, *arguments: str) -> None:
        found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert found is not None, program
        with (self.folder / f"{program}.out").open("ab") as output:
            self.daemons[program] = subprocess.Popen(
                [found, *arguments],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _wait(self, ready: Callable[[], bool], name: str) -> None:
        until = time.monotonic() + 60
        while not ready():
            if time.monotonic() > until or self.daemons[name].poll() is not None:
                logs = [file.read_text()[-2000:] for file in sorted(self.folder.glob("*.[lo][ou][gt]"))]
                raise RuntimeError(f"{name} did not start:\n" + "\n".join(logs))
            time.sleep(0.1)


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """SLURM while the block lasts."""
    cluster = Slurm(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def host() -> str:
    """The name of the node."""
    return socket.gethostname().partition(".")[0]


def free_ports(number: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()

"""Two processes under torchrun train the same run as one: same batches, same steps, one set of files."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.runs.repetitions import group
from lesam.lab.training.layout import laid_out
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent

# A network without BatchNorm and data without augmentation: then the split of a batch over workers changes nothing.
SETTINGS = ("data.augment=none", "data.augment_options.padding=0", "schedule.steps=7")


def config_of(method: str, precision: str = "64-true") -> RunConfig:
    config = recipes.build("vit-cifar100", method=method, scale="smoke")
    return override(config, [*SETTINGS, f"system.precision={precision}", "system.accelerator=cpu"])


def two_processes(
    method: str, runs: Path, strategy: str = "auto", precision: str = "64-true"
) -> subprocess.CompletedProcess[str]:
    changes = [part for setting in SETTINGS for part in ("--set", setting)]
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "lesam", "train", "vit-cifar100", "--method", method, "--scale", "smoke"),
            *("--precision", precision, "--strategy", strategy, "--accelerator", "cpu", "-o", str(runs), *changes),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def last(folder: RunFolder) -> dict[str, torch.Tensor]:
    newest, _ = checkpoints.newest_valid(folder.checkpoints)
    assert newest is not None
    return newest.weights()


@pytest.mark.parametrize(
    ("method", "strategy", "precision"),
    [("sgd", "ddp", "64-true"), ("lesam", "ddp", "64-true"), ("lesam", "fsdp", "32-true")],
)
def test_two_processes_equal_one(method: str, strategy: str, precision: str, tmp_path: Path) -> None:
    config = config_of(method, precision)
    train(config, runs=tmp_path / "one", progress=Silent())
    result = two_processes(method, tmp_path / "two", strategy, precision)
    assert result.returncode == 0, result.stdout + result.stderr
    one, two = (RunFolder.of(config, tmp_path / name) for name in ("one", "two"))
    ours, theirs = last(one), last(two)
    assert ours.keys() == theirs.keys()
    rtol, atol = (1e-9, 1e-12) if precision == "64-true" else (1e-4, 1e-5)
    for name in ours:
        torch.testing.assert_close(theirs[name], ours[name], rtol=rtol, atol=atol)
    assert result.stdout.count("epoch 1/2") == 1  # one of the processes talks
    assert [row["epoch"] for row in two.metrics()] == [0, 1]
    for row, other in zip(one.metrics(), two.metrics(), strict=True):
        assert other["train_accuracy"] == row["train_accuracy"]
        assert other["test_accuracy"] == row["test_accuracy"]
        assert other["test_loss"] == pytest.approx(row["test_loss"], rel=1e-4)
        if method == "lesam":
            assert other["rho"] == pytest.approx(row["rho"], rel=1e-4)
            assert other["train_loss"] == pytest.approx(row["train_loss"], rel=1e-4)


WITNESS = """
import atexit, pathlib, os

class Witness:
    def __del__(self, write=pathlib.Path.write_text, path=pathlib.Path(os.environ["WITNESS"])):
        if "RANK" in os.environ:
            write(path / ("torn down " + os.environ["RANK"]), "")

witness = Witness()
if "RANK" in os.environ:
    atexit.register(pathlib.Path(os.environ["WITNESS"], "exit functions " + os.environ["RANK"]).touch)
"""


def test_a_process_of_several_calls_exit_functions_and_is_not_torn_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of a group outlive it, and one of them that lets go of a tensor meanwhile would abort the process."""
    (tmp_path / "sitecustomize.py").write_text(WITNESS)
    (tmp_path / "seen").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("WITNESS", str(tmp_path / "seen"))
    result = launched(2, *NORMALISED, "-o", str(tmp_path / "runs"))
    assert result.returncode == 0, result.stderr
    assert {path.name for path in (tmp_path / "seen").iterdir()} == {"exit functions 0", "exit functions 1"}
    diverged = launched(2, *NORMALISED, "--set", "optimizer.lr=1e30", "-o", str(tmp_path / "runs"))
    assert "exitcode  : 3 " in diverged.stderr  # torchrun may end the second when it sees the first end
    assert not [path for path in (tmp_path / "seen").iterdir() if "torn" in path.name]


def test_two_processes_go_on_after_a_stop(tmp_path: Path) -> None:
    """A run of one epoch, continued: the same weights as without a stop, and the finished run is left alone."""
    config = config_of("lesam")
    train(config, runs=tmp_path / "whole", progress=Silent())
    first = two_processes("lesam", tmp_path / "two")
    assert first.returncode == 0, first.stdout + first.stderr
    folder = RunFolder.of(config, tmp_path / "two")
    (folder.path / "summary.json").unlink()
    for item in checkpoints.listed(folder.checkpoints):
        if item.epoch == 2:
            (item.path / "state.pt").write_bytes(b"")
    second = two_processes("lesam", tmp_path / "two")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "damaged" in second.stdout
    ours, theirs = last(RunFolder.of(config, tmp_path / "whole")), last(folder)
    for name in ours:
        torch.testing.assert_close(theirs[name], ours[name], rtol=1e-9, atol=1e-12)


def test_the_same_command_runs_under_slurm(tmp_path: Path) -> None:
    """Two tasks as srun starts them: no launcher of ours or torch's, everything is in the environment."""
    config = config_of("lesam")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {
        **{"SLURM_JOB_ID": "1234", "SLURM_JOB_NAME": "lesam", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"},
        **{"SLURM_NODEID": "0", "SLURM_NODELIST": "localhost", "SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
    }
    command = [
        *(sys.executable, "-m", "lesam", "train", "vit-cifar100", "--method", "lesam", "--scale", "smoke"),
        *("--devices", "2", "--precision", "64-true", "--accelerator", "cpu", "-o", str(tmp_path / "two")),
        *(part for setting in SETTINGS for part in ("--set", setting)),
    ]
    tasks = [
        subprocess.Popen(
            command,
            env={**os.environ, **job, "SLURM_PROCID": rank, "SLURM_LOCALID": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ("0", "1")
    ]
    outputs = [task.communicate(timeout=300)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    train(config, runs=tmp_path / "one", progress=Silent())
    ours, theirs = (last(RunFolder.of(config, tmp_path / name)) for name in ("one", "two"))
    for name in ours:
        torch.testing.assert_close(theirs[name], ours[name], rtol=1e-9, atol=1e-12)


# BatchNorm sees the part of the batch that one worker has.
FINGERPRINT = "3d210b0dca"
"""Of digits, smoke, SAM, before the number of processes was a part of any fingerprint."""
NORMALISED = ("train", "digits", "--method", "sgd", "--scale", "smoke", "--accelerator", "cpu")


def launched(processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    return subprocess.run(
        [sys.executable, *launcher, "-m", "lesam", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_runs_whose_outcome_the_number_of_processes_decides_have_folders_of_their_own(tmp_path: Path) -> None:
    one = recipes.build("digits", method="sgd", scale="smoke")
    train(override(one, ["system.accelerator=cpu"]), runs=tmp_path, progress=Silent())
    result = launched(2, *NORMALISED, "-o", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    folders = {run.config().system.workers: run for run in find_runs([tmp_path])}
    assert folders.keys() == {1, 2}
    losses = [folders[workers].metrics()[-1]["train_loss"] for workers in (1, 2)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-6)
    labels = [found.label for found in group(folders.values())]
    assert sorted(labels) == ["SGD", "SGD (workers=2)"]


def test_another_number_of_processes_does_not_resume_a_run(tmp_path: Path) -> None:
    """Also between epochs, and where the name is the same: without BatchNorm, or in a folder of an earlier version."""
    first = two_processes("sgd", tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    folder = RunFolder.of(config_of("sgd"), tmp_path)
    (folder.path / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"written by 2 processes and cannot be resumed by 1 process"):
        train(config_of("sgd"), runs=tmp_path, progress=Silent())


def test_shared_statistics_are_refused_where_torch_has_none(tmp_path: Path) -> None:
    result = launched(2, *NORMALISED, "--set", "system.sync_batch_norm=true", "-o", str(tmp_path / "runs"))
    assert result.returncode != 0
    assert "system.sync_batch_norm needs GPUs" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_one_process_keeps_its_fingerprint_and_several_count_only_where_they_decide() -> None:
    normalised, plain = recipes.build("digits", method="sam", scale="smoke"), config_of("sam")
    assert laid_out(normalised, 1) == normalised
    assert normalised.fingerprint == FINGERPRINT
    assert len({laid_out(normalised, workers).fingerprint for workers in (1, 2, 4)}) == 3
    assert laid_out(plain, 2).fingerprint == plain.fingerprint
    part = recipes.build("mnist1d-mlp", method="partiallesam", scale="smoke")
    assert laid_out(part, 2).fingerprint != part.fingerprint
    assert laid_out(override(part, ["optimizer.share=1"]), 2).system.workers == 1
    local = override(plain, ["optimizer.perturbation=local"])
    assert laid_out(local, 2).fingerprint != local.fingerprint
    for change in ("data.augment=basic", "model.options.dropout=0.1"):  # drawn for each worker
        drawn = override(plain, [change])
        assert laid_out(drawn, 2).fingerprint != drawn.fingerprint, change
    chosen = config_of("esam")  # the sharpest samples of one worker's part are not those of the whole batch
    assert laid_out(chosen, 1) == chosen
    assert laid_out(chosen, 2).fingerprint != chosen.fingerprint
    every_sample = override(chosen, ["optimizer.gamma=1.0"])
    assert laid_out(every_sample, 2).fingerprint == every_sample.fingerprint
    shared = override(normalised, ["system.sync_batch_norm=true", "data.augment=none"])
    assert laid_out(shared, 2).fingerprint == shared.fingerprint != normalised.fingerprint
    with pytest.raises(ValueError, match="--devices and --nodes"):
        override(normalised, ["system.workers=2"])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch shares BatchNorm statistics between GPUs only")
def test_with_shared_statistics_two_gpus_train_the_run_of_one(tmp_path: Path) -> None:
    changes = ("--set", "system.sync_batch_norm=true", "--set", "data.augment=none", "--precision", "64-true")
    arguments = ("train", "digits", "--method", "sgd", "--scale", "smoke", *changes)
    for processes in (1, 2):
        result = launched(processes, *arguments, "--accelerator", "cuda", "-o", str(tmp_path / str(processes)))
        assert result.returncode == 0, result.stderr
    one, two = (last(find_runs([tmp_path / str(processes)])[0]) for processes in (1, 2))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-12)

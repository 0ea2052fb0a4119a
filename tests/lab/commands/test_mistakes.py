"""What goes wrong every day ends in one sentence that says what to do, in a process of its own."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lesam.lab.cli import main
from lesam.lab.models.imagenet import imagenet_resnet18
from lesam.lab.runs.folder import RunFolder
from tests.lab.report.page.folders import finished
from tests.lab.running import smoke, trained

TRAIN = ("train", "digits", "--method", "sgd", "--scale", "smoke", "--accelerator", "cpu")


def sentence(error: str) -> str:
    """The only line that the command says on standard error."""
    assert "Traceback" not in error
    (line,) = [line for line in error.splitlines() if line.startswith("lesam: ")]
    return line


def test_a_locked_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.of(smoke("digits", "system.accelerator=cpu"), tmp_path / "runs")
    with folder.lock():
        assert main([*TRAIN]) == 2
    assert "another process is training" in sentence(capsys.readouterr().err)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_not_a_locked_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)  # no file system without locks at hand
    with pytest.warns(UserWarning, match="cannot lock files"), RunFolder(tmp_path / "run").lock():
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--scale", "smoke", "--accelerator", "cuda"]) == 2
    assert "no cuda device" in sentence(capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()
    trained(smoke("digits", "schedule.epochs=1"), tmp_path / "runs")
    assert main(["attack", "runs", "--device", "cuda"]) == 2
    assert "no cuda device" in sentence(capsys.readouterr().err)


def test_output_below_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    trained(smoke("digits", "schedule.epochs=1"), tmp_path / "runs")
    for arguments in ([*TRAIN, "-o", "file/runs"], ["table", "runs", "-o", "file/table.md"]):
        assert main(arguments) == 2
        assert "file" in sentence(capsys.readouterr().err)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.of(smoke("digits", "system.accelerator=cpu"), tmp_path / "runs")
    folder.path.mkdir(parents=True)
    (folder.path / "steps.jsonl").symlink_to("/dev/full")
    monkeypatch.setattr(RunFolder, "rewind", lambda self, *, epoch: None)  # which would replace the link by a file
    assert main([*TRAIN]) == 2
    assert "make room" in sentence(capsys.readouterr().err)


def test_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
    arguments = [*TRAIN, "--set", "model.options.width=64", "-o", str(tmp_path)]
    code = f"{limit}from lesam.lab.cli import main; import sys; sys.exit(main({arguments}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert "could not be written" in sentence(result.stderr)


def test_missing_weights_name_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"model\.options\.weights='nowhere.pth'"):
        imagenet_resnet18(2, weights="nowhere.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(RuntimeError, match=r"--set model\.options\.weights=PATH"):
        imagenet_resnet18(2, weights="IMAGENET1K_V1")


def test_weights_and_biases_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else find(name, *rest))
    assert main([*TRAIN, "--set", "record.wandb=mine"]) == 2
    assert "pip install wandb" in sentence(capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_a_closed_pipe() -> None:
    code = "from lesam.lab.cli import main; import sys; sys.exit(main(['list']))"
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert result.returncode == 141
    assert result.stderr == ""


@pytest.mark.parametrize("command", [["report"], ["table"], ["plot", "curves"]], ids=lambda words: words[0])
def test_a_folder_where_a_file_is_to_be_written(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(smoke("digits"), tmp_path / "runs" / "one", [0.5, 0.6])
    folder = tmp_path / "taken.png"
    folder.mkdir()
    assert main([*command, str(tmp_path / "runs"), "-o", str(folder)]) == 2
    assert f"--output {folder} is a folder; name a file in it" in sentence(capsys.readouterr().err)


def test_records_of_what_keeps_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only contests keep records, and a folder without any is no reason to train everything."""
    where = ["-o", str(tmp_path / "out"), "--records", str(tmp_path), "--scale", "smoke"]
    assert main(["reproduce", "cifar", *where]) == 2
    assert "cifar keeps none" in sentence(capsys.readouterr().err)
    assert main(["reproduce", "study", *where]) == 2
    assert "has no records of a contest" in sentence(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()

"""``python -m lesam.optim.selfcheck``: what it reports where promises hold, and where they are broken."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lesam
from lesam.optim.selfcheck import CHECKS, main, processes
from lesam.optim.selfcheck.outcome import BrokenPromiseError

NEEDS_CUDA = {"streams", "graphs"}


def outcome(tmp_path: Path, *checks: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status and rows of the CPU, by check."""
    status = main(["--only", *checks, "--json", str(tmp_path / "out.json")])
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    return status, {row["check"]: row for row in rows if row["device"] == "cpu"}


# ---------------------------------------------------------------------- where the promises hold


@pytest.mark.xdist_group("processes")
def test_the_command_holds_on_this_machine_and_reports_every_check(tmp_path: Path):
    command = [sys.executable, "-m", "lesam.optim.selfcheck", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["environment"]["torch"] == torch.__version__
    assert report["environment"]["lesam"] == lesam.__version__
    rows = {row["check"]: row for row in report["rows"] if row["device"] == "cpu"}
    assert list(rows) == list(CHECKS)
    printed = {line.split()[0]: line for line in done.stdout.splitlines() if line.split()[1:2] == ["cpu"]}
    assert list(printed) == list(CHECKS)
    for name, row in rows.items():
        assert row["promise"] in printed[name]
        if name in NEEDS_CUDA:
            assert row["result"] == "not applicable"
            assert row["reason"] in printed[name]
        elif name != "fsdp2":  # which torch 2.6 has not on CPUs
            assert row["result"] == "held"
            assert row["value"] is not None
            assert row["measured"] in printed[name]


def test_the_list_has_a_promise_for_every_check(capsys: pytest.CaptureFixture[str]):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(CHECKS)
    assert all(line.endswith(".") for line in lines)


def test_an_unknown_check_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["--only", "restroed"])
    assert stop.value.code == 2
    assert "restored" in capsys.readouterr().err


# ---------------------------------------------------------------------- where one is broken


class Forgetful(lesam.SAM):
    """Leaves the last bit of one weight perturbed."""

    def step(self, *arguments: Any, **options: Any) -> Any:
        loss = super().step(*arguments, **options)
        weight = self.param_groups[0]["params"][0]
        with torch.no_grad():
            weight[0, 0] = torch.nextafter(weight[0, 0].float(), torch.tensor(9.0)).to(weight.dtype)
        return loss


class Waiting(lesam.SAM):
    """Looks at the gradient's norm at every step."""

    def step(self, *arguments: Any, **options: Any) -> Any:
        loss = super().step(*arguments, **options)
        self.seen = self.last.grad_norm.item()
        return loss


class Still(lesam.SAM):
    """Never perturbs anything, so that there is nothing to restore."""

    def __init__(self, base: torch.optim.Optimizer, rho: float = 0.05, **options: Any) -> None:
        super().__init__(base, rho=0.0, **options)


class Far(lesam.SAM):
    """Climbs a little too far."""

    def __init__(self, base: torch.optim.Optimizer, rho: float = 0.05, **options: Any) -> None:
        super().__init__(base, rho=1.01 * rho, **options)


class Hoarding(lesam.SAM):
    """Keeps a copy of a fifth of the weights that it does not need."""

    def step(self, *arguments: Any, **options: Any) -> Any:
        parameters = self.param_groups[0]["params"]
        self.kept: list[torch.Tensor] = []
        self.kept += [p.detach().clone() for p in parameters[: len(parameters) // 5]]
        return super().step(*arguments, **options)


class Raising(lesam.SAM):
    """Cannot be stepped with at all."""

    def step(self, *arguments: Any, **options: Any) -> Any:
        raise ZeroDivisionError("in the middle of nowhere")


@pytest.mark.parametrize(
    ("broken", "check", "reason"),
    [
        (Forgetful, "restored", "sam in float32: 1 of "),
        (Raising, "restored", "sam in float32, sam in bfloat16: ZeroDivisionError: in the middle of nowhere"),
        (Still, "restored", "never perturbed"),
        (Still, "undone", "never perturbed"),
        (Waiting, "no-waiting", "sam: 3 host reads"),
        (Far, "by-hand", "sam by step() in float64 is off by "),
        (Far, "channels-last", "the perturbation differs from rho g / |g|"),
        (Hoarding, "memory", "sam takes 1.19 copies more"),
    ],
)
def test_a_broken_promise_is_found_and_the_other_checks_still_run(
    broken: type[lesam.SAM],
    check: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setitem(lesam.METHODS, "sam", broken)
    status, rows = outcome(tmp_path, check, "dropout")
    assert status == 1
    assert rows[check]["result"] == "failed"
    assert reason in rows[check]["reason"]
    assert "lesam" not in rows[check]["reason"]  # whose promises hold
    assert rows["dropout"]["result"] == "held"
    assert f"FAILED {check} on cpu: {rows[check]['reason']}" in capsys.readouterr().out


def test_masks_that_are_not_replayed_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Careless(lesam.LESAM):
        def __init__(self, base: torch.optim.Optimizer, **options: Any) -> None:
            super().__init__(base, **options, replay_rng=False)

    monkeypatch.setitem(lesam.METHODS, "lesam", Careless)
    status, rows = outcome(tmp_path, "dropout")
    assert status == 1
    assert "dropout decisions differ between passes" in rows["dropout"]["reason"]


def test_processes_that_do_not_answer_are_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "SECONDS", 0.01)
    with pytest.raises(BrokenPromiseError, match="no answer from the processes"):
        processes.ddp(torch.device("cpu"))
    assert multiprocessing.active_children() == []


def test_what_plain_torch_cannot_do_is_not_applicable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unsupported(*arguments: Any, **options: Any) -> nn.Module:
        raise RuntimeError("no compiler on this machine\nand a long story")

    monkeypatch.setattr(torch, "compile", lambda model, backend: unsupported)
    status, rows = outcome(tmp_path, "compiled")
    assert status == 0
    assert rows["compiled"]["result"] == "not applicable"
    assert rows["compiled"]["reason"].endswith("RuntimeError: no compiler on this machine")

"""`lesam attack`, and what an attack refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lesam.lab import models
from lesam.lab.attacks.pgd import PRESETS, Attack, perturb, robust_accuracy
from lesam.lab.attacks.run import attack_run, pixel_model
from lesam.lab.cli import main, make_app
from lesam.lab.config.text import override
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.restore import load_model
from tests.lab.running import smoke, trained

# The command.

OPTIONS = {
    *("--runs", "--norm", "--eps", "--step-size", "--steps", "--restarts", "--keep", "--epoch", "--split"),
    *("--samples", "--batch-size", "--final-norm", "--seed", "--device"),
}


def test_the_surface_is_frozen() -> None:
    names = {name for argument in make_app()["attack"].assemble_argument_collection() for name in argument.names}
    assert names == OPTIONS


def test_the_command_from_training_to_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for recipe in ("robust-cifar10", "cifar100-resnet18"):
        arguments = ["train", recipe, "--method", "sgd", "--scale", "smoke", "--seeds", "0", "1", "-o", str(tmp_path)]
        assert main(arguments) == 0
    capsys.readouterr()
    command = ["attack", str(tmp_path), "--norm", "linf", "--eps", "4/255", "--batch-size", "20", "--device", "cpu"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "linf, eps 4/255, 10 steps of 1/255" in shown
    assert "SGD, robust-cifar10 smoke, seed 1, images attacked: done in" in shown
    files = sorted(tmp_path.glob("*/attacks/*.json"))
    assert len(files) == 4
    stored = [json.loads(file.read_text()) for file in files if "robust" in str(file)]
    assert all(record["settings"]["attack"]["eps"] == 4 / 255 for record in stored)
    attacked = [record["result"]["attacked"] * 100 for record in stored]
    mean, std = sum(attacked) / 2, abs(attacked[0] - attacked[1]) / math.sqrt(2)
    (line,) = [line for line in shown.splitlines() if line.startswith("| robust-cifar10 | smoke | SGD | 2 | 32 |")]
    assert line.endswith(f"| {mean:.2f} ± {std:.2f} |  |")
    assert main(command) == 0
    again = capsys.readouterr().out
    assert again.count("has the answer already") == 4
    assert line in again
    assert sorted(tmp_path.glob("*/attacks/*.json")) == files


def test_unfinished_runs_are_left_out(digits: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(digits.config(), seed=9)
    waiting = RunFolder.of(config, tmp_path)
    waiting.create(config, {})
    assert main(["attack", str(digits.path), str(tmp_path), "--samples", "10"]) == 0
    assert f"{waiting.path} is not finished and left out" in capsys.readouterr().out
    assert main(["attack", str(tmp_path)]) == 2
    assert "is finished" in capsys.readouterr().err
    with pytest.raises(ValueError, match="not finished; name the epoch"):
        attack_run(waiting, PRESETS["linf-1"])


@pytest.mark.parametrize("command", ["attack", "corrupt"])
def test_a_run_without_its_checkpoint_is_left_out_by_name(
    command: str, digits: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = RunFolder(tmp_path / "bare")
    bare.create(replace(digits.config(), seed=9), {})
    bare.finish(digits.summary() or {})
    assert main([command, str(digits.path), str(bare.path), "--samples", "10"]) == 0
    printed = capsys.readouterr()
    assert f"left out: {bare.path} has no checkpoint" in printed.err
    assert "| digits | smoke | SGD | 1 | 10 |" in printed.out
    assert main([command, str(bare.path), "--samples", "10"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--eps", "1/x"], "--eps is a number or a fraction such as 1/255, got '1/x'"),
        (["--eps", "1/0"], "--eps is a number or a fraction"),
        (["--step-size", "tiny"], "--step-size is a number or a fraction"),
        (["--eps", "0"], "eps must be positive and finite, got 0.0"),
        (["--eps", "8"], "eight grey levels are 8/255"),
        (["--steps", "0"], "steps and restarts must be at least 1, got 0 and 1"),
        (["--epoch", "4"], "has no checkpoint after 4 epochs; it has those after 3, 6"),
        (["--samples", "598"], "the split has 597 images, 598 were asked for"),
        (["--batch-size", "0"], "batch_size and samples must be at least 1"),
        (["--final-norm", "sam_at_bug"], "about colour images"),
    ],
)
def test_mistakes_end_in_a_sentence(
    arguments: list[str], message: str, digits: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((digits.path / "attacks").glob("*"))
    assert main(["attack", str(digits.path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert sorted((digits.path / "attacks").glob("*")) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "l1"}, "unknown norm 'l1'"),
        ({"keep": "best"}, "unknown choice of iterates 'best'"),
        ({"eps": math.nan}, "eps must be positive and finite, got nan"),
        ({"step_size": -0.1}, "step_size must be positive"),
        ({"restarts": 0}, "must be at least 1"),
        ({"restarts": 2, "random_start": False}, "would repeat each other"),
    ],
)
def test_an_attack_without_a_meaning_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Attack(**{"norm": "linf", "eps": 0.1, "step_size": 0.1, **changes})


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.full((2, 4), 1.5), torch.tensor([0, 1]), r"pixels in \[0, 1\], got values from 1.5 to 1.5"),
        (torch.full((2, 4), math.nan), torch.tensor([0, 1]), r"pixels in \[0, 1\]"),
        (torch.zeros(2, 4, dtype=torch.uint8), torch.tensor([0, 1]), "floating-point images"),
        (torch.zeros(2, 4), torch.tensor([0]), "labels"),
        (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), "N >= 1"),
    ],
)
def test_images_that_are_not_pixels_are_refused(images: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        perturb(nn.Linear(4, 2), images, labels, PRESETS["linf-1"])


def test_no_images_and_other_refusals(digits: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without images"):
        robust_accuracy(nn.Linear(4, 2), [], PRESETS["linf-1"])
    with pytest.raises(ValueError, match="unknown final normalisation 'corect'; did you mean 'correct'"):
        attack_run(digits, PRESETS["linf-1"], final_norm="corect")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown split 'tests'"):
        attack_run(digits, PRESETS["linf-1"], split="tests")
    with pytest.raises(ValueError, match="is not a run folder"):
        load_model(RunFolder(tmp_path))
    config = smoke("robust-cifar10", "data.normalisation=half")
    with pytest.raises(ValueError, match="normalises twice"):
        pixel_model(models.build(config.model.name, 4, **dict(config.model.options)), config)  # type: ignore[arg-type]


def test_a_damaged_checkpoint_is_not_attacked(digits: RunFolder, tmp_path: Path) -> None:
    run = trained(override(digits.config(), ["schedule.epochs=1", "record.keep_epochs=1"]), tmp_path)
    (weights,) = run.checkpoints.glob("*/weights.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="is damaged"):
        attack_run(run, PRESETS["linf-1"])

"""Tables whose rows are searched alike: the same number of trials, nothing chosen on the test images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lesam.lab import paper
from lesam.lab.cli import main
from lesam.lab.paper.experiment import Request
from lesam.lab.runs.folder import RunFolder
from lesam.lab.sweeps.tuning import SEARCH_SEEDS

ASKED = ["--recipes", "cifar10-resnet18", "--methods", "sgd", "sam", "--scale", "smoke"]


def test_every_row_is_searched_on_held_out_images_and_trained_on_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "cifar", "--tuned", *ASKED, "-o", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    request = Request(
        scale="smoke", runs=tmp_path / "runs", recipes=("cifar10-resnet18",), methods=("sgd", "sam"), seeds=(0,)
    )
    planned = paper.find("cifar-tuned").plan(request)
    for method in ("sgd", "sam"):
        trials = [run.config for run in planned if run.config.method == method and run.config.seed in SEARCH_SEEDS]
        assert len(trials) == 10
        assert all(config.data.options["validation"] == 0.1 for config in trials)
        (final,) = (run.config for run in planned if run.config.method == method and run.config.seed == 0)
        assert "validation" not in final.data.options
        field = {"sgd": "lr", "sam": "rho"}[method]
        scores: dict[tuple[float, float], float] = {}
        for config in trials:
            summary = RunFolder.of(config, request.runs).summary() or {}
            setting = (getattr(config.optimizer, field), config.optimizer.weight_decay)
            scores[setting] = scores.get(setting, 0.0) + summary["last"]["validation_accuracy"]
        best = max(scores.values())
        assert scores[getattr(final.optimizer, field), final.optimizer.weight_decay] == best
    assert "## Searches" in shown
    result = json.loads((tmp_path / "cifar-tuned" / "smoke" / "result.json").read_text())
    assert {row["row"] for row in result["rows"]} == {"SGD", "SAM"}


def test_the_plan_has_the_trials_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "cifar", "--tuned", "--plan", *ASKED, "-o", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lesam train")]
    assert len(lines) == 20
    assert all("data.options.validation=0.1" in line for line in lines)


@pytest.mark.parametrize(("name", "words"), [("flatness", "no rows to search"), ("pacs", "cannot hold any out")])
def test_what_cannot_be_searched_is_refused(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", name, "--tuned", "--scale", "smoke", "-o", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

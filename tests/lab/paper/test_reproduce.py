"""Every table and figure of the paper from one command: complete, traceable, and nothing left by a failure."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from lesam.lab import paper
from lesam.lab.cli import main
from lesam.lab.files import write_atomically
from lesam.lab.paper import results
from lesam.lab.paper.experiment import Cell, Request
from lesam.lab.paper.experiments import cifar, cost, late_switch, lesam_plus, radius, sensitivity, stabilisers
from lesam.lab.runs.folder import RunFolder

NAMES = {
    *("cifar", "imagenet", "vit-finetune", "flatness", "landscape", "radius", "late-switch", "lesam-plus", "pacs"),
    *("vlcs", "adversarial", "sensitivity", "long-tail", "cost", "mechanism", "stabilisers", "cutout"),
    *("study", "price", "fine-tuning"),
}

# Enough of the large tables to see every kind of cell; the other experiments run whole.
PARTS = {
    "cifar": ["--recipes", "cifar10-wrn", "cifar100-pyramid", "--methods", "sgd", "esam", "lesam"],
    "cutout": ["--recipes", "cifar10-resnet18", "--methods", "sam"],
    "imagenet": ["--recipes", "imagenet-resnet50", "--methods", "eigensam", "lesam"],
    "lesam-plus": ["--recipes", "cifar100-wrn"],
    "price": ["--recipes", "mnist1d-mlp", "digits"],
    "study": ["--recipes", "cifar100-resnet18", "pacs-cartoon"],
}


def request(**changes: Any) -> Request:
    return Request(**{"scale": "smoke", "seeds": (0,), "runs": Path("runs"), **changes})


def test_there_is_one_experiment_for_each_table_and_figure() -> None:
    assert set(paper.NAMES) == NAMES
    assert [paper.find(name).name for name in paper.NAMES] == list(paper.NAMES)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_experiment_runs_offline_and_its_numbers_lead_to_run_folders(name: str, tmp_path: Path) -> None:
    assert main(["reproduce", name, "--scale", "smoke", "-o", str(tmp_path), *PARTS.get(name, [])]) == 0
    folder = tmp_path / name / "smoke"
    result = json.loads((folder / "result.json").read_text())
    seeds = [0, 1] if name in ("study", "price", "fine-tuning") else [0]
    assert (result["experiment"], result["scale"], result["seeds"]) == (name, "smoke", seeds)
    assert (folder / "table.md").exists() or (folder / "figure.png").exists()
    assert result["rows"]
    for row in result["rows"]:
        assert row["runs"] or name == "cost"
        for run in row["runs"]:
            assert RunFolder(tmp_path / "runs" / run).summary() is not None
        for quantity, values in row.get("values", {}).items():
            if "last epoch (%)" in quantity and quantity.startswith("Test"):
                summaries = [RunFolder(tmp_path / "runs" / run).summary() for run in row["runs"]]
                assert values == [pytest.approx(100 * s["last"]["test_accuracy"]) for s in summaries if s]
    assert bool(result["part"]) == (name in PARTS)
    assert not list(tmp_path.glob(".*"))


def test_finished_runs_are_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "stabilisers", "--scale", "smoke", "-o", str(tmp_path)]
    assert main(command) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")}
    assert len(before) == 4
    assert main(["reproduce", "--list", "--scale", "smoke", "-o", str(tmp_path)]) == 0
    listed = dict(line.split("\t")[::2] for line in capsys.readouterr().out.splitlines() if "\t" in line)
    assert listed["stabilisers"].startswith("done")
    assert listed["stabilisers"].endswith("4 of 4 runs finished")
    assert not listed["cifar"].startswith("done")
    assert main(command) == 0
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")}


def test_several_runs_at_a_time_give_the_same_result(tmp_path: Path) -> None:
    found = []
    for jobs in ("1", "2"):
        output = tmp_path / jobs
        arguments = ["reproduce", "sensitivity", "--scale", "smoke", "-o", str(output), "--jobs", jobs]
        assert main([*arguments, "--set", "system.precision=64-true"]) == 0
        found.append(json.loads((output / "sensitivity" / "smoke" / "result.json").read_text())["rows"])
    assert found[0] == found[1]


@pytest.mark.parametrize(("name", "what"), [("cifar", "cifar"), ("pacs", "PACS"), ("imagenet", "train")])
def test_missing_data_is_said_before_anything_is_written(
    name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LESAM_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    output = tmp_path / "out"
    assert main(["reproduce", name, "--scale", "paper", "-o", str(output)]) == 2
    message = capsys.readouterr().err
    assert what in message
    assert str(tmp_path / "empty") in message
    assert not output.exists()


def test_a_failed_evaluation_leaves_the_older_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(runs=tmp_path / "runs")
    paper.reproduce("stabilisers", asked, tmp_path)
    before = (tmp_path / "stabilisers" / "smoke" / "result.json").read_text()

    class Broken:
        name, title = "stabilisers", "broken"
        recipes, plan = stabilisers.EXPERIMENT.recipes, staticmethod(stabilisers.EXPERIMENT.plan)

        def report(self, request: Request, cells: Any, kept: Any = ()) -> Any:
            raise RuntimeError("no result")

    monkeypatch.setattr(stabilisers, "EXPERIMENT", Broken())
    with pytest.raises(RuntimeError, match="no result"):
        paper.reproduce("stabilisers", asked, tmp_path)
    assert (tmp_path / "stabilisers" / "smoke" / "result.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "cifr"], "did you mean 'cifar'"),
        (["reproduce"], "name an experiment"),
        (["reproduce", "cifar", "--scale", "huge"], "unknown scale"),
        (["reproduce", "cifar", "--methods", "le-sam"], "did you mean 'lesam'"),
        (["reproduce", "cifar", "--recipes", "cifar10-resnet"], "did you mean 'cifar10-resnet18'"),
        (["reproduce", "cifar", "--methods", "msam", "--scale", "smoke"], "has no runs with"),
        (["reproduce", "cost", "--recipes", "digits", "--scale", "smoke"], "cost measures cifar100-resnet18"),
        (["reproduce", "radius", "--jobs", "0", "--scale", "smoke"], "jobs must be at least 1"),
    ],
)
def test_mistakes_end_in_a_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*arguments, "-o", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def finished(folder: Path, accuracies: list[float], config: Any) -> tuple[RunFolder, ...]:
    """Run folders with a known result."""
    made = []
    for number, accuracy in enumerate(accuracies):
        run = RunFolder(folder / f"run{number}")
        run.path.mkdir(parents=True)
        last = {"test_accuracy": accuracy}
        summary = {"last": last, "best_test_selected": {"test_accuracy": accuracy + 0.01}}
        write_atomically(run.path / "summary.json", json.dumps(summary))
        made.append(run)
    return tuple(made)


def test_the_table_has_mean_and_sample_deviation_beside_the_papers_figure(tmp_path: Path) -> None:
    asked = request(scale="paper", seeds=(0, 1, 2))
    planned = [run for run in cifar.EXPERIMENT.plan(asked) if (run.row, run.column) == ("LE-SAM", "C100 ResNet-18")]
    configs = tuple(run.config for run in planned)
    accuracies = [0.81, 0.82, 0.835]
    runs = finished(tmp_path, accuracies, configs)
    report = cifar.EXPERIMENT.report(asked, [Cell(row="LE-SAM", column="C100 ResNet-18", configs=configs, runs=runs)])
    head, line = report.tables["Test accuracy of the last epoch (%)"]
    mean, std = statistics.mean(accuracies) * 100, statistics.stdev(accuracies) * 100
    assert head == ["", "C100 ResNet-18", "paper"]
    assert line == ["LE-SAM", f"{mean:.2f} ± {std:.2f}", "81.51 ± 0.08"]
    text = results.markdown(cifar.EXPERIMENT, asked, report)
    assert "| LE-SAM | 82.17 ± 1.26 | 81.51 ± 0.08 |" in text
    assert "not to be compared" not in text
    assert "not to be compared" in results.markdown(cifar.EXPERIMENT, request(), report)


def test_the_reference_form_of_lesam_plus_has_no_figure_of_the_paper() -> None:
    quantity = "Test accuracy of the last epoch (%)"
    assert lesam_plus.EXPERIMENT.paper("LE-SAM+", "WRN-28-10", quantity) == (85.06, None)
    assert lesam_plus.EXPERIMENT.paper("LE-SAM+, reference form", "WRN-28-10", quantity) is None


def test_the_switch_has_four_curves_at_the_papers_epoch() -> None:
    configs = {run.row: run.config for run in late_switch.EXPERIMENT.plan(request(scale="paper"))}
    assert [config.schedule.switch_at for config in configs.values()] == [None, 160, None, 160]
    for row in ("LE-SAM throughout", "SGD, then LE-SAM"):  # without stabilisers, as in the paper
        optimizer: Any = configs[row].optimizer
        assert (optimizer.sigma, optimizer.rho_max) == (0.35, None)
        assert configs[row].schedule.budget_anneal_start is None


def test_sensitivity_sweeps_the_papers_budgets() -> None:
    sigmas = [
        getattr(run.config.optimizer, "sigma", None) for run in sensitivity.EXPERIMENT.plan(request(scale="paper"))
    ]
    assert sigmas == pytest.approx([0.3, 0.35, 0.4, 0.45, 0.5])


def test_stabilisers_are_all_four_combinations() -> None:
    configs = [run.config for run in stabilisers.EXPERIMENT.plan(request(scale="paper"))]
    found = [(getattr(c.optimizer, "rho_max", 0), c.schedule.budget_anneal_start) for c in configs]
    assert found == [(0.4, 160), (0.4, None), (None, 160), (None, None)]


def test_what_a_row_changes_follows_what_was_set() -> None:
    asked = request(scale="paper", changes=("schedule.epochs=50", "schedule.budget_anneal_start=none"))
    assert [run.config.schedule.switch_at for run in late_switch.EXPERIMENT.plan(asked)] == [None, 40, None, 40]
    asked = request(scale="paper", changes=("schedule.epochs=50",))
    assert [run.config.schedule.budget_anneal_start for run in stabilisers.EXPERIMENT.plan(asked)] == [
        40,
        None,
        40,
        None,
    ]


def test_the_radius_is_read_before_annealing_takes_it_to_zero(tmp_path: Path) -> None:
    config = radius.EXPERIMENT.plan(request(scale="paper"))[0].config
    run = RunFolder(tmp_path / "run")
    run.create(config, {})
    radii = [*([0.3] * 10), *([0.1] * 90), *([0.2] * 60), *([0.05] * 39), 0.0]
    run.append({"epoch": 0, "rho": radii[0]}, [])
    for epoch, rho in list(enumerate(radii))[1:]:
        run.append({"epoch": epoch, "rho": rho}, [])
    read = {
        name: quantity(run) for name, quantity in radius.EXPERIMENT.quantities.items() if "mean radius" in name.lower()
    }
    assert list(read.values()) == [0.3, 0.1, 0.2]


def test_cost_takes_turns_and_counts_none_twice(tmp_path: Path) -> None:
    asked = request(runs=tmp_path, recipes=("cifar100-resnet18",), progress=lambda text: None)
    (row,) = cost.Cost().report(asked, []).rows
    turns = cost.EFFORTS["smoke"].turns - 1
    assert [len(row["seconds"][method]) for method in ("sam", "lesam")] == [turns, turns]
    pairs = zip(row["seconds"]["sam"], row["seconds"]["lesam"], strict=True)
    assert row["ratio"] == pytest.approx(statistics.median(ours / theirs for theirs, ours in pairs))
    assert math.isfinite(row["ratio"])
    assert row["ratio"] > 0

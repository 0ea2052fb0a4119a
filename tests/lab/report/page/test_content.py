"""What the page says: every number is that of the run folders, nothing is averaged in silence."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from lesam.flatness import LowPass
from lesam.lab.cli import main
from lesam.lab.config.text import override
from lesam.lab.report.page.charts import MOST_LINES, MOST_POINTS
from lesam.lab.report.page.content import Content, content
from lesam.lab.report.page.entries import read
from lesam.lab.report.tables import lines
from lesam.lab.runs.folder import Row, RunFolder, find_runs
from lesam.lab.runs.repetitions import group
from lesam.lab.runs.snapshot import Snapshot
from lesam.lab.runs.statistics import paired
from tests.lab.report.page.folders import finished
from tests.lab.running import smoke


def of(folder: Path) -> Content:
    return content(find_runs([folder]), sources=[folder])


def table(made: Content, name: str) -> dict[str, Any]:
    return next(table for section in made["sections"] for table in section["tables"] if table["id"] == name)


def chart(made: Content, name: str) -> dict[str, Any]:
    return next(chart for section in made["sections"] for chart in section["charts"] if re.fullmatch(name, chart["id"]))


def rows(made: Content, name: str) -> list[dict[str, dict[str, Any]]]:
    found = table(made, name)
    return [dict(zip([each["title"] for each in found["columns"]], row, strict=True)) for row in found["rows"]]


def summaries(folder: Path, method: str) -> dict[int, float]:
    found = [json.loads(file.read_text()) for file in folder.glob(f"*-{method}-*/summary.json")]
    return {each["seed"]: each["last"]["test_accuracy"] for each in found if "diverged_at" not in each}


def test_the_summary_has_the_mean_the_deviation_and_the_number_of_runs(runs: Path) -> None:
    line = next(row for row in rows(of(runs), "summary") if row["method"]["text"] == "SAM")
    expected = [100 * value for value in summaries(runs, "sam").values()]
    found = line["test accuracy (%)"]
    assert (found["value"], found["sd"], found["n"]) == (
        pytest.approx(statistics.mean(expected), rel=1e-6),
        pytest.approx(statistics.stdev(expected), rel=1e-6),
        4,
    )
    assert found["text"] == f"{statistics.mean(expected):.2f} ± {statistics.stdev(expected):.2f}"
    assert line["passes a step"]["value"] == 2.0
    assert line["steps at the cap (%)"]["value"] is None  # SAM has no budget to cap


def test_differences_are_those_of_the_paired_t_test_and_unpaired_seeds_are_named(runs: Path) -> None:
    sam, lesam = summaries(runs, "sam"), summaries(runs, "lesam")
    pair = next(
        row
        for row in rows(of(runs), "differences")
        if {row["higher mean"]["text"], row["lower mean"]["text"]} == {"SAM", "LE-SAM"}
    )
    sign = 1 if pair["higher mean"]["text"] == "SAM" else -1
    reference = stats.ttest_rel([sam[seed] for seed in lesam], [lesam[seed] for seed in lesam])
    low, high = sorted(sign * 100 * bound for bound in reference.confidence_interval(0.95))
    assert (pair["95 % from"]["value"], pair["95 % to"]["value"]) == pytest.approx((low, high), rel=1e-5)
    pairs = len(rows(of(runs), "differences"))
    assert pair["p, corrected"]["value"] == pytest.approx(min(1.0, reference.pvalue * pairs), rel=1e-5)
    assert pair["unpaired seeds"]["text"] == "SAM: 7"
    assert pair["common seeds"]["value"] == 3


def test_the_headline_says_who_wins_by_how_much_and_what_cannot_be_told(tmp_path: Path) -> None:
    for method, values in {"sgd": (0.60, 0.621, 0.609), "sam": (0.80, 0.82, 0.81), "lesam": (0.78, 0.84, 0.81)}.items():
        for seed, value in enumerate(values):
            finished(replace(smoke("digits", method=method), seed=seed), tmp_path / f"{method}{seed}", [value])
    first, second = of(tmp_path)["headline"]
    assert first == "SAM beats SGD by 20.00 ± 0.25 points over 3 seeds (p < 0.001)."
    assert second == "No difference can be shown between SAM and LE-SAM."
    shutil.rmtree(tmp_path / "sgd1")
    shutil.rmtree(tmp_path / "sgd2")
    assert "SAM and SGD share fewer than three seeds" in " ".join(of(tmp_path)["headline"])


def test_who_wins_is_decided_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    for method, values in {"sam": [0.50, 0.51, 0.49] + [0.99] * 6, "sgd": [0.60, 0.612, 0.588]}.items():
        for seed, value in enumerate(values):
            finished(replace(smoke("digits", method=method), seed=seed), tmp_path / f"{method}{seed}", [value])
    made = of(tmp_path)
    (pair,) = rows(made, "differences")
    assert (pair["higher mean"]["text"], pair["lower mean"]["text"]) == ("SGD", "SAM")
    assert pair["difference (points)"]["value"] == pytest.approx(10.0)
    assert 0 < pair["95 % from"]["value"] < 10 < pair["95 % to"]["value"]
    (said,) = made["headline"]
    assert said.startswith("SGD beats SAM by 10.00 ±")
    assert "SAM has the higher mean over all its own (82.67 " in said


def test_diverged_and_unfinished_runs_are_shown_as_such(runs: Path) -> None:
    made = of(runs)
    lines = {row["method"]["text"]: row for row in rows(made, "summary")}
    assert lines["LE-SAM"]["runs"]["text"] == "3 finished, 1 unfinished"
    assert lines["LE-SAM"]["n"]["value"] == 3
    lost = next(name for name in lines if "1 of 1 diverged" in name)
    assert lines[lost]["runs"]["text"] == "1 diverged"
    words = " ".join(made["headline"])
    assert "diverged" in words
    assert "LE-SAM: 1" in words
    curves = [(line["group"], line["note"], max(line["n"])) for line in chart(made, "test_accuracy")["lines"]]
    assert ("LE-SAM", "", 3) in curves
    assert ("LE-SAM", "unfinished", 1) in curves
    assert any(group == lost and note == "diverged" for group, note, _ in curves)
    states = {row["status"]["text"] for row in rows(made, "runs")}
    assert "unfinished, 1 of 2 epochs" in states
    assert any(state.startswith("diverged at step") for state in states)


@pytest.mark.parametrize(("n", "verdict"), [(2, "fewer than three common seeds"), (4, "equal differences: no test")])
def test_equal_differences_prove_nothing(n: int, verdict: str, tmp_path: Path) -> None:
    for method, shift in {"sgd": 0.0, "sam": 0.1}.items():
        for seed in range(n):
            config = replace(smoke("digits", method=method), seed=seed)
            finished(config, tmp_path / f"{method}{seed}", [0.5 + 0.07 * seed + shift])
    made = of(tmp_path)
    (pair,) = rows(made, "differences")
    assert pair["difference"]["text"] == verdict
    assert (pair["p, corrected"]["text"], pair["p, corrected"]["value"]) == ("", None)
    assert "beats" not in " ".join(made["headline"])


def test_runs_that_differ_in_the_seed_of_their_data_are_all_counted(tmp_path: Path) -> None:
    config = smoke("digits", method="sam")
    for seed, value in enumerate((0.5, 0.6, 0.7)):
        finished(override(config, [f"data.options.seed={seed}"]), tmp_path / str(seed), [value])
    finished(override(smoke("digits", method="sgd"), ["data.options.seed=2"]), tmp_path / "sgd", [0.5])
    made = of(tmp_path)
    line = next(row for row in rows(made, "summary") if row["method"]["text"] == "SAM")
    assert (line["n"]["value"], line["test accuracy (%)"]["n"]) == (3, 3)
    (pair,) = rows(made, "differences")
    assert pair["unpaired seeds"]["text"] == "SAM: 0 (data seed 0), 0 (data seed 1)"
    assert "60.00 ± 10.00" in " ".join(made["headline"])
    gain = next(line.gain for line in lines(group(find_runs([tmp_path]))) if line.gain is not None)
    assert (gain.n, gain.mean) == (1, pytest.approx(0.2))


def attacked(run: RunFolder, epoch: int, accuracy: float) -> None:
    """Attack and corruption results of a checkpoint, as the commands keep them."""
    checkpoint = {"epoch": epoch, "step": 10 * epoch, "weights_sha256": str(epoch)}
    attack = {"attack": {"norm": "linf", "eps": 0.03, "steps": 3}, "samples": 50, "checkpoint": checkpoint}
    corrupt = {"corruptions": {"fog": [1]}, "checkpoint": checkpoint}
    for room, settings, result in (
        ("attacks", attack, {"clean": accuracy, "attacked": accuracy}),
        ("corruptions", corrupt, {"clean": accuracy, "corrupted": {"fog": [accuracy]}}),
    ):
        (run.path / room).mkdir(exist_ok=True)
        (run.path / room / f"{epoch:010d}.json").write_text(json.dumps({"settings": settings, "result": result}))


def test_attacks_and_corruptions_are_those_on_the_end_of_runs_that_ended(tmp_path: Path) -> None:
    for seed in range(3):
        run = finished(replace(smoke("digits", method="sam"), seed=seed), tmp_path / f"run{seed}", [0.5, 0.6])
        attacked(run, 2, 0.4)
    attacked(RunFolder(tmp_path / "run0"), 1, 0.1)
    attacked(RunFolder(tmp_path / "run2"), 2, 0.9)
    (tmp_path / "run2" / "summary.json").unlink()
    made = of(tmp_path)
    (section,) = [section for section in made["sections"] if section["id"] == "attacks"]
    assert len(section["charts"]) == 2
    for each in section["charts"]:
        assert {(bar["mean"], bar["n"]) for bar in each["bars"]} == {(40.0, 2)}
    words = " ".join(made["problems"])
    for what in ("attacks", "corruptions"):
        assert f"{what} of unfinished runs are not shown: run2" in words
        assert f"{what} at checkpoints before the end of a run are not shown: run0" in words


def test_flatness_of_unfinished_runs_is_not_averaged(tmp_path: Path) -> None:
    for seed, value in enumerate((1.0, 3.0, 100.0)):
        run = finished(replace(smoke("digits", method="sam"), seed=seed), tmp_path / f"run{seed}", [0.5, 0.6])
        (run.path / "flatness").mkdir()
        for epoch in (1, 2):
            result = LowPass(
                estimate=value * epoch, stderr=0.1, loss=0.1, losses=torch.ones(2), settings={"key.samples": 50}
            )
            result.save(run.path / "flatness" / f"epoch-{epoch:04d}-lpf-0123456789.json")
    (tmp_path / "run2" / "summary.json").unlink()
    made = of(tmp_path)
    (line,) = rows(made, "summary")
    found = [cell for cell in line.values() if cell.get("value") == 4.0]
    assert [cell["n"] for cell in found] == [2]
    first, second = rows(made, "flatness")
    assert 2.0 in [cell.get("value") for cell in first.values()]
    assert 4.0 in [cell.get("value") for cell in second.values()]
    ended, apart = chart(made, "lpf-checkpoints")["lines"]
    assert (ended["mean"], ended["n"], ended["note"]) == ([2.0, 4.0], [2, 2], "")
    assert (apart["mean"], apart["n"], apart["note"]) == ([100.0, 200.0], [1, 1], "unfinished")
    assert "flatness of unfinished runs is not counted: run2" in " ".join(made["problems"])


def test_the_table_of_runs_has_percent_behind_its_text(tmp_path: Path) -> None:
    finished(smoke("digits", method="sam"), tmp_path / "run", [0.625])
    (line,) = rows(of(tmp_path), "runs")
    assert line["test accuracy (%)"] == {"text": "62.50", "value": 62.5}


def test_curves_run_over_epochs_passes_and_seconds(runs: Path) -> None:
    line = next(each for each in chart(of(runs), "test_accuracy")["lines"] if each["group"] == "SAM")
    metrics = [RunFolder(path).metrics() for path in runs.glob("*-sam-*")]
    assert line["x"]["epoch"] == [1, 2]
    assert line["x"]["passes"] == [2 * row["step"] for row in metrics[0]]
    seconds = [statistics.mean(sum(row["seconds"] for row in each[: n + 1]) for each in metrics) for n in range(2)]
    assert line["x"]["seconds"] == pytest.approx(seconds, rel=1e-5)
    heights = [100 * statistics.mean(each[n]["test_accuracy"] for each in metrics) for n in range(2)]
    assert line["mean"] == pytest.approx(heights, rel=1e-6)
    spreads = [100 * statistics.stdev(each[n]["test_accuracy"] for each in metrics) for n in range(2)]
    assert line["sd"] == pytest.approx(spreads, rel=1e-5)


def test_only_settings_that_differ_are_listed(tmp_path: Path) -> None:
    config = smoke("digits", method="sam")
    finished(config, tmp_path / "a", [0.5])
    finished(override(config, ["optimizer.rho=0.9"]), tmp_path / "b", [0.6])
    (first, second), columns = rows(of(tmp_path), "configuration"), table(of(tmp_path), "configuration")["columns"]
    assert [column["title"] for column in columns] == ["method", "optimizer.rho"]
    assert {first["optimizer.rho"]["value"], second["optimizer.rho"]["value"]} == {0.6, 0.9}
    shutil.rmtree(tmp_path / "b")
    assert not any(section["id"] == "configuration" for section in of(tmp_path)["sections"])


def test_the_front_holds_whom_nobody_beats_for_the_cost(tmp_path: Path) -> None:
    for method, accuracy, passes in (("sgd", 0.7, 1.0), ("sam", 0.8, 2.0), ("lesam", 0.75, 2.0), ("msam", 0.6, 1.0)):
        finished(smoke("digits", method=method), tmp_path / method, [accuracy], passes=passes)
    points = {point["group"]: point for point in chart(of(tmp_path), "front")["points"]}
    assert {name for name, point in points.items() if point["front"]["passes"]} == {"SGD", "SAM"}
    assert points["SAM"]["x"] == {"passes": 20.0, "seconds": 3.0}


def test_what_is_not_measured_is_named_with_the_command_that_measures_it(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (run,) = runs.glob("*-lesam-seed0-*")
    mine = Path(shutil.copytree(run, tmp_path / "runs" / run.name))
    before = {each["command"]: each for each in of(tmp_path / "runs")["missing"]}
    commands = {name: f"lesam {name} {tmp_path / 'runs'}" for name in ("flatness", "landscape", "attack")}
    assert set(commands.values()) <= before.keys()
    cheap = [
        "--samples",
        "50",
        "--eigenvalues",
        "2",
        "--trace-samples",
        "2",
        "--lpf-samples",
        "2",
        "--density",
        "--by-layer",
    ]
    assert main(["flatness", str(mine), *cheap, "--density-steps", "5"]) == 0
    assert main(["landscape", str(mine), "--points", "3", "--samples", "50"]) == 0
    assert main(["attack", str(mine), "--samples", "50", "--steps", "1"]) == 0
    made = of(tmp_path / "runs")
    assert not set(commands.values()) & {each["command"] for each in made["missing"]}
    kept = json.loads(next((mine / "flatness").glob("*-eigenvalues-*")).read_text())
    (line,) = rows(made, "summary")
    assert line["largest Hessian eigenvalue"]["value"] == pytest.approx(kept["values"][0], rel=1e-6)
    assert chart(made, "eigenvalues")["lines"][0]["mean"] == pytest.approx(kept["values"], rel=1e-6)
    assert len(chart(made, "landscape")["planes"][0]["loss"]) == 3
    assert {bar["category"] for bar in chart(made, "attack-.*")["bars"]} == {"clean", "attacked"}
    assert chart(made, "density")["lines"]
    layers = json.loads(next((mine / "flatness").glob("*-layers-*")).read_text())
    tops = {bar["category"]: bar["mean"] for bar in chart(made, "layer-eigenvalues")["bars"]}
    expected = [values[0] for values in layers["eigenvalues"]]
    assert tops == pytest.approx(dict(zip(layers["names"], expected, strict=True)), rel=1e-6)


def test_damaged_folders_and_answers_are_named_and_the_rest_is_shown(runs: Path, tmp_path: Path) -> None:
    copies = Path(shutil.copytree(runs, tmp_path / "runs"))
    bad, torn, odd, *_ = sorted(copies.glob("*-sam-*"))
    (bad / "config.json").write_text("{")
    (torn / "metrics.jsonl").write_text((torn / "metrics.jsonl").read_text() + '{"epoch": 2, "test_acc')
    (odd / "metrics.jsonl").write_text('{"epoch": "first"}\n')
    (torn / "flatness").mkdir()
    (torn / "flatness" / "epoch-0002-trace-0123456789.json").write_text("[]")
    made = of(copies)
    assert next(row for row in rows(made, "summary") if row["method"]["text"] == "SAM")["n"]["value"] == 2
    words = " ".join(made["problems"])
    for path in (bad / "config.json", odd / "metrics.jsonl", torn / "flatness"):
        assert str(path) in words


def test_a_long_sweep_has_a_bounded_number_of_lines_and_points(tmp_path: Path) -> None:
    for number in range(MOST_LINES + 10):
        config = override(smoke("digits", method="sam"), [f"optimizer.rho={number + 1}"])
        finished(config, tmp_path / str(number), [number / 100] * (MOST_POINTS + 50 if number == 39 else 1))
    made = of(tmp_path)
    lines = chart(made, "test_accuracy")["lines"]
    assert len(lines) == MOST_LINES
    assert max(len(line["mean"]) for line in lines) == MOST_POINTS
    assert len(rows(made, "summary")) == MOST_LINES + 10  # the table has all of them
    assert made["left_out"] == 10
    assert min(line["mean"][0] for line in lines) == 10  # the best ones are drawn


def test_the_entries_are_those_of_lesam_table(runs: Path) -> None:
    entries, _ = read(find_runs([runs]))
    sam, lesam = (next(entry for entry in entries if entry.name == name) for name in ("SAM", "LE-SAM"))
    assert {seed: value for (seed, _), value in sam.accuracy_by_seed.items()} == summaries(runs, "sam")
    assert paired(sam.accuracy_by_seed, lesam.accuracy_by_seed) is not None


class Cursed(Snapshot):
    """A run that fails in a way that no file is known to."""

    def metrics(self) -> list[Row]:
        raise ArithmeticError("cursed")


def test_a_run_that_fails_in_an_unknown_way_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    good = finished(smoke("digits", method="sam"), tmp_path / "good", [0.5])
    bad = finished(smoke("digits", method="sgd"), tmp_path / "bad", [0.5])
    made = content([good, Cursed(bad)], sources=[tmp_path])
    assert [each["name"] for each in made["groups"]] == ["SAM"]
    assert made["problems"] == [f"{bad.path} cannot be shown (ArithmeticError: cursed)"]

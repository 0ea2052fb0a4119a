"""ERM++'s two passes: the first one chooses how long the second one trains."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.data import augmentation
from lesam.lab.data.synthetic_domains import STYLES
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.runs.repetitions import group
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.interrupt import RunInterruptedError
from lesam.lab.training.length import first_pass
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent
from lesam.lab.training.session import Session
from tests.lab.running import BreakOff, assert_equal, assert_same_run, last_checkpoint


def smoke(method: str, *changes: str) -> RunConfig:
    return override(recipes.build("pacs-photo", method=method, scale="smoke"), ["system.accelerator=cpu", *changes])


def session_of(config: RunConfig) -> Session:
    session = Session(config, make_fabric(config.system))
    session.model.train()
    return session


# Two passes

# Held-out images are all right in the middle of the first pass already, so it is not the last check that is chosen.
TWO = ("schedule.steps=40", "task.check_every=8", "task.average_from=16")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path, dict[str, Any]]:
    runs = tmp_path_factory.mktemp("pair")
    config = smoke("adam", *TWO)
    return config, runs, train(config, runs=runs, progress=Silent())


def test_the_first_pass_chooses_the_best_check(pair: Any) -> None:
    config, runs, summary = pair
    folder = RunFolder.of(config, runs)
    first = RunFolder(folder.path / summary["first_pass"]["run"])
    rows = first.metrics()
    assert [row["step"] for row in rows] == [8, 16, 24, 32, 40]
    accuracies = [row["validation_accuracy"] for row in rows]
    steps = summary["first_pass"]["steps"]
    assert steps == rows[accuracies.index(max(accuracies))]["step"]
    assert 8 < steps < 40, "the case must tell a choice from the first and the last check"
    assert summary["first_pass"]["validation_accuracy"] == max(accuracies)
    assert first.config().data.options["validation"] == 0.2
    assert summary["last"]["step"] == steps


def test_the_second_pass_is_a_fresh_run_on_all_images_for_so_many_steps(pair: Any, tmp_path: Path) -> None:
    config, runs, summary = pair
    steps = summary["first_pass"]["steps"]
    alone = override(config, ["task.two_passes=false", f"schedule.steps={steps}"])
    assert len(session_of(alone).data.train.weights) == 60  # all of them: a first pass has 48
    train(alone, runs=tmp_path, progress=Silent())
    ours, theirs = (last_checkpoint(RunFolder.of(one, where)) for one, where in ((config, runs), (alone, tmp_path)))
    assert_equal(ours.weights(), theirs.weights())
    assert_equal(ours.state()["task"]["average"], theirs.state()["task"]["average"])


def test_a_finished_pair_is_left_alone_and_counts_as_one_run(pair: Any) -> None:
    config, runs, summary = pair
    assert train(config, runs=runs, progress=Silent()) == summary
    folder = RunFolder.of(config, runs)
    first = RunFolder(folder.path / summary["first_pass"]["run"])
    assert len(folder.environments()) == len(first.environments()) == 1
    assert [run.path for run in find_runs([runs])] == [folder.path]
    assert [run.path for run in find_runs([first.path])] == [first.path]
    (only,) = group(find_runs([runs]))
    assert only.label == "Adam"
    assert group([first])[0].finished == ()  # nothing was tested in it


def test_targets_are_scored_once_with_the_averaged_network(pair: Any) -> None:
    config, runs, summary = pair
    session = session_of(config)
    session.restore(last_checkpoint(RunFolder.of(config, runs)))
    accuracies = []
    for name, split in session.task.parts.splits.targets.items():
        images = augmentation("none", normalisation="half")(split.images, torch.Generator())
        network = copy.deepcopy(session.module).eval()
        raw = functional.cross_entropy(network(images), split.labels).item()
        network.load_state_dict(session.task.average.network.state_dict())
        logits = network(images)
        loss = functional.cross_entropy(logits, split.labels).item()
        assert summary["last"][f"test_{name}_loss"] == pytest.approx(loss, rel=1e-5)
        assert abs(loss - raw) > 1e-3 * loss
        accuracies.append(float((logits.argmax(1) == split.labels).double().mean()))
        assert summary["last"][f"test_{name}_accuracy"] == pytest.approx(accuracies[-1])
    assert len(accuracies) == 3
    assert summary["last"]["test_accuracy"] == pytest.approx(sum(accuracies) / 3)


def test_targets_have_no_part_in_the_choice(pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, runs, summary = pair
    first = RunFolder(RunFolder.of(config, runs).path / summary["first_pass"]["run"])
    assert not any(name.startswith("test_") for row in first.metrics() for name in row)
    for name in list(STYLES)[1:]:
        monkeypatch.setitem(STYLES, name, lambda image: -3 * image)
    other = train(config, runs=tmp_path, progress=Silent())
    assert other["first_pass"] == summary["first_pass"]
    assert other["last"]["test_loss"] != summary["last"]["test_loss"]
    ours, theirs = (last_checkpoint(RunFolder.of(config, where)).weights() for where in (runs, tmp_path))
    assert_equal(ours, theirs)


def test_held_out_images_of_the_users_own_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.options\.validation would keep images from the second pass"):
        train(smoke("adam", "data.options.validation=0.1"), runs=tmp_path, progress=Silent())
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="length of a classification run"):
        first_pass(recipes.build("digits", scale="smoke"))


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_missing_images_or_weights_leave_no_folder_behind(root: Path, tmp_path: Path) -> None:
    config = recipes.build("pacs-photo", method="lesam", scale="paper")
    with pytest.raises(FileNotFoundError, match=r"expected .*PACS"):
        train(override(config, [f"data.root={tmp_path}"]), runs=tmp_path / "runs", progress=Silent())
    changes = [f"data.root={root}", "model.options.weights=nowhere.pth"]
    with pytest.raises(ValueError, match="neither a file nor one of torchvision's"):
        train(override(config, changes), runs=tmp_path / "runs", progress=Silent())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("method", "leak"), [("lesam", False), ("sam", True)])
def test_stopped_anywhere_both_passes_end_in_the_same_bits(method: str, leak: bool, tmp_path: Path) -> None:
    config = smoke(method, *TWO, f"task.leak_gradients={leak}", "record.steps_every=1")
    whole = train(config, runs=tmp_path / "whole", progress=Silent())
    # The first pass stops after 1 step (in the warm start), 4 (at its end), 5 (after the first full one) and 17 (in the
    # average), the second pass after 4 and 17.
    for steps in (1, 3, 1, 12, (40 - 17) + 4, 13):
        with pytest.raises(RunInterruptedError):
            train(config, runs=tmp_path / "broken", progress=BreakOff(steps=steps, by_signal=True))
    folder = RunFolder.of(config, tmp_path / "broken")
    stops = [len(RunFolder(path).environments()) for path in (folder.path, folder.path / whole["first_pass"]["run"])]
    assert stops == [6, 5], "not stopped where it was meant to be"
    broken = train(config, runs=tmp_path / "broken", progress=Silent())
    assert broken["first_pass"] == whole["first_pass"]
    folders = [RunFolder.of(config, tmp_path / where) for where in ("whole", "broken")]
    for name in ("", whole["first_pass"]["run"]):
        one, other = (RunFolder(folder.path / name) for folder in folders)
        assert_same_run(one, other)
        averages = [last_checkpoint(folder).state()["task"]["average"] for folder in (one, other)]
        assert_equal(*averages)

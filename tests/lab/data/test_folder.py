"""The paper's ImageNet recipe on a folder tree of real image files, through the whole loop."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from PIL import Image

from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.config.text import override
from lesam.lab.data import Batches, augmentation, load
from lesam.lab.data.seeds import generator
from lesam.lab.runs.folder import find_runs

SMALL = {
    "model.name": "imagenet_resnet18",
    "data.batch_size": "4",
    "data.augment_options.size": "32",
    "data.augment_options.evaluation_resize": "40",
    "schedule.epochs": "2",
    "schedule.budget_anneal_start": "1",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two classes of JPEG files of different sizes, one of them grey."""
    for split, count in (("train", 5), ("val", 3)):
        for label in ("cat", "dog"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                shape = (48 + number, 64, 3)
                pixels = torch.randint(0, 256, shape, generator=generator(split, label, number), dtype=torch.uint8)
                image = Image.fromarray(pixels.numpy())
                (image.convert("L") if number == 0 else image).save(folder / f"{number}.jpg")
    return tmp_path / "images"


def command(tree: Path, runs: Path, *more: str) -> list[str]:
    changes = [argument for path, value in SMALL.items() for argument in ("--set", f"{path}={value}")]
    return [
        *("train", "imagenet-resnet50", "--scale", "paper", "--method", "lesam", "--runs", str(runs)),
        *("--set", f"data.root={tree}", *changes, *more),
    ]


def test_the_recipe_trains_on_a_folder_tree(tree: Path, tmp_path: Path) -> None:
    assert main(command(tree, tmp_path / "runs")) == 0
    (run,) = find_runs([tmp_path / "runs"])
    rows = run.metrics()
    assert [row["step"] for row in rows] == [3, 6]  # ten images, batches of four, the last one kept
    assert all(row["passes"] == 2 and row["rho"] is not None for row in rows)
    assert rows[-1]["sigma"] == 0.0
    assert 0.0 <= rows[-1]["test_accuracy"] <= 1.0


def test_a_file_that_cannot_be_read_is_named(tree: Path, tmp_path: Path) -> None:
    broken = tree / "train" / "dog" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(RuntimeError, match=str(broken)):
        main(command(tree, tmp_path / "runs"))


def test_where_the_images_lie_is_not_part_of_the_runs_identity(tree: Path) -> None:
    config = recipes.build("imagenet-resnet50", method="lesam", scale="paper")
    assert override(config, [f"data.root={tree}"]).fingerprint == config.fingerprint


def test_a_missing_folder_is_named_and_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path / "nowhere", tmp_path / "runs")) == 2
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def folder_batches(tree: Path, workers: int) -> Batches:
    augment = augmentation("imagenet", size=32, evaluation_resize=40)
    return Batches(load("imagefolder", tree).train, 4, augment, device="cpu", seed=0, workers=workers)


def test_reading_processes_live_through_epochs_and_change_nothing(tree: Path) -> None:
    kept, plain = folder_batches(tree, 2), folder_batches(tree, 0)
    before = {child.pid for child in multiprocessing.active_children()}
    seen = []
    for epoch in range(2):
        for ours, theirs in zip(kept.epoch(epoch), plain.epoch(epoch), strict=True):
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])
        seen.append({child.pid for child in multiprocessing.active_children()} - before)
    assert len(seen[0]) == 2
    assert seen[0] == seen[1]
    next(given_up := kept.epoch(2))  # an epoch that is given up, and one read beside another
    beside = kept.epoch(3)
    assert torch.equal(next(beside)[0], next(plain.epoch(3))[0])
    del given_up, beside
    for ours, theirs in zip(kept.epoch(4, start=1), plain.epoch(4, start=1), strict=True):
        assert torch.equal(ours[0], theirs[0])


def test_the_number_of_reading_processes_is_a_setting_and_no_identity(tree: Path) -> None:
    config = recipes.build("imagenet-resnet50", scale="paper")
    assert override(config, ["data.workers=3"]).fingerprint == config.fingerprint
    with pytest.raises(ValueError, match=r"data\.workers must be at least 0"):
        override(config, ["data.workers=-1"])


def test_imagenet_lies_beside_the_other_data_sets(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.rename(tree.parent / "imagenet")
    monkeypatch.setenv("LESAM_DATA", str(tree.parent))
    assert len(load("imagefolder").train) == 10

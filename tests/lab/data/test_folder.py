"""The paper's ImageNet recipe on a folder tree of real image files, through the whole loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.config.text import override
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

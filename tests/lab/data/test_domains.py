"""The folders of PACS and VLCS, and the made-up domains."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.data import Batches, augmentation, load
from lesam.lab.data.domains import PACS, VLCS, Collection
from lesam.lab.execution.local import Pool
from lesam.lab.recipes.domains import SOURCES
from lesam.lab.sweeps import grid
from tests.lab.data.images import write_images

COLLECTIONS = {"pacs": PACS, "vlcs": VLCS}


def smoke(method: str, *changes: str) -> RunConfig:
    return override(recipes.build("pacs-photo", method=method, scale="smoke"), ["system.accelerator=cpu", *changes])


# Folders


@pytest.mark.parametrize("name", COLLECTIONS)
def test_one_domain_is_the_source_and_the_others_are_targets(name: str, root: Path) -> None:
    collection = COLLECTIONS[name]
    images = 5 * len(collection.classes)
    for source in SOURCES[name]:
        with pytest.warns(UserWarning, match=f"{source} {images} \\(published: {collection.domains[source][1]}\\)"):
            splits = load(name, root, source=source, validation=0.2)
        others = [domain for domain in SOURCES[name] if domain != source]
        assert list(splits.targets) == others
        assert [len(split) for split in splits.targets.values()] == [images] * 3
        assert splits.test.paths == tuple(path for split in splits.targets.values() for path in split.paths)
        assert splits.classes == len(collection.classes)
        assert {Path(path).parts[-3] for path in splits.train.paths} == {collection.domains[source][0]}
        for path, label in zip(splits.test.paths, splits.test.labels.tolist(), strict=True):
            assert Path(path).parts[-2] == collection.classes[label]


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_the_held_out_part_is_domainbeds_for_every_run_seed(root: Path) -> None:
    everything = load("pacs", root, source="cartoon").train
    splits = load("pacs", root, source="cartoon", validation=0.2)
    keys = list(range(len(everything)))
    np.random.RandomState(42).shuffle(keys)
    held_out = {everything.paths[key] for key in keys[: int(0.2 * len(keys))]}
    assert splits.validation is not None
    assert set(splits.validation.paths) == held_out
    assert set(splits.train.paths) == set(everything.paths) - held_out
    assert load("pacs", root, source="cartoon").validation is None


def test_the_published_numbers_of_images_are_no_warning(tmp_path: Path) -> None:
    tiny = Collection(folder="T", domains={"a": ("A", 6), "b": ("B", 6)}, classes=("x", "y"))
    write_images(tmp_path, tiny, count=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {name: len(images) for name, images in tiny.scan(tmp_path).items()} == {"a": 6, "b": 6}


def test_what_is_missing_is_named_with_the_layout(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing in .*: PACS/photo, .*expected .*PACS/\{photo,art_painting"):
        load("pacs", tmp_path)
    write_images(tmp_path, PACS, count=1)
    (tmp_path / "PACS" / "sketch" / "dog").rename(tmp_path / "PACS" / "sketch" / "hound")
    with pytest.raises(FileNotFoundError, match=r"missing in .*: PACS/sketch/dog; expected .*\{dog,elephant,"):
        load("pacs", tmp_path)
    (tmp_path / "PACS" / "sketch" / "dog").mkdir()
    with pytest.raises(ValueError, match=r"not classes of PACS: PACS/sketch/hound"):
        load("pacs", tmp_path)


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_unknown_domains_and_options_suggest_the_nearest(root: Path) -> None:
    with pytest.raises(ValueError, match="unknown domain of vlcs 'VOC2007'; did you mean 'voc2007'"):
        load("vlcs", root, source="VOC2007")
    with pytest.raises(ValueError, match="unknown option of pacs 'sources'; did you mean 'source'"):
        load("pacs", root, sources="photo")
    with pytest.raises(ValueError, match="validation must lie in"):
        load("pacs", root, validation=1.0)


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_truncated_files_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    write_images(tmp_path, PACS, count=1)
    path = tmp_path / "PACS" / "photo" / "dog" / "0.png"
    noise = np.random.RandomState(0).randint(0, 255, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    splits = load("pacs", tmp_path)
    assert splits.train.decode(splits.train.paths.index(str(path))).size == (64, 64)


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_an_image_drawn_twice_is_augmented_anew_and_exactly_so_after_a_stop(root: Path) -> None:
    split = load("pacs", root).train.subset(torch.tensor([3]))
    augment = augmentation("domains", size=16)
    made = Batches(split, 2, augment, device="cpu", seed=0, workers=0, weights=torch.ones(1), draws=6)
    images = torch.cat([batch for batch, _ in made.epoch(0)])
    for one, other in itertools.combinations(images, 2):
        assert not torch.equal(one, other)
    assert torch.equal(torch.cat([batch for batch, _ in made.epoch(0, start=1)]), images[2:])


@pytest.mark.filterwarnings("ignore:.*published number of images")
def test_folders_can_be_trained_on_in_the_processes_of_a_sweep(root: Path, tmp_path: Path) -> None:
    changes = ["schedule.steps=2", "task.check_every=1", "task.average_from=2", "task.warm_start=1"]
    changes += [f"data.root={root}", "data.augment_options.size=8", "model.options.width=8", "data.batch_size=8"]

    def build(setting: Any, seed: int) -> RunConfig:
        config = recipes.build("vlcs-sun09", method="sam", scale="small", seed=seed)
        return override(config, [*changes, "system.accelerator=cpu", *setting])

    (outcome,) = grid.grid(Pool(runs=tmp_path, jobs=1), build, [("optimizer.rho=0.1",)], [0])
    assert outcome.summary is not None, outcome.error
    row = outcome.summary["last"]
    targets = [row[f"test_{name}_accuracy"] for name in ("voc2007", "labelme", "caltech101")]
    assert row["test_accuracy"] == pytest.approx(sum(targets) / 3)

"""Recipes for single-domain generalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lesam.lab import recipes
from lesam.lab.config.optimizer import methods
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.data.domains import PACS, VLCS
from lesam.lab.data.synthetic_domains import STYLES
from lesam.lab.recipes.domains import DOMAIN_AVERAGES, FIGURES, MADE_UP, SOURCES
from lesam.lab.recipes.published import published
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent
from tests.lab.running import last_checkpoint

COLLECTIONS = {"pacs": PACS, "vlcs": VLCS}


def smoke(method: str, *changes: str) -> RunConfig:
    return override(recipes.build("pacs-photo", method=method, scale="smoke"), ["system.accelerator=cpu", *changes])


# Recipes


@pytest.mark.parametrize(
    ("recipe", "method"),
    [
        ("pacs-photo", "sam"),
        ("pacs-sketch", "lesam"),
        ("vlcs-caltech101", "adam"),
        ("vlcs-sun09", "esam"),
        ("pacs-cartoon", "sgd"),
    ],
)
def test_smoke(recipe: str, method: str, tmp_path: Path) -> None:
    config = recipes.build(recipe, method=method, scale="smoke")
    summary = train(config, runs=tmp_path, progress=Silent())
    assert summary["last"]["step"] == summary["first_pass"]["steps"] <= 24
    assert 0.0 <= summary["last"]["test_accuracy"] <= 1.0
    assert all(tensor.isfinite().all() for tensor in last_checkpoint(RunFolder.of(config, tmp_path)).weights().values())


def test_recipes_name_the_domains_that_exist() -> None:
    assert {name: tuple(collection.domains) for name, collection in COLLECTIONS.items()} == SOURCES
    assert tuple(STYLES) == MADE_UP
    assert {f"{name}-{source}" for name, sources in SOURCES.items() for source in sources} <= set(recipes.names())
    published_sizes = {name: sum(n for _, n in one.domains.values()) for name, one in COLLECTIONS.items()}
    assert published_sizes == {"pacs": 9991, "vlcs": 10_729}


@pytest.mark.parametrize("method", methods())
def test_the_paper_scale_is_erm_plus_plus(method: str) -> None:
    for recipe, weights in (("pacs-sketch", "IMAGENET1K_V1"), ("vlcs-labelme", None)):
        config: Any = recipes.build(recipe, method=method, scale="paper")
        assert config.model.name == "imagenet_resnet18"
        assert config.model.options.get("weights") == weights
        assert config.optimizer.base == ("adam" if method not in ("sgd", "adamw") else method)
        assert (config.optimizer.lr == 5e-5) == (method != "sgd")
        assert config.optimizer.weight_decay == 0.0
        assert (config.data.batch_size, config.data.augment, config.schedule.lr) == (32, "domains", "constant")
        assert config.schedule.steps == 5000
        assert config.schedule.epochs * config.task.check_every >= 20_000  # room for the longer training
        # Steps 0 to 500 warm up; the average begins with the weights after 599 steps.
        task = config.task
        assert (task.warm_start, task.average_from, task.check_every, task.validation) == (501, 600, 300, 0.2)
        assert (task.two_passes, task.leak_gradients) == (True, False)


def test_the_papers_columns_average_to_its_last_one() -> None:
    for name, averages in DOMAIN_AVERAGES.items():
        for method, average in averages.items():
            columns = [FIGURES[f"{name}-{source}"][method][0] for source in SOURCES[name]]
            assert sum(columns) / 4 == pytest.approx(average, abs=0.0051)
    assert published(recipes.build("pacs-sketch", method="lesam", scale="paper")) == (41.71, None)


@pytest.mark.parametrize(
    "change", ["task.validation=1", "task.check_every=0", "task.average_from=0", "task.warm_start=-1"]
)
def test_settings_without_a_meaning_are_errors(change: str) -> None:
    with pytest.raises(ValueError, match=change.partition("=")[0].replace(".", r"\.")):
        smoke("adam", change)

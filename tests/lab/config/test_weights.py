"""Pretrained weights by name or content: where the file lies is no part of a run's identity."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision.models as tv

from lesam.lab import models, recipes
from lesam.lab.config.text import from_json, override, to_json
from lesam.lab.config.weights import TORCHVISION
from lesam.lab.files import sha256
from lesam.lab.recipes.published import published
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.session import Session
from tests.lab.running import assert_equal, smoke

TINY = {"image_size": 16, "patch": 4, "layers": 1, "heads": 2, "width": 16}


def weights(path: Path, seed: int) -> Path:
    """A state dict that fits the transformer of the smoke scale."""
    torch.manual_seed(seed)
    path.parent.mkdir(exist_ok=True)
    torch.save(models.build("vit_b_16", 10, **TINY).state_dict(), path)
    return path


def test_the_table_is_torchvisions() -> None:
    kinds = {
        "imagenet_resnet18": tv.ResNet18_Weights,
        "imagenet_resnet50": tv.ResNet50_Weights,
        "imagenet_resnet101": tv.ResNet101_Weights,
        "vit_b_16": tv.ViT_B_16_Weights,
    }
    assert TORCHVISION.keys() == kinds.keys()
    for model, known in TORCHVISION.items():
        for digits, name in known.items():
            assert kinds[model][name].url.endswith(f"-{digits}.pth")


def test_the_content_of_a_file_decides_not_its_place(tmp_path: Path) -> None:
    here, other = weights(tmp_path / "here" / "w.pth", 0), weights(tmp_path / "here" / "other.pth", 1)
    there = tmp_path / "there" / "renamed.pth"
    there.parent.mkdir()
    there.write_bytes(here.read_bytes())
    runs = [smoke("vit-cifar10", f"model.options.weights={path}") for path in (here, there, other)]
    assert runs[0].fingerprint == runs[1].fingerprint != runs[2].fingerprint
    assert runs[0].fingerprint != smoke("vit-cifar10").fingerprint
    there.unlink()
    assert from_json(to_json(runs[1])).fingerprint == runs[0].fingerprint  # as on a machine without the file
    session = Session(runs[0], make_fabric(runs[0].system))
    body = {name: value for name, value in session.module.state_dict().items() if not name.startswith("heads.")}
    assert_equal(body, {name: torch.load(here)[name] for name in body})


def test_a_file_of_torchvisions_is_the_papers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = weights(tmp_path / "vit.pth", 0)
    paper = recipes.build("vit-cifar100", method="lesam", scale="paper")
    assert published(override(paper, [f"model.options.weights={file}"])) is None  # some other weights
    declared = override(paper, [f"model.weights_file={file}"])
    assert declared.model.arguments["weights"] == str(file)
    monkeypatch.setitem(TORCHVISION, "vit_b_16", {sha256(file)[:8]: "IMAGENET1K_V1"})
    known = override(paper, [f"model.options.weights={file}"])
    for config in (declared, known):
        assert config.fingerprint == paper.fingerprint
        assert published(config) == published(paper) == (89.65, 0.11)


def test_a_file_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.options\.weights=FILE"):
        smoke("digits", "model.weights_file=w.pth")

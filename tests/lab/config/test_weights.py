"""Pretrained weights by name or content: where the file lies is no part of a run's identity."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision.models as tv
from safetensors.torch import load_file

from lesam.lab import models, recipes
from lesam.lab.cli import main
from lesam.lab.config.text import from_json, override, to_json
from lesam.lab.config.weights import TORCHVISION
from lesam.lab.files import sha256
from lesam.lab.recipes.published import published
from lesam.lab.runs.repetitions import group, repetition
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.loop import train
from lesam.lab.training.session import Session
from tests.lab.running import Listener, assert_equal, last_checkpoint, smoke, trained

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


def test_the_folder_of_a_run_stands_for_its_last_weights(tmp_path: Path) -> None:
    """Its head is left out, and the run says so; the transformer of the recipe as every other network."""
    runs = tmp_path / "runs"
    for recipe in ("vit-cifar100", "cifar100-finetuning"):
        origin = trained(smoke(recipe), runs)
        file = last_checkpoint(origin).path / "weights.safetensors"
        by_run, by_checkpoint, by_file = (
            smoke(recipe, f"model.options.weights={path}", "data.options.only_classes=0,2-3", "data.options.classes=4")
            for path in (origin.path, file.parent, file)
        )
        assert by_run == by_checkpoint == by_file
        told = Listener()
        train(by_run, runs=runs, progress=told)
        (said,) = (text for text in told.messages if "starts from" in text)
        head = "heads" if recipe.startswith("vit") else "fc"
        assert said == f"starts from the weights {file}, all but the head {head}, which is new: 3 classes"
        module = Session(by_run, make_fabric(by_run.system)).module
        body = {name: value for name, value in module.state_dict().items() if not name.startswith(f"{head}.")}
        assert_equal(body, {name: value for name, value in load_file(file).items() if name in body})


def test_a_run_that_is_not_finished_or_damaged_is_refused(tmp_path: Path) -> None:
    origin = trained(smoke("cifar100-pretraining"), tmp_path)
    last = last_checkpoint(origin).path
    (origin.path / "summary.json").rename(tmp_path / "summary.json")
    with pytest.raises(ValueError, match=rf"not finished.*{last.name}"):
        smoke("cifar100-finetuning", f"model.options.weights={origin.path}")
    smoke("cifar100-finetuning", f"model.options.weights={last}")
    (last / "weights.safetensors").write_bytes((last / "weights.safetensors").read_bytes() + b" ")
    with pytest.raises(ValueError, match="is damaged"):
        smoke("cifar100-finetuning", f"model.options.weights={last}")
    with pytest.raises(ValueError, match="folder without weights"):
        smoke("cifar100-finetuning", f"model.options.weights={tmp_path}")


def test_seeds_that_start_from_their_own_weights_are_repetitions(tmp_path: Path) -> None:
    """As those that start from the weights of one seed; weights of another setting are another group."""
    pretrained, runs = [], []
    for seed in (0, 1):
        pretrained.append(
            trained(recipes.build("cifar100-pretraining", method="sgd", scale="smoke", seed=seed), tmp_path)
        )
    for seed, origin in ((0, 0), (1, 1), (1, 0)):
        config = recipes.build("cifar100-finetuning", method="sgd", scale="smoke", seed=seed)
        runs.append(override(config, [f"model.options.weights={pretrained[origin].path}"]))
    other = trained(smoke("cifar100-pretraining", "schedule.epochs=2"), tmp_path)
    runs.append(override(runs[0], [f"model.options.weights={other.path}"]))
    assert runs[0].cell == runs[1].cell == runs[2].cell != runs[3].cell
    assert len({run.fingerprint for run in runs}) == len({repetition(run) for run in runs}) == 4
    grouped = group(trained(config, tmp_path) for config in runs)
    assert [len(each.runs) for each in grouped] in ([3, 1], [1, 3])
    with pytest.raises(ValueError, match="cannot be set"):
        override(runs[0], ["model.weights_cell=x"])


@pytest.mark.parametrize("named", ["", "checkpoints/step-00000003"])
def test_weights_that_lie_in_shards_are_refused_by_a_sentence_that_says_so(named: str, tmp_path: Path) -> None:
    shards = tmp_path / "checkpoints" / "step-00000003" / "shards"
    shards.mkdir(parents=True)
    (shards / "shard-00001-model-00001-of-00001.safetensors").touch()
    run = recipes.build("digits", scale="smoke")
    with pytest.raises(ValueError, match="in the parts that --strategy fsdp writes before the end of training"):
        override(run, [f"model.options.weights={tmp_path / named}"])


def test_a_file_that_is_not_there_is_refused_before_any_data_are_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.pth"
    train = ["train", "vit-cifar100", "--scale", "paper", "--set", f"data.root={tmp_path / 'data'}"]
    assert main([*train, "--set", f"model.options.weights={missing}", "--runs", str(tmp_path / "runs")]) == 2
    assert f"model.options.weights='{missing}': there is no such file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

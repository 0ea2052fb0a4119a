"""Attacks on runs: the network and the pixels of the run, outcomes kept and found again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lesam.lab.attacks.pgd import PRESETS, Attack, robust_accuracy
from lesam.lab.attacks.run import attack_run, pixel_model
from lesam.lab.config.text import override
from lesam.lab.data.loading import choose_split, load_data, plain_batches
from lesam.lab.models import NormalisedInput
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.restore import load_model
from tests.lab.attacks.networks import binary, right
from tests.lab.running import smoke, trained

# Runs.


@pytest.mark.parametrize("preset", ["linf-1", "linf-2", "l2-16", "l2-32"])
def test_presets_are_the_protocol_s(preset: str) -> None:
    grey_levels = {"linf-1": (1, 0.25), "linf-2": (2, 0.5), "l2-16": (16, 2), "l2-32": (32, 4)}
    eps, step = grey_levels[preset]
    attack = PRESETS[preset]
    assert attack == Attack(preset.partition("-")[0], eps / 255, step / 255)  # type: ignore[arg-type]
    assert attack == Attack.usual(attack.norm, attack.eps)
    assert (attack.steps, attack.restarts, attack.random_start, attack.keep) == (10, 1, True, "last")


@pytest.mark.parametrize("preset", [("linf", 0.05), ("l2", 0.3)])
def test_an_attack_harms_a_trained_network_and_more_of_it_harms_more(
    preset: tuple[Any, float], digits: RunFolder
) -> None:
    norm, eps = preset
    results = [attack_run(digits, Attack.usual(norm, size)).robustness for size in (eps, 2 * eps)]
    summary = digits.summary()
    assert summary is not None
    for result in results:
        assert result.samples == 597
        assert result.clean == pytest.approx(summary["last"]["test_accuracy"], abs=1e-9)
    assert results[0].clean > results[0].attacked + 0.1 > results[1].attacked + 0.2


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks with and without normalisation inside, one of them on resized images."""
    folder = tmp_path_factory.mktemp("runs")
    more = ("schedule.epochs=6", "data.options.train_size=256", "data.options.test_size=600", "data.options.noise=4.0")
    for recipe, extra in (
        ("robust-cifar10", ()),
        ("robust-cifar100", ()),
        ("cifar100-resnet18", ("data.augment_options.resize=12",)),
    ):
        trained(smoke(recipe, *more, *extra), folder)
    return folder


def one(runs: Path, recipe: str) -> RunFolder:
    (path,) = runs.glob(f"{recipe}-*")
    return RunFolder(path)


@pytest.mark.parametrize("recipe", ["robust-cifar10", "cifar100-resnet18"])
def test_the_pixels_of_a_run_are_recovered(recipe: str, runs: Path) -> None:
    """The clean accuracy is the one that training saw; the perturbation is counted in pixels."""
    run = one(runs, recipe)
    summary = run.summary()
    assert summary is not None
    found = attack_run(run, PRESETS["l2-32"]).robustness
    assert found.clean == pytest.approx(summary["last"]["test_accuracy"], abs=1e-9)
    assert found.clean > 0.35
    assert found.attacked < found.clean


def test_the_network_that_is_attacked_is_the_one_that_was_scored(tmp_path: Path) -> None:
    """ERM++ scores an average of its weights."""
    run = trained(smoke("pacs-photo", method="lesam"), tmp_path)
    summary = run.summary()
    assert summary is not None
    trained_weights, scored_weights = (load_model(run, scored=scored)[0].state_dict() for scored in (False, True))
    assert any(not torch.equal(value, scored_weights[name]) for name, value in trained_weights.items())
    seen = attack_run(run, PRESETS["linf-1"]).robustness.clean
    assert seen == pytest.approx(summary["last"]["test_accuracy"], abs=1e-9)


def test_pixels_are_those_of_the_resized_image(runs: Path) -> None:
    config = one(runs, "cifar100-resnet18").config()
    split = choose_split(load_data(config), "test")
    pixels, _ = next(plain_batches(config, split, batch_size=8, pixels=True).epoch(0))
    seen, _ = next(plain_batches(config, split, batch_size=8).epoch(0))
    assert pixels.shape == (8, 3, 12, 12)
    assert 0 <= pixels.min() < 0.2
    assert 0.8 < pixels.max() <= 1
    torch.testing.assert_close((pixels - 0.5) / 0.5, seen)  # smoke runs normalise by "half"


@pytest.mark.parametrize("recipe", ["robust-cifar100", "cifar100-resnet18"])
def test_the_bug_answers_through_cifar_10_s_constants(recipe: str, runs: Path) -> None:
    run = one(runs, recipe)
    config = run.config()
    images, labels = next(
        plain_batches(config, choose_split(load_data(config), "test"), batch_size=1000, pixels=True).epoch(0)
    )
    model = pixel_model(load_model(run)[0], config)
    wrong = NormalisedInput(model.model, (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
    differences = []
    for attack in (PRESETS["linf-1"], PRESETS["linf-2"], PRESETS["l2-32"]):
        by_hand = robust_accuracy(model, [(images, labels)], attack, predictor=wrong)
        bugged = attack_run(run, attack, final_norm="sam_at_bug").robustness
        plain = attack_run(run, attack).robustness
        assert bugged.attacked == pytest.approx(by_hand.attacked, abs=1.5 / 600)
        assert bugged.clean == plain.clean
        differences.append(abs(bugged.attacked - plain.attacked))
    if recipe == "cifar100-resnet18":  # trained with constants far from CIFAR-10's
        assert max(differences) > 10 / 600


def test_the_bug_is_none_on_cifar_10(runs: Path) -> None:
    run, attack = one(runs, "robust-cifar10"), PRESETS["linf-2"]
    assert attack_run(run, attack, final_norm="sam_at_bug").robustness == attack_run(run, attack).robustness


def test_the_predictor_answers_for_attacked_images_only() -> None:
    model, images, labels, _ = binary(8)
    constant = nn.Linear(8, 2, dtype=torch.float64)
    with torch.no_grad():
        constant.weight.zero_()
        constant.bias.copy_(torch.tensor([1.0, 0.0]))
    found = robust_accuracy(model, [(images, labels)], PRESETS["linf-1"], predictor=constant)
    assert found.attacked == 0.5
    assert found.clean == right(model, images, labels).double().mean()


def test_outcomes_are_kept_and_found_again(digits: RunFolder) -> None:
    seen: list[Any] = []

    def watch(name: str) -> Any:
        seen.append(name)
        return lambda *done: seen.append(done)

    def ask(**changes: Any) -> Any:
        options: dict[str, Any] = {"samples": 90, "batch_size": 40, "progress": watch} | changes
        return attack_run(digits, options.pop("attack", Attack.usual("linf", 0.07)), **options)

    first = ask()
    assert seen == ["images attacked", (40, 90), (80, 90), (90, 90)]
    assert not first.reused
    record = json.loads(first.file.read_text())
    assert first.file.parent == digits.path / "attacks"
    assert record["result"] == {
        "clean": first.robustness.clean,
        "attacked": first.robustness.attacked,
        "samples": 90,
    }
    assert record["settings"]["attack"]["eps"] == 0.07
    assert record["settings"]["checkpoint"]["epoch"] == 6
    assert torch.__version__.startswith(record["environment"]["packages"]["torch"])
    seen.clear()
    again = ask()
    assert again.reused
    assert not seen
    assert again.robustness == first.robustness
    others = [
        ask(attack=Attack.usual("linf", 0.08)),
        ask(attack=replace(Attack.usual("linf", 0.07), keep="worst")),
        ask(seed=1),
        ask(samples=91),
        ask(batch_size=41),
        ask(split="train"),
        ask(split="validation", samples=20),
        ask(epoch=3),
    ]
    assert not any(other.reused for other in others)
    assert len({first.file, *(other.file for other in others)}) == 9
    assert others[-1].epoch == 3
    assert others[-1].robustness.clean != first.robustness.clean


def test_other_weights_are_another_question(digits: RunFolder, tmp_path: Path) -> None:
    other = trained(override(digits.config(), ["optimizer.lr=0.02"]), tmp_path)
    attack = Attack.usual("l2", 0.01)
    assert attack_run(other, attack, samples=9).file.name != attack_run(digits, attack, samples=9).file.name


def test_nothing_is_left_of_an_attack_that_was_stopped(digits: RunFolder) -> None:
    before = set((digits.path / "attacks").glob("**/*")) if (digits.path / "attacks").exists() else set()

    def stop(done: int, images: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack_run(digits, Attack.usual("linf", 0.0123), batch_size=100, progress=lambda name: stop)
    after = set((digits.path / "attacks").glob("**/*")) if (digits.path / "attacks").exists() else set()
    assert after == before


def test_loading_a_model_moves_no_random_state(digits: RunFolder) -> None:
    before = torch.get_rng_state()
    model, checkpoint = load_model(digits)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    assert checkpoint.epoch == 6
    assert load_model(digits, 3)[1].epoch == 3

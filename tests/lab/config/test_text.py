"""Configurations survive JSON, overrides have the field's type, and the fingerprint changes with what matters."""

from __future__ import annotations

import dataclasses

import pytest

from lesam.lab import recipes
from lesam.lab.config.optimizer import methods
from lesam.lab.config.text import from_json, override, paths, to_json

EVERY = [(name, scale) for name, recipe in recipes.known().items() for scale in recipe.scales]


@pytest.mark.parametrize(("recipe", "scale"), EVERY)
def test_json_gives_back_an_equal_configuration(recipe: str, scale: str) -> None:
    for method in methods():
        config = recipes.build(recipe, method=method, scale=scale, seed=3)
        again = from_json(to_json(config))
        assert again == config
        assert again.fingerprint == config.fingerprint


def test_fingerprint_sees_what_decides_the_outcome_and_nothing_else() -> None:
    config = recipes.build("cifar100-resnet18", method="lesam", scale="paper")
    changed = {
        "optimizer.sigma=0.3",
        "schedule.epochs=100",
        "data.augment=basic_cutout",
        "model.options.width=8",
        "system.precision=bf16-mixed",
        "schedule.switch_at=160",
    }
    same = {"data.root=/elsewhere", "system.devices=8", "system.nodes=2", "record.keep=9", "record.tensorboard=true"}
    prints = {override(config, [change]).fingerprint for change in changed}
    assert len(prints) == len(changed)
    assert config.fingerprint not in prints
    assert {override(config, [change]).fingerprint for change in same} == {config.fingerprint}
    other_seed = recipes.build("cifar100-resnet18", method="lesam", scale="paper", seed=1)
    assert other_seed.fingerprint != config.fingerprint
    assert other_seed.cell == config.cell


def test_an_integer_in_a_float_field_is_the_same_run() -> None:
    config = recipes.build("digits", method="lesam", scale="smoke")
    assert override(config, ["optimizer.sigma=1"]).fingerprint == override(config, ["optimizer.sigma=1.0"]).fingerprint


def test_overrides_convert_to_the_type_of_the_field() -> None:
    config = recipes.build("digits", method="lesam", scale="smoke")
    assignments = [
        "optimizer.sigma=1",
        "optimizer.rho_max=none",
        "optimizer.nesterov=true",
        "schedule.lr_milestones=75,90",
        "data.options.train_size=50",
        "data.root=5",
        "schedule.lr=multistep",
    ]
    changed = override(config, assignments)
    assert isinstance(changed.optimizer.sigma, float)  # type: ignore[attr-defined]
    assert changed.optimizer.rho_max is None  # type: ignore[attr-defined]
    assert changed.optimizer.nesterov is True
    assert changed.schedule.lr_milestones == (75, 90)
    assert changed.data.options["train_size"] == 50
    assert changed.data.root == "5"
    assert changed.schedule.lr == "multistep"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("optimizer.sigm=0.3", r"'optimizer\.sigma'"),
        ("optimiser.sigma=0.3", r"'optimizer\.sigma'"),
        ("optimizer.rho=0.3", "unknown setting 'optimizer.rho'"),
        ("schedule.epochs=many", "schedule.epochs must be of type int, got 'many'"),
        ("schedule.epochs=1.5", "schedule.epochs must be of type int, got"),
        ("schedule.epochs=0", "at least 1, got 0"),
        ("schedule.lr=cosin", "did you mean 'cosine'"),
        ("optimizer.method=sam", "--method"),
        ("optimizer=sam", "unknown setting"),
        ("optimizer.sigma", "section.field=value"),
        ("optimizer.perturbation=local", None),
    ],
)
def test_bad_overrides_say_what_is_wrong(assignment: str, message: str | None) -> None:
    config = recipes.build("digits", method="lesam", scale="smoke")
    if message is None:
        override(config, [assignment])
    else:
        with pytest.raises(ValueError, match=message):
            override(config, [assignment])


def test_every_path_that_is_offered_can_be_set() -> None:
    config = recipes.build("digits", method="gsam", scale="smoke")
    for path in paths(config):
        value = config
        for name in path.split("."):
            if name == "KEY":
                break
            value = value[name] if isinstance(value, dict) else getattr(value, name)  # type: ignore[assignment]
        else:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            assert override(config, [f"{path}={text}"]) == config, path


def test_unknown_keys_in_json_are_errors() -> None:
    text = to_json(recipes.build("digits", method="sam", scale="smoke"))
    with pytest.raises(ValueError, match="unknown field of SAMConfig 'rhoo'; did you mean 'rho'"):
        from_json(text.replace('"rho"', '"rhoo"'))
    with pytest.raises(ValueError, match="unknown method 'samm'"):
        from_json(text.replace('"method": "sam"', '"method": "samm"'))


def test_configurations_are_frozen() -> None:
    config = recipes.build("digits", method="sam", scale="smoke")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]

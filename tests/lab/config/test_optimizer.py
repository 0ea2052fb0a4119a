"""The record of every method follows from its class."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import lesam
from lesam.lab.cli import main
from lesam.lab.config.optimizer import (
    PLAIN,
    OptimizerConfig,
    config_class,
    description,
    methods,
    optimizer_config,
    own_settings,
    title,
)
from lesam.lab.runs.folder import find_runs


def test_there_is_a_configuration_for_every_method_and_no_other() -> None:
    assert set(methods()) == {*PLAIN, *lesam.METHODS}


@pytest.mark.parametrize("method", sorted(lesam.METHODS))
def test_defaults_are_those_of_the_library(method: str) -> None:
    known = inspect.signature(lesam.METHODS[method]).parameters
    for name, value in own_settings(optimizer_config(method)).items():
        if name not in ("rho_min", "threshold_end"):  # spell schedules of rho and threshold
            assert known[name].default == value, name


@pytest.mark.parametrize("method", methods())
def test_records_travel_to_other_processes(method: str) -> None:
    config = optimizer_config(method, lr=0.3)
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert type(again) is type(config)


class TiltedSAM(lesam.SharpnessAware):
    """Tilted SAM: of this test alone."""

    def __init__(
        self, base: torch.optim.Optimizer, rho: float = 0.07, tilt: float | None = None, **options: Any
    ) -> None:
        super().__init__(base, radius=lesam.Fixed(rho), combine=lesam.gap(tilt or 0.0), **options)


def test_a_method_of_the_library_needs_no_line_in_the_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Configuration, title, colour and command line follow from the class in ``lesam.METHODS``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(lesam.METHODS, "tiltedsam", TiltedSAM)
    assert own_settings(optimizer_config("tiltedsam")) == {"rho": 0.07, "tilt": None}
    assert title("tiltedsam") == "Tilted-SAM"
    assert description("tiltedsam") == "Tilted SAM: of this test alone."
    assert main(["list", "methods"]) == 0
    assert "tiltedsam" in capsys.readouterr().out.splitlines()
    train = ["train", "digits", "--method", "tiltedsam", "--scale", "smoke", "--set", "optimizer.tilt=1"]
    assert main(train) == 0
    (run,) = find_runs(["runs"])
    assert run.config().optimizer == optimizer_config("tiltedsam", lr=0.1, weight_decay=5e-4, tilt=1.0)
    assert run.metrics()[-1]["rho"] == pytest.approx(0.07)
    assert main(["table", "runs"]) == 0
    assert "| digits | smoke | Tilted-SAM | 1 |" in capsys.readouterr().out
    assert main(["plot", "radius", "runs"]) == 0
    assert main(["train", "digits", "--method", "tiltedsam", "--scale", "smoke", "--set", "optimizer.tild=1"]) == 2
    assert "did you mean 'optimizer.tilt'" in capsys.readouterr().err


def test_a_class_may_name_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TiltedSAM, "title", "T-SAM", raising=False)
    monkeypatch.setitem(lesam.METHODS, "tiltedsam", TiltedSAM)
    assert title("tiltedsam") == "T-SAM"


TITLES = {
    **{"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "sam": "SAM", "asam": "ASAM", "fishersam": "Fisher-SAM"},
    **{"eigensam": "Eigen-SAM", "friendlysam": "Friendly-SAM", "gsam": "GSAM", "ssam": "SSAM", "esam": "ESAM"},
    **{"msam": "MSAM", "s2sam": "S2-SAM", "lesam": "LE-SAM", "lesamplus": "LE-SAM+"},
    **{
        "looksam": "LookSAM",
        "vasso": "VaSSO",
        "wsam": "WSAM",
        "emasam": "EMA-SAM",
        "aesam": "AE-SAM",
        "crsam": "CR-SAM",
        "onepasslesam": "One-pass LE-SAM",
        "partiallesam": "Partial LE-SAM",
    },
}


def test_methods_are_written_as_in_the_paper() -> None:
    assert {method: title(method) for method in TITLES} == TITLES


def test_the_run_s_own_seed_is_the_only_one() -> None:
    """ESAM's masks have a seed, which is no hyper-parameter."""
    assert "seed" not in own_settings(optimizer_config("esam"))
    assert issubclass(config_class("esam"), OptimizerConfig)

"""Results are frozen, keep their settings, survive saving, and print."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch

from lesam.flatness import (
    Eigenvalues,
    HessianOperator,
    Measurement,
    TraceEstimate,
    by_layer,
    cached,
    landscape,
    low_pass_filter,
    spectral_density,
    top_eigenvalues,
    trace,
)

from .problems import mlp


def all_results() -> dict[str, Measurement]:
    problem = mlp()
    arguments = (problem.model, problem.loss_fn, problem.data)
    operator = HessianOperator(*arguments)
    return {
        "eigenvalues": top_eigenvalues(operator, 3, eigenvectors=True),
        "trace": trace(operator, 10, "hutch++"),
        "density": spectral_density(operator, draws=2, steps=5, points=16),
        "layers": by_layer(*arguments, k=2),
        "low pass": low_pass_filter(*arguments, samples=3),
        "line": landscape(*arguments, dimensions=1, points=3),
        "plane": landscape(*arguments, points=3, metric=lambda out, y: (out.argmax(1) == y).double()),
    }


RESULTS = all_results()


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_saved_and_loaded_it_is_the_same(name: str, suffix: str, tmp_path: Path) -> None:
    result = RESULTS[name]
    loaded = type(result).load(result.save(tmp_path / "deep" / f"result{suffix}"))
    for field in dataclasses.fields(result):
        before, after = getattr(result, field.name), getattr(loaded, field.name)
        if field.name == "vectors" and suffix == ".json":
            assert after is None  # too large for a text file
        elif isinstance(before, torch.Tensor):
            assert before.dtype == after.dtype
            assert torch.equal(before, after)
        else:
            assert before == after
    assert [p.name for p in (tmp_path / "deep").iterdir()] == [f"result{suffix}"]  # no temporary left


@pytest.mark.parametrize("name", RESULTS)
def test_it_carries_its_settings_and_cannot_be_changed(name: str) -> None:
    result = RESULTS[name]
    for key in ("samples", "batches", "batch_size", "mode", "dtype", "seed", "torch", "lesam", "parameters", "loss"):
        assert key in result.settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.settings = {}
    with pytest.raises(TypeError):
        result.settings["seed"] = 1
    json.dumps(result.to_dict())


@pytest.mark.parametrize("name", RESULTS)
def test_it_prints_its_numbers_and_settings(name: str) -> None:
    text = str(RESULTS[name])
    assert "samples 11" in text
    assert "mode eval" in text
    assert max(map(len, text.splitlines())) <= 120


def test_printed_numbers_are_the_measured_ones() -> None:
    found = RESULTS["eigenvalues"]
    assert f"{found.values[0]:.6g}" in str(found)
    assert f"{RESULTS['trace'].estimate:.6g}" in str(RESULTS["trace"])


def test_unknown_suffix_and_wrong_type(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.json or \.npz"):
        RESULTS["trace"].save(tmp_path / "trace.csv")
    RESULTS["trace"].save(tmp_path / "trace.json")
    with pytest.raises(ValueError, match="'TraceEstimate', not a Eigenvalues"):
        Eigenvalues.load(tmp_path / "trace.json")


def test_cache_is_used_for_the_same_key_only(tmp_path: Path) -> None:
    measured = []

    def measure() -> Measurement:
        measured.append(1)
        return RESULTS["trace"]

    path = tmp_path / "trace.json"
    for key, expected in (({"epoch": 1}, 1), ({"epoch": 1}, 1), ({"epoch": 2}, 2), ({"epoch": 2, "n": 5}, 3)):
        found = cached(path, TraceEstimate, key, measure)
        assert len(measured) == expected
        assert found.estimate == RESULTS["trace"].estimate


@pytest.mark.skipif(os.name == "nt", reason="permissions of another kind")
def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = RESULTS["trace"].save(tmp_path / "trace.json")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644

"""Landscapes: the directions' definition, closed forms, resuming, processes."""

from __future__ import annotations

import copy
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lesam.flatness import Landscape, landscape
from lesam.flatness._directions import random_direction

from .problems import cnn, mlp, quadratic


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).double().mean()


def test_filters_of_a_direction_have_the_norms_of_the_weights() -> None:
    weights = [torch.randn(3, 2, 2, 2).double(), torch.randn(5, 4).double(), torch.randn(4).double()]
    d = random_direction(weights, 123, 0, "filter")
    torch.testing.assert_close(d[0].flatten(1).norm(dim=1), weights[0].flatten(1).norm(dim=1))
    torch.testing.assert_close(d[1].norm(dim=1), weights[1].norm(dim=1))
    assert not d[2].any()
    layer = random_direction(weights, 123, 0, "layer")
    torch.testing.assert_close(layer[0].norm(), weights[0].norm())
    assert not layer[2].any()


def test_models_of_one_architecture_share_the_raw_directions() -> None:
    raw = random_direction([torch.zeros(3, 4), torch.zeros(4)], 123, 0, "none")
    for scale in (1.0, 7.0):
        weights = [scale * torch.rand(3, 4) + 1, torch.rand(4)]
        mine = random_direction(weights, 123, 0, "filter")[0]
        torch.testing.assert_close(mine / mine.norm(dim=1, keepdim=True), raw[0] / raw[0].norm(dim=1, keepdim=True))
    other = random_direction([torch.zeros(3, 4), torch.zeros(4)], 123, 1, "none")
    assert not torch.allclose(raw[0], other[0])


def test_grid_of_a_quadratic_is_its_closed_form() -> None:
    """L(w + a x + b y) for L = w'Hw / 2; rows are y, columns x."""
    problem = quadratic([5.0, 2.0, -1.0])
    found = landscape(problem.model, problem.loss_fn, problem.data, points=5, span=(-2.0, 1.0), seed=4)
    h, w = problem.dense(), problem.model.weight.detach().reshape(-1)
    x, y = (random_direction([problem.model.weight.detach()], 4, axis, "filter")[0].reshape(-1) for axis in (0, 1))
    for row, b in enumerate(np.linspace(-2, 1, 5)):
        for column, a in enumerate(np.linspace(-2, 1, 5)):
            point = w + a * x + b * y
            assert math.isclose(float(found.loss[row, column]), float(point @ h @ point / 2), rel_tol=1e-9)
    assert math.isclose(found.cosine, float(x @ y / x.norm() / y.norm()), rel_tol=1e-9)


def test_centre_of_a_line_is_the_model() -> None:
    problem = cnn()
    line = landscape(problem.model, problem.loss_fn, problem.data, dimensions=1, points=5, metric=accuracy)
    problem.model.eval()
    output = problem.model(problem.inputs)
    assert math.isclose(float(line.loss[2]), problem.loss_fn(output, problem.targets).item(), rel_tol=1e-9)
    assert math.isclose(float(line.metric[2]), accuracy(output, problem.targets).item())
    assert line.y is None
    assert line.loss.shape == (5,)


def test_overflow_far_away_is_infinite_not_missing(tmp_path: Path) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 50.0)
    x = torch.ones(2, 1)
    path = tmp_path / "grid.npz"
    line = landscape(model, lambda out, _: out.abs().exp().mean(), [(x, x)], dimensions=1, points=3, path=path)
    assert line.missing == 0
    assert torch.isinf(line.loss).sum() == 1


def test_processes_give_the_same_grid() -> None:
    problem = mlp()
    arguments = (problem.model, problem.loss_fn, problem.data)
    one = landscape(*arguments, points=5)
    # A worker must be able to import the metric; this file need not be importable by name.
    two = landscape(*arguments, points=5, metric=nn.functional.cross_entropy, processes=2)
    torch.testing.assert_close(one.loss, two.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(one.loss, two.metric, rtol=1e-12, atol=0)


def test_processes_refuse_what_cannot_be_sent() -> None:
    problem = mlp()
    with pytest.raises(ValueError, match="picklable"):
        landscape(problem.model, lambda a, b: problem.loss_fn(a, b), problem.data, points=3, processes=2)


class _Stop(Exception):
    pass


def test_an_interrupted_grid_is_continued_not_repeated(tmp_path: Path) -> None:
    problem = mlp()
    arguments = (problem.model, problem.loss_fn, problem.data)
    path = tmp_path / "grid.npz"

    def stop(done: int, total: int | None) -> None:
        if done == 10:
            raise _Stop

    with pytest.raises(_Stop):
        landscape(*arguments, points=5, path=path, progress=stop)
    assert Landscape.load(path).missing == 15
    seen: list[int] = []
    found = landscape(*arguments, points=5, path=path, progress=lambda done, total: seen.append(done))
    assert seen == list(range(11, 26))
    assert torch.equal(found.loss, landscape(*arguments, points=5).loss)
    assert torch.equal(Landscape.load(path).loss, found.loss)
    seen.clear()
    landscape(*arguments, points=5, path=path, progress=lambda done, total: seen.append(done))
    assert seen == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"points": 7}, "grid"),
        ({"normalization": "layer"}, "normalization"),
        ({"dimensions": 1}, "dimensions"),
        ({"metric": accuracy}, "with_metric"),
    ],
)
def test_a_file_of_another_landscape_is_refused(tmp_path: Path, change, named: str) -> None:
    problem = mlp()
    arguments = (problem.model, problem.loss_fn, problem.data)
    landscape(*arguments, points=3, path=tmp_path / "grid.npz")
    with pytest.raises(ValueError, match=rf"another landscape: {named}"):
        landscape(*arguments, **({"points": 3, "path": tmp_path / "grid.npz"} | change))


def test_a_file_of_other_weights_is_refused(tmp_path: Path) -> None:
    problem = mlp()
    landscape(problem.model, problem.loss_fn, problem.data, points=3, path=tmp_path / "grid.npz")
    with torch.no_grad():
        problem.model[0].weight.mul_(1.5)
    with pytest.raises(ValueError, match="another landscape: checksum"):
        landscape(problem.model, problem.loss_fn, problem.data, points=3, path=tmp_path / "grid.npz")


SCRIPT = """
import sys, time, torch
sys.path.insert(0, sys.argv[2])
from flatness.problems import mlp
from lesam.flatness import landscape
torch.set_num_threads(1)
problem = mlp()
slow = lambda done, total: time.sleep(0.05)
landscape(problem.model, problem.loss_fn, problem.data, points=7, path=sys.argv[1], save_every=0.0, progress=slow)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a kill that cannot be caught")
def test_a_killed_process_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "grid.npz"
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(tests.parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(path), str(tests)], env=environment)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if path.exists() and Landscape.load(path).missing <= 40:
                break
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = Landscape.load(path).missing
    assert 0 < left <= 40
    problem = mlp()
    seen: list[int] = []
    found = landscape(
        problem.model,
        problem.loss_fn,
        problem.data,
        points=7,
        path=path,
        progress=lambda done, total: seen.append(done),
    )
    assert len(seen) == left
    assert torch.equal(found.loss, landscape(problem.model, problem.loss_fn, problem.data, points=7).loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimensions": 3}, "3"),
        ({"points": 1}, "1"),
        ({"span": (1.0, -1.0)}, "ascending"),
        ({"normalization": "x"}, "'x'"),
        ({"processes": 0}, "0"),
        ({"path": "grid.json"}, r"\.npz"),
    ],
)
def test_options_of_the_wrong_form(options, message: str) -> None:
    problem = mlp()
    with pytest.raises(ValueError, match=message):
        landscape(problem.model, problem.loss_fn, problem.data, **options)


def test_reestimated_statistics_are_those_of_the_moved_weights() -> None:
    """Oracle: move the weights of a copy, let torch's own `update_bn` average the statistics, evaluate."""
    problem = cnn()
    directions = [
        random_direction([p.detach() for p in problem.model.parameters()], 3, axis, "filter") for axis in (0, 1)
    ]
    arguments = (problem.model, problem.loss_fn, problem.data)
    found = landscape(*arguments, points=3, seed=3, batch_norm="reestimated", metric=accuracy)
    for row, b in enumerate((-1.0, 0.0, 1.0)):
        for column, a in enumerate((-1.0, 0.0, 1.0)):
            moved = copy.deepcopy(problem.model)
            with torch.no_grad():
                for p, x, y in zip(moved.parameters(), *directions, strict=True):
                    p.add_(a * x).add_(b * y)
            torch.optim.swa_utils.update_bn(problem.data, moved)
            moved.eval()
            outputs = moved(problem.inputs).detach()
            expected = float(problem.loss_fn(outputs, problem.targets))
            assert math.isclose(float(found.loss[row, column]), expected, rel_tol=1e-9)
            assert math.isclose(float(found.metric[row, column]), float(accuracy(outputs, problem.targets)))
    assert not torch.allclose(found.loss, landscape(*arguments, points=3, seed=3).loss)


def test_reestimated_statistics_depend_on_the_batches(tmp_path: Path) -> None:
    problem = cnn()
    arguments = (problem.model, problem.loss_fn, problem.data)
    options = {"points": 3, "path": tmp_path / "grid.npz", "batch_norm": "reestimated"}
    landscape(*arguments, **options)
    with pytest.raises(ValueError, match="another landscape: batch_size"):
        landscape(*arguments, **options, batch_size=3)
    with pytest.raises(ValueError, match="another landscape: batch_norm"):
        landscape(*arguments, points=3, path=tmp_path / "grid.npz")
    with pytest.raises(ValueError, match='needs mode="eval"'):
        landscape(*arguments, points=3, batch_norm="reestimated", mode="train")


WORKERS = """
import multiprocessing, sys, time
sys.path.insert(0, sys.argv[1])
from flatness.problems import mlp
from lesam.flatness import landscape

def tell(done, total):
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    problem = mlp()
    landscape(problem.model, problem.loss_fn, problem.data, points=3, processes=2, progress=tell)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_do_not_outlive_a_killed_process(tmp_path: Path) -> None:
    script, tests = tmp_path / "workers.py", Path(__file__).parents[1]
    script.write_text(WORKERS)
    environment = os.environ | {"PYTHONPATH": str(tests.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tests)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert workers
    deadline = time.monotonic() + 60
    while any(_running(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker is still running"
        time.sleep(0.05)


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"

"""Fabric's proxies around a sharpness-aware optimizer: both calling styles equal the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from torch import nn
from torch.nn import functional as F

from .problems import METHODS, Batch, assert_resumes, assert_same, data, network, optimizer, train, windows
from .processes import assert_loaded, run_script

pytestmark = pytest.mark.filterwarnings("ignore")


def fabric(**options: Any) -> Fabric:
    made = Fabric(accelerator="cpu", devices=1, **options)
    made.launch()
    return made


def with_closures(fab: Fabric, model: Any, opt: Any, batches: list[Batch]) -> None:
    for x, y in batches:

        def closure(x: Any = x, y: Any = y) -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            fab.backward(loss)
            return loss

        opt.step(closure)


def with_contexts(fab: Fabric, model: Any, opt: Any, batches: list[Batch], scaler: Any = None) -> None:
    for x, y in batches:
        if opt.passes == 2:
            with opt.clean(scaler):
                fab.backward(F.cross_entropy(model(x), y))
        with opt.perturbed(scaler):
            fab.backward(F.cross_entropy(model(x), y))
        opt.step()


@pytest.mark.parametrize("name", [name for name in METHODS if name != "eigensam"])
@pytest.mark.parametrize("style", [with_closures, with_contexts])
def test_both_styles_equal_the_plain_loop(name: str, style: Any) -> None:
    fab, network_, plain = fabric(), network(), network()
    model, opt = fab.setup(network_, optimizer(name, network_))
    torch.manual_seed(2)
    style(fab, model, opt, data(5))
    reference = optimizer(name, plain)
    train(reference, plain, windows(data(5), 1))
    assert_same(network_, plain, rtol=1e-12, atol=1e-12)
    assert opt.passes == reference.passes
    torch.testing.assert_close(opt.last.rho, reference.last.rho, equal_nan=True)


@pytest.mark.parametrize("name", ["lesamplus", "friendlysam"])
def test_save_and_load_continue_bit_for_bit(name: str, tmp_path: Path) -> None:
    def run(network_: nn.Module, part: str, begin: Callable[[], None]) -> None:
        fab, batches = fabric(), data(6)
        model, opt = fab.setup(network_, optimizer(name, network_))
        state = {"model": model, "opt": opt}
        if part == "second":
            fab.load(tmp_path / "state.ckpt", state)
        begin()
        with_contexts(fab, model, opt, {"whole": batches, "first": batches[:3], "second": batches[3:]}[part])
        if part == "first":
            fab.save(tmp_path / "state.ckpt", state)

    assert_resumes(network, run)


def test_clipping_acts_on_the_combined_gradient() -> None:
    fab, network_, plain = fabric(), network(), network()
    model, opt = fab.setup(network_, optimizer("lesamplus", network_))
    torch.manual_seed(2)
    for x, y in data(5):
        with opt.clean():
            fab.backward(F.cross_entropy(model(x), y))
        with opt.perturbed():
            fab.backward(F.cross_entropy(model(x), y))
        fab.clip_gradients(model, opt, max_norm=0.3)
        opt.step()
    train(optimizer("lesamplus", plain, max_norm=0.3), plain, windows(data(5), 1))
    assert_same(network_, plain, rtol=1e-6, atol=1e-9)


def test_bf16_mixed_equals_autocast() -> None:
    fab, network_, plain = fabric(precision="bf16-mixed"), network(dtype=torch.float32), network(dtype=torch.float32)
    model, opt = fab.setup(network_, optimizer("lesam", network_))
    torch.manual_seed(2)
    with_closures(fab, model, opt, data(5, dtype=torch.float32))
    train(optimizer("lesam", plain), plain, windows(data(5, dtype=torch.float32), 1), bf16=True)
    assert_same(network_, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "gsam"])
def test_fp16_scaler_does_not_change_the_radius(name: str) -> None:
    """The plugin's own scaler is given to the passes; numbers as without scaling, up to half precision."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    fab = fabric(plugins=[MixedPrecision("16-mixed", device="cpu", scaler=scaler)])
    network_, plain = network(dtype=torch.float32), network(dtype=torch.float32)
    model, opt = fab.setup(network_, optimizer(name, network_))
    torch.manual_seed(2)
    with_contexts(fab, model, opt, data(5, dtype=torch.float32), scaler)
    train(optimizer(name, plain), plain, windows(data(5, dtype=torch.float32), 1))
    assert_same(network_, plain, rtol=2e-2, atol=1e-2)


TWO_PROCESSES = """
import sys, torch
from lightning.fabric import Fabric
from torch.nn import functional as F
from tests.integrations.problems import data, network, optimizer

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
torch.set_num_threads(1)
net = network(dropout=0.0, batchnorm=False)
model, opt = fabric.setup(net, optimizer("lesamplus", net))
for x, y in data(4, size=8):
    mine = slice(fabric.global_rank * 4, fabric.global_rank * 4 + 4)
    with opt.clean():
        fabric.backward(F.cross_entropy(model(x[mine]), y[mine]))
    with opt.perturbed():
        fabric.backward(F.cross_entropy(model(x[mine]), y[mine]))
    opt.step()
fabric.barrier()
if fabric.global_rank == 0:
    torch.save(net.state_dict(), sys.argv[1])
"""


@pytest.mark.xdist_group("processes")
def test_two_processes_equal_one_with_the_whole_batch(tmp_path: Path) -> None:
    run_script(TWO_PROCESSES, tmp_path / "state.pt")
    plain = network(dropout=0.0, batchnorm=False)
    train(optimizer("lesamplus", plain), plain, windows(data(4, size=8), 1))
    assert_loaded(tmp_path / "state.pt", plain)

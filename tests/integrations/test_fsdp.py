"""FSDP1, still what Lightning's and Accelerate's plugins mean by FSDP, is refused; the remedies that are named work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import needs

from .problems import data, network, optimizer, train, windows
from .processes import assert_loaded, run_script

LIGHTNING = """
import sys
import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn import functional as F
from lesam.integrations.lightning import SharpnessAwareCallback
from tests.integrations.problems import data, loader, network, optimizer


class OnCPU(FSDPStrategy):
    '''The Trainer takes FSDPStrategy itself on GPUs only.'''


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network(dropout=0.0, batchnorm=False)

    def configure_model(self):
        if sys.argv[2] == "1":
            self.network = FullyShardedDataParallel(
                self.network, device_id=torch.device("cpu"), use_orig_params=sys.argv[3] == "True"
            )
        else:
            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch):
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        return optimizer("lesamplus", self.trainer.model)


strategy = OnCPU(process_group_backend="gloo") if sys.argv[2] == "1" else ModelParallelStrategy(
    data_parallel_size=1, tensor_parallel_size=1, process_group_backend="gloo"
)
trainer = pl.Trainer(
    accelerator="cpu", devices=1, strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
    callbacks=SharpnessAwareCallback(), enable_progress_bar=False, enable_model_summary=False,
    accumulate_grad_batches=2,
)
module = Module()
try:
    trainer.fit(module, loader(data(4)))
except RuntimeError as error:
    print("refused:", error)
else:
    state = {name: value.full_tensor() for name, value in module.network.state_dict().items()}
    torch.save(state, sys.argv[1])
"""

ACCELERATE = """
import os, sys
import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.nn import functional as F
from tests.integrations.problems import data, network, optimizer, windows

os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
dist.init_process_group("gloo")
version = int(sys.argv[2])
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=version, **({"use_orig_params": sys.argv[3] == "True"} if version == 1 else {})
)
accelerator = Accelerator(cpu=True)
state = AcceleratorState()  # as on GPUs, where alone it believes in FSDP
state.device = PartialState().device = torch.device("cpu")
state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, plugin
net = network(dropout=0.0, batchnorm=False)
model, opt = accelerator.prepare(net, optimizer("lesamplus", net))
try:
    for window in windows(data(4), 2):
        accelerator.gradient_accumulation_steps = 2
        for one_pass in (opt.optimizer.clean, opt.optimizer.perturbed):
            with one_pass():
                for x, y in window:
                    with accelerator.accumulate(model):
                        accelerator.backward(F.cross_entropy(model(x), y))
        opt.step()
except RuntimeError as error:
    print("refused:", error)
else:
    torch.save({name: value.full_tensor() for name, value in model.state_dict().items()}, sys.argv[1])
dist.barrier()  # nothing may be under way when the group ends
dist.destroy_process_group()
"""


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("script", "remedy", "original"),
    [
        pytest.param(LIGHTNING, "ModelParallelStrategy", True, id="lightning"),
        pytest.param(ACCELERATE, "fsdp_version=2", True, id="accelerate"),
        pytest.param(ACCELERATE, "fsdp_version=2", False, id="accelerate-flat"),
    ],
)
def test_fsdp1_is_refused_by_name(script: str, remedy: str, original: bool, tmp_path: Path) -> None:
    """Whether or not the parameters stay visible (``use_orig_params``)."""
    output = run_script(script, tmp_path / "state.pt", 1, original)
    refusal = output[output.index("refused:") :]
    assert "FullyShardedDataParallel (FSDP1)" in refusal
    assert remedy in refusal
    assert not (tmp_path / "state.pt").exists()


@needs.fsdp2_on_cpu
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("script", [LIGHTNING, ACCELERATE], ids=["lightning", "accelerate"])
def test_fsdp2_equals_the_plain_loop(script: str, tmp_path: Path) -> None:
    run_script(script, tmp_path / "state.pt", 2)
    plain = network(dropout=0.0, batchnorm=False)
    train(optimizer("lesamplus", plain), plain, windows(data(4), 2))
    assert_loaded(tmp_path / "state.pt", plain)

"""What DeepSpeed does to an optimizer is refused with its remedy; DeepSpeed itself is not needed for that."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import lesam
from lesam.integrations.transformers import SharpnessAwareTrainer

from .test_transformers import arguments, bert, text

pytestmark = pytest.mark.filterwarnings("ignore")
REMEDY = r"DeepSpeed's ZeRO .* use zero_optimization stage 0, torch's FSDP2, or ZeroRedundancyOptimizer"


@pytest.fixture
def _deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))


def first_pass(opt: lesam.LESAM, model: nn.Module) -> None:
    with opt.clean():
        model(torch.ones(2, 4)).sum().backward()


@pytest.mark.usefixtures("_deepspeed")
def test_flat_parts_without_gradients() -> None:
    """Stages 1 and 2 put one flat part of each group in place of its parameters, as is done here by hand."""
    model = nn.Linear(4, 2)
    opt = lesam.LESAM(torch.optim.SGD(model.parameters(), lr=0.1), sigma=0.1)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()]).requires_grad_()
    opt.param_groups[0]["params"] = [flat]
    with pytest.raises(RuntimeError, match=f"left no gradient.*{REMEDY}"):
        first_pass(opt, model)


@pytest.mark.usefixtures("_deepspeed")
def test_weights_that_live_elsewhere() -> None:
    """Stage 3 leaves parameters that ask for no gradient."""
    model = nn.Linear(4, 2)
    opt = lesam.LESAM(torch.optim.SGD(model.parameters(), lr=0.1), sigma=0.1)
    model.requires_grad_(False)
    with pytest.raises(RuntimeError, match=f"requires a gradient.*{REMEDY}"):
        first_pass(opt, nn.Linear(4, 2))


def test_nothing_is_said_of_it_where_it_is_not_in_use() -> None:
    model = nn.Linear(4, 2)
    opt = lesam.LESAM(torch.optim.SGD(model.parameters(), lr=0.1), sigma=0.1)
    with pytest.raises(RuntimeError, match="left no gradient") as refused:
        first_pass(opt, nn.Linear(4, 2))
    assert "DeepSpeed" not in str(refused.value)


def test_a_trainer_with_deepspeed_is_refused(tmp_path: Path) -> None:
    class WithDeepSpeed(SharpnessAwareTrainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            self.is_deepspeed_enabled = True  # as Accelerate's plugin says it

    with pytest.raises(ValueError, match=r"step inside backward\(\).*FSDP2"):
        WithDeepSpeed(
            model=bert(),
            args=arguments(tmp_path),
            train_dataset=text(4),
            sharpness="lesam",
            sharpness_options={"sigma": 0.1},
        )

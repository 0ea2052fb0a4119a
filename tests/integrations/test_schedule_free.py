"""Schedule-free bases: frameworks evaluate and save the averaged weights, and train the others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_optimizer
import torch
from accelerate import Accelerator
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import lesam
from lesam.integrations.lightning import SharpnessAwareCallback

from .lightning_problems import Module, trainer
from .problems import assert_resumes, closure, data, loader, network, schedule_free, windows
from .test_transformers import InOrder, Samples, arguments, bert, collate, resumable, text

pytestmark = pytest.mark.filterwarnings("ignore")
Weights = dict[str, Tensor]
CLOSE = {"rtol": 1e-8, "atol": 1e-9}


def averages(name: str, k: int = 1, **options: Any) -> list[Weights]:
    """The averaged weights after each step of the plain loop, by the base's own ``eval()``; those before it first."""
    plain = network()
    opt = schedule_free(name, plain, **options)
    torch.manual_seed(2)
    plain.train()
    seen = [weights_of(plain)]
    for window in windows(data(6), k):
        opt.step([closure(opt, plain, batch) for batch in window])
        trained = weights_of(plain)
        opt.bases[0].eval()
        seen.append(weights_of(plain))
        assert not torch.allclose(seen[-1]["0.weight"], trained["0.weight"], rtol=1e-3) or len(seen) == 2
        opt.bases[0].train()
    return seen


def weights_of(model: nn.Module) -> Weights:
    return copy.deepcopy({name: value.detach() for name, value in model.named_parameters()})


# ---------------------------------------------------------------------- the optimizer itself


def test_steps_in_evaluation_mode_are_refused() -> None:
    """pytorch_optimizer's ScheduleFreeSGD itself would train the averages without a word."""
    model, (batch,) = network(), data(1)
    opt = schedule_free("lesam", model)
    opt.eval()
    before = weights_of(model)
    for call in (lambda: opt.step(closure(opt, model, batch)), lambda: opt.perturbed().__enter__()):
        with pytest.raises(RuntimeError, match=r"evaluation mode.*opt\.train\(\)"):
            call()
    torch.testing.assert_close(weights_of(model), before, rtol=0, atol=0)
    opt.train()
    opt.step(closure(opt, model, batch))


def test_a_closure_may_say_train_in_both_passes() -> None:
    model, (batch,) = network(), data(1)
    opt = schedule_free("lesam", model)

    def repeated() -> Tensor:
        opt.train()
        return closure(opt, model, batch)()

    opt.step(repeated)
    assert opt.steps == 1


@pytest.mark.parametrize(
    "make",
    [
        pytorch_optimizer.ScheduleFreeSGD,
        pytorch_optimizer.ScheduleFreeAdamW,
        lambda parameters: pytorch_optimizer.ScheduleFreeWrapper(torch.optim.AdamW(parameters)),
    ],
    ids=["sgd", "adamw", "wrapper"],
)
def test_msam_says_that_there_is_no_momentum(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"ScheduleFree\w+ is schedule-free: .* no momentum buffer"):
        lesam.MSAM(make(network().parameters()))


# ---------------------------------------------------------------------- Lightning


class Free(Module):
    """Notes the weights at each validation and test."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.validated: list[Weights] = []
        self.tested: list[Weights] = []

    def configure_optimizers(self) -> Any:
        return schedule_free(self.name, self.network)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(weights_of(self.network))
        self.log("val_loss", float(-len(self.validated)))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.tested.append(weights_of(self.network))


@pytest.mark.parametrize("name", ["lesamplus", "s2sam"])
@pytest.mark.parametrize("k", [1, 3])
def test_lightning(name: str, k: int, tmp_path: Path) -> None:
    """Validation every second batch, in the middle of windows too, checkpoints of it, and a test at the end."""
    module = Free(name)
    checkpoints = ModelCheckpoint(tmp_path, filename="{step}", monitor="val_loss", save_top_k=-1)
    pl_trainer = trainer(
        callbacks=[SharpnessAwareCallback(), checkpoints],
        enable_checkpointing=True,
        accumulate_grad_batches=k,
        val_check_interval=2,
    )
    pl_trainer.fit(module, loader(data(6)), loader(data(1)))
    wanted = averages(name, k)
    steps = [0, *(batches // k for batches in (2, 4, 6))]  # the sanity check, and three validations
    assert len(module.validated) == len(steps)
    for seen, step in zip(module.validated, steps, strict=True):
        torch.testing.assert_close(seen, wanted[step], **CLOSE)
    for step in {*steps} - {0}:
        saved = torch.load(tmp_path / f"step={step}.ckpt", weights_only=False)
        weights = {key: saved["state_dict"][f"network.{key}"] for key in wanted[step]}
        torch.testing.assert_close(weights, wanted[step], **CLOSE)
        assert saved["optimizer_states"][0]["param_groups"][0]["train_mode"] is False
    torch.testing.assert_close(weights_of(module.network), wanted[-1], **CLOSE)
    pl_trainer.test(module, loader(data(1)), verbose=False)
    torch.testing.assert_close(module.tested[-1], wanted[-1], **CLOSE)


def test_lightning_resumes_from_averaged_weights(tmp_path: Path) -> None:
    def run(module: Free, part: str, begin: Callable[[], None]) -> None:
        module.on_train_start = begin  # type: ignore[method-assign]
        pl_trainer = trainer(
            callbacks=[SharpnessAwareCallback(), ModelCheckpoint(tmp_path / part, filename="{epoch}", save_top_k=-1)],
            enable_checkpointing=True,
            max_epochs=1 if part == "first" else 2,
        )
        halfway = tmp_path / "first" / "epoch=0.ckpt" if part == "second" else None
        pl_trainer.fit(module, loader(data(6)), ckpt_path=halfway)

    assert_resumes(lambda: Free("lesamplus"), run)  # type: ignore[arg-type]


def test_lightning_with_manual_optimisation_and_two_optimizers() -> None:
    """Each base is evaluated by its own average; an optimizer without one is left alone."""

    class Manual(Free):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            rest = torch.optim.SGD(self.network[4].parameters(), lr=0.1)
            return [schedule_free("lesamplus", self.network[0]), rest]

        def training_step(self, batch: Any, batch_idx: int) -> None:
            opt, rest = self.optimizers()
            for one_pass in (opt.clean, opt.perturbed):
                with one_pass():
                    self.manual_backward(F.cross_entropy(self.network(batch[0]), batch[1]))
            opt.step()
            rest.step()
            rest.zero_grad()

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()[0].optimizer
            kept = weights_of(self.network)
            optimizer.eval()
            self.wanted = weights_of(self.network)
            optimizer.train()
            torch.testing.assert_close(weights_of(self.network), kept, **CLOSE)

    module = Manual("lesamplus")
    trainer(val_check_interval=2, num_sanity_val_steps=0).fit(module, loader(data(4)), loader(data(1)))
    assert len(module.validated) == 2
    torch.testing.assert_close(module.validated[-1], module.wanted, **CLOSE)


# ---------------------------------------------------------------------- Hugging Face


class Noting(InOrder):
    """Notes the weights at each evaluation."""

    def __init__(self, **options: Any) -> None:
        self.evaluated: list[Weights] = []
        super().__init__(**options)

    def prediction_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.evaluated.append(weights_of(model))
        return super().prediction_step(model, *args, **kwargs)


def hugging_face_averages(samples: Samples, k: int) -> list[Weights]:
    plain = bert(dropout=0.0)  # evaluations draw random numbers
    opt = schedule_free("lesamplus", plain)
    torch.manual_seed(3)
    plain.train()
    seen = []
    for window in windows([collate(samples[i : i + 2]) for i in range(0, len(samples), 2)], k):  # type: ignore[arg-type]

        def micro_batch(batch: Any) -> Callable[[], Tensor]:
            def run() -> Tensor:
                opt.zero_grad()
                loss = plain(**batch).loss
                loss.backward()
                return loss

            return run

        opt.step([micro_batch(batch) for batch in window])
        opt.bases[0].eval()
        seen.append(weights_of(plain))
        opt.bases[0].train()
    return seen


@pytest.mark.parametrize("k", [1, 2])
def test_hugging_face(k: int, tmp_path: Path) -> None:
    """Each evaluation and each checkpoint has the averaged weights; the best of them are what is left."""
    model, samples = bert(dropout=0.0), text(8)
    args = arguments(
        tmp_path,
        gradient_accumulation_steps=k,
        lr_scheduler_type="constant",
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
    )
    trainer = Noting(
        model=model,
        args=args,
        train_dataset=samples,
        eval_dataset=samples[:2],
        optimizers=(schedule_free("lesamplus", model), None),
    )
    trainer.train()
    wanted = hugging_face_averages(samples, k)
    assert len(trainer.evaluated) == len(wanted) // 2
    for seen, expected in zip(trainer.evaluated, wanted[1::2], strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-6, atol=1e-7)
    for step in range(2, len(wanted) + 1, 2):
        saved = load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors")
        torch.testing.assert_close(saved, wanted[step - 1], rtol=1e-6, atol=1e-7)
    best = int(str(trainer.state.best_model_checkpoint).rsplit("-", 1)[1])
    trainer.evaluate()
    torch.testing.assert_close(trainer.evaluated[-1], wanted[best - 1], rtol=1e-6, atol=1e-7)


def test_hugging_face_saves_averages_where_nothing_was_evaluated(tmp_path: Path) -> None:
    """And training continues from the trained weights."""
    model, samples = bert(dropout=0.0), text(8)
    args = arguments(tmp_path, lr_scheduler_type="constant", save_strategy="steps", save_steps=1)
    trainer = InOrder(
        model=model, args=args, train_dataset=samples, optimizers=(schedule_free("lesamplus", model), None)
    )
    trainer.train()
    wanted = hugging_face_averages(samples, 1)
    for step, expected in enumerate(wanted, start=1):
        saved = load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors")
        torch.testing.assert_close(saved, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(weights_of(model), wanted[-1], rtol=1e-6, atol=1e-7)
    trainer.save_model(str(tmp_path / "end"))
    torch.testing.assert_close(load_file(tmp_path / "end" / "model.safetensors"), wanted[-1], rtol=1e-6, atol=1e-7)


def test_hugging_face_resumes_from_averaged_weights(tmp_path: Path) -> None:
    def run(model: nn.Module, part: str, begin: Callable[[], None]) -> None:
        opt = schedule_free("lesamplus", model)
        resumable(tmp_path, text(8), {"lr_scheduler_type": "constant"}, optimizers=(opt, None))(model, part, begin)

    assert_resumes(bert, run)


# ---------------------------------------------------------------------- Accelerate and Fabric


def with_accelerate(model: nn.Module) -> tuple[Any, Any, Any, Any]:
    accelerator = Accelerator(cpu=True)
    wrapped, opt = accelerator.prepare(model, schedule_free("lesamplus", model))
    return wrapped, opt, opt.optimizer, accelerator.backward


def with_fabric(model: nn.Module) -> tuple[Any, Any, Any, Any]:
    fabric = Fabric(accelerator="cpu", devices=1)
    wrapped, opt = fabric.setup(model, schedule_free("lesamplus", model))
    return wrapped, opt, opt, fabric.backward


@pytest.mark.parametrize("prepare", [with_accelerate, with_fabric])
def test_wrappers_reach_the_base(prepare: Callable[..., Any]) -> None:
    model = network()
    wrapped, opt, passes, backward = prepare(model)
    wanted = averages("lesamplus")
    torch.manual_seed(2)
    for (x, y), expected in zip(data(6), wanted[1:], strict=True):
        opt.train()
        for one_pass in (passes.clean, passes.perturbed):
            with one_pass():
                backward(F.cross_entropy(wrapped(x), y))
        opt.step()
        opt.eval()
        torch.testing.assert_close(weights_of(model), expected, **CLOSE)

"""Fine-tuning through the Hugging Face Trainer equals the plain loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

import lesam
from lesam.integrations.transformers import SharpnessAwareTrainer

from .problems import METHODS, assert_resumes, assert_same, muon_and_adamw, windows

pytestmark = pytest.mark.filterwarnings("ignore")
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": 3,
}
Samples = list[dict[str, Tensor]]


def bert(dropout: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    probabilities = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, **probabilities, **TINY)
    return transformers.BertForSequenceClassification(config).double()


def vit() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=8, patch_size=4, hidden_dropout_prob=0.1, **TINY)
    return transformers.ViTForImageClassification(config).double()


def language_model() -> nn.Module:
    """Its loss is divided by the number of tokens of all micro-batches, which differ."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config).double()


def text(count: int) -> Samples:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 20, (count, 6), generator=generator)
    return [{"input_ids": row, "labels": row[0] % 3} for row in tokens]


def images(count: int) -> Samples:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(count, 3, 8, 8, generator=generator, dtype=torch.float64)
    return [{"pixel_values": one, "labels": torch.tensor(i % 3)} for i, one in enumerate(pixels)]


def ragged(count: int) -> Samples:
    samples = text(count)
    for i, sample in enumerate(samples):
        labels = sample["input_ids"].clone()
        labels[6 - i % 4 :] = -100
        sample["labels"] = labels
    return samples


CASES = {"bert": (bert, text), "vit": (vit, images), "language model": (language_model, ragged)}


def tolerance(case: str) -> dict[str, float]:
    """Language models compute their loss in float32, whatever their weights are."""
    return {"rtol": 1e-3, "atol": 1e-6} if case == "language model" else {"rtol": 1e-5, "atol": 1e-8}


class SeedFirstStep(transformers.TrainerCallback):
    """The loaders have drawn their random numbers by then."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            torch.manual_seed(3)


class InOrder(SharpnessAwareTrainer):
    def __init__(self, **options: Any) -> None:
        super().__init__(callbacks=[SeedFirstStep()], data_collator=collate, **options)

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def arguments(folder: Path, **options: Any) -> transformers.TrainingArguments:
    settings: dict[str, Any] = dict(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        num_train_epochs=1,
        learning_rate=0.05,
        lr_scheduler_type="linear",
        weight_decay=0.01,
        max_grad_norm=0,
        optim="sgd",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=3,
    )
    return transformers.TrainingArguments(**{**settings, **options})


def collate(samples: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}


def plain(model: nn.Module, samples: Samples, name: str, k: int, max_norm: float | None = None, **options: Any) -> Any:
    """The long hand: groups, linear schedule, loss over all items of the effective batch."""
    trainer = InOrder(model=model, args=arguments(Path("unused")), sharpness=name, train_dataset=samples)
    names = trainer.get_decay_parameter_names(model)
    decay = [p for n, p in model.named_parameters() if n in names]
    rest = [p for n, p in model.named_parameters() if n not in names]
    base = torch.optim.SGD([{"params": decay, "weight_decay": 0.01}, {"params": rest}], lr=0.05)
    opt = lesam.METHODS[name](base, model=model, max_norm=max_norm, **{**METHODS[name], **options})
    batches = [collate(samples[i : i + 2]) for i in range(0, len(samples), 2)]
    steps = windows(batches, k)  # type: ignore[arg-type]
    torch.manual_seed(3)
    model.train()
    for number, window in enumerate(steps):
        for group in base.param_groups:
            group["lr"] = 0.05 * (1 - number / len(steps))
        local = options.get("perturbation") == "local"
        opt.step([_closure(opt, model, batch, [batch] if local else window) for batch in window])
    return opt


def _closure(opt: Any, model: nn.Module, batch: Any, window: Sequence[Any]) -> Any:
    shift = 1 if batch["labels"].ndim > 1 else 0
    items = [int((one["labels"][..., shift:] if shift else one["labels"]).ne(-100).sum()) for one in window]
    own = int((batch["labels"][..., shift:] if shift else batch["labels"]).ne(-100).sum())
    # The library averages the micro-batches; weighting them by items makes that the mean over all items.
    weight = own * len(window) / sum(items)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = model(**batch).loss * weight
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["lesam", "lesamplus", "eigensam"])
def test_equals_the_plain_loop(case: str, name: str, tmp_path: Path) -> None:
    make, sample = CASES[case]
    samples, model, reference = sample(8), make(), make()
    args = arguments(tmp_path)
    InOrder(
        model=model, args=args, train_dataset=samples,
        sharpness=name, sharpness_options=METHODS[name],
    ).train()  # fmt: skip
    plain(reference, samples, name, k=1)
    assert_same(model, reference, **tolerance(case))


@pytest.mark.parametrize("perturbation", ["global", "local"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["lesam", "lesamplus"])
def test_accumulation_and_clipping(case: str, name: str, perturbation: str, tmp_path: Path) -> None:
    """Fourteen samples in batches of two, accumulated by three: the last step has a single batch."""
    make, sample = CASES[case]
    samples, model, reference = sample(14), make(), make()
    args = arguments(tmp_path, gradient_accumulation_steps=3, max_grad_norm=0.3)
    InOrder(
        model=model, args=args, train_dataset=samples,
        sharpness=name, sharpness_options={**METHODS[name], "perturbation": perturbation},
    ).train()  # fmt: skip
    plain(reference, samples, name, k=3, max_norm=0.3, perturbation=perturbation)
    assert_same(model, reference, **tolerance(case))


class StopAfterTwoSteps(transformers.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == 2


def resumable(folder: Path, samples: Samples, settings: dict[str, Any], **options: Any) -> Any:
    """A run for ``assert_resumes``: four steps, or two, a checkpoint, and two more."""

    def run(model: nn.Module, part: str, _: Any) -> None:
        args = arguments(folder / part, save_strategy="steps", save_steps=2, **settings)
        trainer = InOrder(model=model, args=args, train_dataset=samples, **options)
        if part == "first":
            trainer.add_callback(StopAfterTwoSteps())
        trainer.train(resume_from_checkpoint=str(folder / "first" / "checkpoint-2") if part == "second" else None)
        assert trainer.state.global_step == (2 if part == "first" else 4)

    return run


@pytest.mark.parametrize("name", ["lesamplus", "friendlysam"])
def test_save_and_resume_continue_bit_for_bit(name: str, tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 2, "optim": "adamw_torch"}
    run = resumable(tmp_path, text(16), settings, sharpness=name, sharpness_options=METHODS[name])
    assert_resumes(bert, run)


def test_an_optimizer_of_ones_own_and_the_callbacks_and_logs(tmp_path: Path) -> None:
    """The optimizer is taken as it is; what is logged is the clean loss and the norm of the combined gradient."""
    model, reference, samples = vit(), vit(), images(8)
    opt = lesam.LESAM(torch.optim.SGD(model.parameters(), lr=0.05), sigma=0.05, model=model, rho_max=None)
    trainer = InOrder(
        model=model, train_dataset=samples, optimizers=(opt, None),
        args=arguments(tmp_path, logging_steps=1, gradient_accumulation_steps=2, lr_scheduler_type="constant"),
    )  # fmt: skip
    trainer.train()
    plain_opt = lesam.LESAM(torch.optim.SGD(reference.parameters(), lr=0.05), sigma=0.05, model=reference, rho_max=None)
    torch.manual_seed(3)
    reference.train()
    batches = [collate(samples[i : i + 2]) for i in range(0, 8, 2)]
    losses, norms = [], []
    for window in windows(batches, 2):  # type: ignore[arg-type]
        losses.append(float(plain_opt.step([_closure(plain_opt, reference, batch, window) for batch in window])))
        norms.append(float(torch.cat([p.grad.flatten() for p in reference.parameters()]).norm()))
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert [log["loss"] for log in logs] == pytest.approx(losses, rel=1e-3)
    assert [log["grad_norm"] for log in logs] == pytest.approx(norms, rel=1e-3)
    assert_same(model, reference, rtol=1e-6, atol=1e-8)


def test_bf16_equals_autocast(tmp_path: Path) -> None:
    model, reference, samples = bert().float(), bert().float(), text(8)
    options = {"train_dataset": samples, "sharpness": "lesam", "sharpness_options": METHODS["lesam"]}
    args = arguments(tmp_path, bf16=True, lr_scheduler_type="constant", weight_decay=0)
    InOrder(model=model, args=args, **options).train()
    opt = lesam.LESAM(torch.optim.SGD(reference.parameters(), lr=0.05), model=reference, **METHODS["lesam"])
    torch.manual_seed(3)
    reference.train()
    for batch in [collate(samples[i : i + 2]) for i in range(0, 8, 2)]:

        def closure(batch: Any = batch) -> Tensor:
            opt.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = reference(**batch).loss
            loss.backward()
            return loss

        opt.step(closure)
    assert_same(model, reference, rtol=1e-4, atol=1e-5)


def test_a_failure_leaves_the_weights_and_nothing_pending(tmp_path: Path) -> None:
    class Failing(InOrder):
        calls = 0

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == 6:  # two to find out about items, two first passes, and the second micro-batch again
                raise ArithmeticError("in the perturbed pass")
            return super().compute_loss(*args, **kwargs)

    model, reference = bert(), bert()
    trainer = Failing(
        model=model,
        train_dataset=text(4),
        sharpness="lesamplus",
        args=arguments(tmp_path, gradient_accumulation_steps=2),
    )
    with pytest.raises(ArithmeticError):
        trainer.train()
    assert_same(model, reference, rtol=0, atol=0)
    trainer.train()
    assert trainer.state.global_step == 1


def test_what_is_refused(tmp_path: Path) -> None:
    model, args = bert(), arguments(tmp_path)
    with pytest.raises(ValueError, match="one of sam, asam"):
        SharpnessAwareTrainer(model=model, args=args, sharpness="shark")
    with pytest.raises(ValueError, match="give sharpness as well"):
        SharpnessAwareTrainer(model=model, args=args, sharpness_options={"rho": 0.1})
    with pytest.raises(ValueError, match='sharpness="lesam"'):
        SharpnessAwareTrainer(model=model, args=args, train_dataset=text(2), data_collator=collate).train()
    opt = lesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="not both"):
        SharpnessAwareTrainer(model=model, args=args, sharpness="sam", optimizers=(opt, None))


def mean_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Ignores the number of items, as most functions do that people write."""
    return nn.functional.cross_entropy(outputs.logits, labels)


def loss_over_items(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


@pytest.mark.parametrize("perturbation", ["global", "local"])
@pytest.mark.parametrize("function", [mean_loss, loss_over_items])
def test_a_loss_function_that_ignores_the_number_of_items(function: Any, perturbation: str, tmp_path: Path) -> None:
    """Either way the step, and what is logged, is the mean over micro-batches; evaluation is left alone."""
    samples, model, reference = text(8), bert(), bert()
    args = arguments(tmp_path, gradient_accumulation_steps=2, logging_steps=1)
    trainer = InOrder(
        model=model, args=args, train_dataset=samples, compute_loss_func=function,
        sharpness="lesamplus", sharpness_options={**METHODS["lesamplus"], "perturbation": perturbation},
    )  # fmt: skip
    trainer.train()
    plain(reference, samples, "lesamplus", k=2, perturbation=perturbation)
    assert_same(model, reference, **tolerance("bert"))
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert losses == pytest.approx([1.1] * len(losses), abs=0.3)
    trainer.train()  # asks no more
    if function is mean_loss:
        evaluated = trainer.evaluate(samples[:2])["eval_loss"]
        model.eval()
        batch = collate(samples[:2])
        assert evaluated == pytest.approx(float(model(**batch).loss), rel=1e-4)


def test_a_loss_whose_author_says_what_it_is(tmp_path: Path) -> None:
    """``loss_is_scaled_for_ga`` is believed: no forward passes to find out."""

    class Counted(InOrder):
        loss_is_scaled_for_ga = False
        calls = 0

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super().compute_loss(*args, **kwargs)

    model, reference, samples = bert(), bert(), text(4)
    args = arguments(tmp_path, gradient_accumulation_steps=2)
    options = {"sharpness": "lesamplus", "sharpness_options": METHODS["lesamplus"]}
    trainer = Counted(model=model, args=args, train_dataset=samples, compute_loss_func=mean_loss, **options)
    trainer.train()
    assert trainer.calls == 4
    plain(reference, samples, "lesamplus", k=2)
    assert_same(model, reference, **tolerance("bert"))


class LooksBetweenMicroBatches(transformers.TrainerCallback):
    """Evaluates and saves in the middle of a step."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.seen: list[dict[str, Tensor]] = []

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.append({name: value.clone() for name, value in self.trainer.model.state_dict().items()})
        self.trainer.save_model(f"{args.output_dir}/between-{state.global_step}")
        self.trainer._save_checkpoint(self.trainer.model, trial=None)
        self.trainer.evaluate(self.trainer.train_dataset[:2])


@pytest.mark.parametrize("perturbation", ["global", "local"])
@pytest.mark.parametrize("name", ["lesamplus", "msam", "s2sam"])
def test_callbacks_between_micro_batches_see_the_last_step(name: str, perturbation: str, tmp_path: Path) -> None:
    model, reference, samples = bert(dropout=0.0), bert(dropout=0.0), text(12)
    options = {**METHODS[name], "perturbation": perturbation}

    def optimizer(model: nn.Module) -> lesam.SharpnessAware:
        return lesam.METHODS[name](torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model=model, **options)

    looks = LooksBetweenMicroBatches()
    args = arguments(tmp_path, gradient_accumulation_steps=3, lr_scheduler_type="constant", save_only_model=False)
    trainer = InOrder(model=model, args=args, train_dataset=samples, optimizers=(optimizer(model), None))
    looks.trainer = trainer
    trainer.add_callback(looks)
    trainer.train()

    opt, steps = optimizer(reference), []
    reference.train()
    for window in windows([collate(samples[i : i + 2]) for i in range(0, 12, 2)], 3):  # type: ignore[arg-type]
        steps += [{name: value.clone() for name, value in reference.state_dict().items()}] * 2
        local = perturbation == "local"
        opt.step([_closure(opt, reference, batch, [batch] if local else window) for batch in window])
    assert len(looks.seen) == len(steps) == 4
    for seen, expected in zip(looks.seen, steps, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-6, atol=1e-9)
    for number in (0, 1):
        saved = load_file(tmp_path / f"between-{number}" / "model.safetensors")
        torch.testing.assert_close(saved, {key: steps[2 * number][key] for key in saved}, rtol=1e-6, atol=1e-9)
        checkpoint = torch.load(tmp_path / f"checkpoint-{number}" / "optimizer.pt")
        assert checkpoint["param_groups"][0]["lesam_step"] == number
    assert_same(model, reference, rtol=1e-6, atol=1e-9)


def test_several_bases(tmp_path: Path) -> None:
    """Muon for matrices, AdamW for the rest: one perturbation, with accumulation, a schedule and a resumed run."""

    def run(model: nn.Module, part: str, begin: Any) -> None:
        settings = {"gradient_accumulation_steps": 2}
        resumable(tmp_path, text(16), settings, optimizers=(muon_and_adamw("lesamplus", model), None))(
            model, part, begin
        )

    assert_resumes(lambda: bert(dropout=0.0), run)
    model, reference, samples = bert(dropout=0.0), bert(dropout=0.0), text(8)
    args = arguments(tmp_path, gradient_accumulation_steps=2, lr_scheduler_type="constant")
    InOrder(
        model=model, args=args, train_dataset=samples, optimizers=(muon_and_adamw("lesamplus", model), None)
    ).train()
    opt = muon_and_adamw("lesamplus", reference)
    reference.train()
    for window in windows([collate(samples[i : i + 2]) for i in range(0, 8, 2)], 2):  # type: ignore[arg-type]
        opt.step([_closure(opt, reference, batch, window) for batch in window])
    assert_same(model, reference, rtol=1e-5, atol=1e-7)

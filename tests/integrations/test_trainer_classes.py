"""``sharpness_aware`` of other people's Trainers: TRL's, Seq2Seq, sentence-transformers'. Each equals the long hand."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from lesam.integrations.transformers import SharpnessAwareTrainer, sharpness_aware

pytest.importorskip("trl")
pytest.importorskip("sentence_transformers")

import datasets
import sentence_transformers
import trl
from sentence_transformers.sentence_transformer import losses

from . import long_hand
from .language import adapted, llama, sentences, sum_over_tokens, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")
SIGMA = 0.3
LEARNING_RATE = 0.1
OPTIONS = {"sharpness": "lesam", "sharpness_options": {"sigma": SIGMA, "rho_max": None}}


@functools.cache
def recording(trainer: type) -> Any:
    """A user's own subclass, which keeps the micro-batches of each step, made sharpness-aware."""

    class Recording(trainer):  # type: ignore[misc]
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            samples, items = super().get_batch_samples(*args, **kwargs)
            self.steps = [*getattr(self, "steps", []), copy.deepcopy(samples)]
            return samples, items

    return sharpness_aware(Recording)


def arguments(kind: Any, folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = dict(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        optim="sgd",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return kind(**{**settings, **options})


def train_by_hand(model: nn.Module, steps: Sequence[Any], loss: Callable[[Any], Tensor]) -> list[float]:
    """A long-hand step for each window of micro-batches."""
    base = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)
    model.train()
    return [long_hand.step(base, functools.partial(loss, window), SIGMA) for window in steps]


def logged(trainer: Any, key: str) -> list[float]:
    return [row[key] for row in trainer.state.log_history if "loss" in row]


# ---------------------------------------------------------------------- TRL


def split(inputs: dict[str, Tensor]) -> list[Tensor]:
    """The sentences of a micro-batch, padded or packed."""
    rows = []
    for row in range(len(inputs["input_ids"])):
        tokens = inputs["input_ids"][row]
        if "position_ids" in inputs:
            starts = [*(inputs["position_ids"][row] == 0).nonzero().flatten().tolist(), len(tokens)]
            rows += [tokens[a:b] for a, b in itertools.pairwise(starts)]
        else:
            rows.append(tokens[inputs["attention_mask"][row].bool()])
    return rows


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_supervised_fine_tuning_of_adapters(packing: bool, tmp_path: Path) -> None:
    """One mean over the tokens of all micro-batches, whose numbers differ: radius, step, and what is logged."""
    model = adapted()
    reference, start = copy.deepcopy(model), long_hand.trained(model)
    lengths = [3, 12, 4, 5, 9, 3, 7, 6, 14, 3, 5, 8]
    data = datasets.Dataset.from_list([{"input_ids": sentence} for sentence in sentences(lengths)])
    packed = {"packing": True, "max_length": 16, "per_device_train_batch_size": 1} if packing else {}
    trainer = recording(trl.SFTTrainer)(
        model=model,
        args=arguments(trl.SFTConfig, tmp_path, gradient_checkpointing=True, bf16=False, **packed),
        train_dataset=data,
        processing_class=tokenizer(),
        **OPTIONS,
    )
    trainer.train()

    def mean_over_tokens(window: Any) -> Tensor:
        rows = [row for inputs in window for row in split(inputs)]
        return torch.stack([sum_over_tokens(reference, row) for row in rows]).sum() / sum(len(row) - 1 for row in rows)

    counts = [[sum(len(row) - 1 for row in split(inputs)) for inputs in window] for window in trainer.steps]
    assert len(counts) >= 3
    assert any(len(set(window)) > 1 for window in counts), "equal numbers would not tell two means apart"
    clean = train_by_hand(reference, trainer.steps, mean_over_tokens)
    long_hand.assert_same_update(model, reference, start, rel=1e-4)
    assert logged(trainer, "loss") == pytest.approx(clean, rel=1e-4)
    assert logged(trainer, "num_tokens")[-1] == sum(lengths)  # not those of the perturbed pass as well


def log_probability(model: Any, tokens: Tensor, mask: Tensor, completion: Tensor) -> Tensor:
    logits = model(input_ids=tokens, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    return (logits.gather(-1, tokens[:, 1:, None])[..., 0] * completion[:, 1:]).sum(-1)


def test_preferences(tmp_path: Path) -> None:
    """DPO: the mean over pairs, and the rewards that are logged are those of the clean pass."""
    model = llama()
    reference, frozen, start = copy.deepcopy(model), copy.deepcopy(model), long_hand.trained(model)
    words = [" ".join(f"w{i}" for i in row) for row in sentences([3, 5, 4, 2, 6, 3, 4, 5] * 3)]
    pairs = [{"prompt": f"{words[i]} ", "chosen": words[i + 1], "rejected": words[i + 2]} for i in range(0, 24, 3)]
    trainer = recording(trl.DPOTrainer)(
        model=model,
        ref_model=copy.deepcopy(frozen),
        args=arguments(trl.DPOConfig, tmp_path, beta=0.5, bf16=False, gradient_checkpointing=False),
        train_dataset=datasets.Dataset.from_list(pairs),
        processing_class=tokenizer(),
        **OPTIONS,
    )
    trainer.train()
    chosen: list[float] = []

    def loss_of(inputs: dict[str, Tensor]) -> Tensor:
        values = [inputs[key] for key in ("input_ids", "attention_mask", "completion_mask")]
        now = log_probability(reference, *values)
        with torch.no_grad():
            before = log_probability(frozen, *values)
        better, worse = (now - before).chunk(2)
        chosen.append(float(0.5 * better.detach().mean()))
        return -F.logsigmoid(0.5 * (better - worse)).mean()

    clean = train_by_hand(reference, trainer.steps, lambda window: sum(map(loss_of, window)) / len(window))
    long_hand.assert_same_update(model, reference, start, rel=1e-4)
    assert logged(trainer, "loss") == pytest.approx(clean, rel=1e-4)
    first_passes = [chosen[4 * i : 4 * i + 2] for i in range(len(clean))]  # two micro-batches, and both again
    wanted = [sum(values) / 2 for values in first_passes]
    assert logged(trainer, "rewards/chosen") == pytest.approx(wanted, rel=1e-3, abs=1e-6)


def test_trainers_that_generate_their_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"SharpnessAwareGRPOTrainer generates .*\(SFTTrainer"):
        sharpness_aware(trl.GRPOTrainer)(
            model=llama(),
            args=arguments(trl.GRPOConfig, tmp_path, num_generations=2, bf16=False),
            train_dataset=datasets.Dataset.from_list([{"prompt": "w3 w4"}] * 4),
            processing_class=tokenizer(),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            **OPTIONS,
        )


# ---------------------------------------------------------------------- others


def test_sequence_to_sequence(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config)
    reference, start = copy.deepcopy(model), long_hand.trained(model)
    sources, targets = sentences([5] * 8), sentences([3, 7, 4, 4, 6, 2, 5, 8])
    data = [{"input_ids": a, "labels": b} for a, b in zip(sources, targets, strict=True)]
    trainer = recording(transformers.Seq2SeqTrainer)(
        model=model,
        args=arguments(transformers.Seq2SeqTrainingArguments, tmp_path),
        train_dataset=data,
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer(), model=model),
        **OPTIONS,
    )
    trainer.train()

    def mean_over_micro_batches(window: Any) -> Tensor:  # T5 divides by the tokens of its own micro-batch
        outputs = [reference(input_ids=one["input_ids"], labels=one["labels"]).logits for one in window]
        means = [
            F.cross_entropy(logits.flatten(0, 1), one["labels"].flatten(), ignore_index=-100)
            for logits, one in zip(outputs, window, strict=True)
        ]
        return torch.stack(means).mean()

    clean = train_by_hand(reference, trainer.steps, mean_over_micro_batches)
    long_hand.assert_same_update(model, reference, start, rel=1e-4)
    assert logged(trainer, "loss") == pytest.approx(clean, rel=1e-4)
    assert isinstance(trainer.predict(data[:2], max_length=4).predictions, tuple)


def test_sentence_embeddings(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, initializer_range=0.3,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    tokenizer().save_pretrained(tmp_path / "bert")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "bert"), device="cpu")
    reference, start = copy.deepcopy(model), long_hand.trained(model)
    words = [" ".join(f"w{i}" for i in row) for row in sentences([3, 6, 4, 5] * 4)]
    pairs = [{"a": words[i], "b": words[i + 1], "score": (i % 4) / 4} for i in range(0, 16, 2)]
    trainer = recording(sentence_transformers.SentenceTransformerTrainer)(
        model=model,
        args=arguments(sentence_transformers.SentenceTransformerTrainingArguments, tmp_path),
        train_dataset=datasets.Dataset.from_list(pairs),
        loss=losses.CosineSimilarityLoss(model),
        **OPTIONS,
    )
    trainer.train()

    def mean_of_squares(window: Any) -> Tensor:
        values = []
        for one in window:
            a, b = (
                reference({key.removeprefix(name): value for key, value in one.items() if key.startswith(name)})
                for name in ("a_", "b_")
            )
            cosine = F.cosine_similarity(a["sentence_embedding"], b["sentence_embedding"])
            values.append(F.mse_loss(cosine, one["label"].float()))
        return torch.stack(values).mean()

    clean = train_by_hand(reference, trainer.steps, mean_of_squares)
    long_hand.assert_same_update(model, reference, start, rel=1e-4)
    assert logged(trainer, "loss") == pytest.approx(clean, rel=1e-3)


# ---------------------------------------------------------------------- the classes themselves


def test_the_classes() -> None:
    made = sharpness_aware(trl.SFTTrainer)
    assert made is sharpness_aware(trl.SFTTrainer)
    assert issubclass(made, SharpnessAwareTrainer)
    assert issubclass(made, trl.SFTTrainer)
    assert sharpness_aware(made) is made
    assert sharpness_aware(transformers.Trainer) is SharpnessAwareTrainer
    with pytest.raises(ValueError, match=r"derived from transformers\.Trainer, got <class 'torch\.nn\.\S*Linear'>"):
        sharpness_aware(nn.Linear)  # type: ignore[arg-type]

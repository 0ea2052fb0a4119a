"""sentence-transformers: embeddings trained with LE-SAM, by making SentenceTransformerTrainer sharpness-aware.

The encoder is tiny and randomly initialised, and the text is numbers, so nothing is downloaded. Two sentences are alike
if their words come from the same half of the vocabulary.

Run: python examples/sentence_embeddings.py
"""

import tempfile
from pathlib import Path

import datasets
import sentence_transformers
import tokenizers
import torch
import transformers
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

from lesam.integrations.transformers import sharpness_aware

torch.manual_seed(0)
vocabulary = {"<pad>": 0, **{f"w{i}": i for i in range(1, 21)}}
words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")


def sentence(half: int) -> str:
    return " ".join(f"w{10 * half + int(i)}" for i in torch.randint(1, 11, (4,)))


def pair(number: int) -> dict[str, object]:
    same = number % 2
    return {"a": sentence(0), "b": sentence(1 - same), "score": float(same)}


config = transformers.BertConfig(
    vocab_size=21, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)

with tempfile.TemporaryDirectory() as folder:
    encoder = Path(folder) / "encoder"
    transformers.BertModel(config).save_pretrained(encoder)
    tokenizer.save_pretrained(encoder)
    model = sentence_transformers.SentenceTransformer(str(encoder), device="cpu")
    trainer = sharpness_aware(sentence_transformers.SentenceTransformerTrainer)(
        model=model,
        args=sentence_transformers.SentenceTransformerTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,  # one perturbation, by the mean over both micro-batches
            learning_rate=1e-2,
            num_train_epochs=6,
            logging_steps=6,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=datasets.Dataset.from_list([pair(number) for number in range(96)]),
        loss=CosineSimilarityLoss(model),
        sharpness="lesam",
        sharpness_options={"sigma": 0.02, "rho_max": 0.2},
    )
    trainer.train()

one, other, different = model.encode([sentence(0), sentence(0), sentence(1)])
alike, unlike = model.similarity(one, other).item(), model.similarity(one, different).item()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
assert losses[-1] < 0.2 * losses[0], losses
assert alike > unlike + 0.5, (alike, unlike)
print(f"clean loss {losses[0]:.3f} -> {losses[-1]:.3f}; similarity {alike:.2f} within a half, {unlike:.2f} between")

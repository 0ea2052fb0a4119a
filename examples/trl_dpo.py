"""TRL: preferences (DPO) with LE-SAM, by making DPOTrainer sharpness-aware.

The model is tiny and randomly initialised, and the text is numbers, so nothing is downloaded. Preferred answers count
upwards from the prompt, the others are the same words backwards.

Run: python examples/trl_dpo.py
"""

import copy
import tempfile

import datasets
import tokenizers
import torch
import transformers
import trl

from lesam.integrations.transformers import sharpness_aware

torch.manual_seed(0)
vocabulary = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 20)}}
words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def pair(start: int) -> dict[str, str]:
    upwards = [f"w{2 + (start + i) % 18}" for i in range(4)]
    return {"prompt": f"{upwards[0]} ", "chosen": " ".join(upwards[1:]), "rejected": " ".join(upwards[:0:-1])}


model = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.2,
    )
)

with tempfile.TemporaryDirectory() as folder:
    trainer = sharpness_aware(trl.DPOTrainer)(
        model=model,
        ref_model=copy.deepcopy(model),  # never perturbed
        args=trl.DPOConfig(
            output_dir=folder,
            beta=0.5,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,  # one perturbation, by the mean over the pairs of both micro-batches
            learning_rate=5e-3,
            num_train_epochs=4,
            logging_steps=3,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=datasets.Dataset.from_list([pair(start) for start in range(48)]),
        processing_class=tokenizer,
        sharpness="lesam",
        sharpness_options={"sigma": 0.05, "rho_max": 0.2},
    )
    trainer.train()

rows = [entry for entry in trainer.state.log_history if "loss" in entry]
# Losses and rewards are those of the clean pass.
assert rows[-1]["loss"] < 0.5 * rows[0]["loss"], rows
assert rows[-1]["rewards/accuracies"] == 1.0, rows
print(f"clean loss {rows[0]['loss']:.3f} -> {rows[-1]['loss']:.3f}, the preferred answer wins in all pairs")

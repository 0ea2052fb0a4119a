"""TRL: fine-tune low-rank adapters of a language model with LE-SAM, by making SFTTrainer sharpness-aware.

The model is tiny and randomly initialised, and the text is numbers, so nothing is downloaded.

Run: python examples/trl_sft.py
"""

import tempfile

import datasets
import peft
import tokenizers
import torch
import transformers
import trl

from lesam.integrations.transformers import sharpness_aware

torch.manual_seed(0)
vocabulary = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 20)}}
words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
# Counting upwards, in sentences of different lengths.
sentences = [[2 + (start + i) % 18 for i in range(3 + start % 7)] for start in range(128)]

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
    trainer = sharpness_aware(trl.SFTTrainer)(
        model=model,
        args=trl.SFTConfig(
            output_dir=folder,
            packing=True,
            max_length=16,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,  # one perturbation, by the mean over the tokens of both micro-batches
            gradient_checkpointing=True,
            learning_rate=3e-2,
            num_train_epochs=8,
            logging_steps=6,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=datasets.Dataset.from_list([{"input_ids": sentence} for sentence in sentences]),
        processing_class=tokenizer,
        peft_config=peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
        sharpness="lesam",
        sharpness_options={"sigma": 0.01, "rho_max": 0.1},
    )
    frozen = {name: value.clone() for name, value in trainer.model.named_parameters() if not value.requires_grad}
    trainer.train()

parameters = dict(trainer.model.named_parameters())
assert all(torch.equal(parameters[name], value) for name, value in frozen.items())
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
assert losses[-1] < 0.8 * losses[0], losses
print(f"clean loss a token {losses[0]:.3f} -> {losses[-1]:.3f}, adapters only")

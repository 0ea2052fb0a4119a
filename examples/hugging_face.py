"""Hugging Face: fine-tune a BERT with LE-SAM by changing the Trainer's class and naming the method.

The model is tiny and randomly initialised, so nothing is downloaded.

Run: python examples/hugging_face.py
"""

import tempfile

import torch
import transformers

from lesam.integrations.transformers import SharpnessAwareTrainer

torch.manual_seed(0)
tokens = torch.randint(2, 20, (256, 6))
dataset = [{"input_ids": row, "labels": (row[0] > 10).long()} for row in tokens]

model = transformers.BertForSequenceClassification(
    transformers.BertConfig(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        num_labels=2,
    )
)

with tempfile.TemporaryDirectory() as folder:
    trainer = SharpnessAwareTrainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,  # one perturbation for both micro-batches
            max_grad_norm=1.0,  # of the combined gradient
            learning_rate=1e-2,
            num_train_epochs=8,
            logging_steps=8,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=dataset,
        sharpness="lesam",
        sharpness_options={"sigma": 0.01, "rho_max": 0.1},
    )
    trainer.train()

losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
assert losses[-1] < 0.5 * losses[0], losses
print(f"clean loss {losses[0]:.3f} -> {losses[-1]:.3f}")

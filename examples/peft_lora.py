"""PEFT: LE-SAM on low-rank adapters over a frozen language model, then merge them.

The model is tiny and randomly initialised, so nothing is downloaded.

Run: python examples/peft_lora.py
"""

import peft
import torch
import transformers

import lesam

torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=20,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    initializer_range=0.2,
)
lora = peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")  # use_dora=True for DoRA
model = peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model.train()

base = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
opt = lesam.LESAM(base, sigma=0.01, rho_max=0.1, model=model)


def closure_of(tokens):
    def closure():
        opt.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return loss

    return closure


losses = []
for _ in range(60):
    starts = torch.randint(0, 20, (2, 8, 1))
    micro_batches = (starts + torch.arange(8)) % 20  # counting upwards
    losses.append(float(opt.step([closure_of(tokens) for tokens in micro_batches]).detach()))

model.eval()
with torch.no_grad():
    before = model(input_ids=micro_batches[0]).logits
    after = model.merge_and_unload()(input_ids=micro_batches[0]).logits
assert losses[-1] < 0.5 * losses[0], losses
torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)
print(f"clean loss {losses[0]:.3f} -> {losses[-1]:.3f}; merged, the model predicts the same")

"""Small language models made from a configuration, words for them, and adapters: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import peft
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

WORDS = 20


def llama(**options: Any) -> Any:
    """Two layers, sixteen wide."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
        **options,
    )
    return transformers.LlamaForCausalLM(config)


def adapted(model: nn.Module | None = None, **options: Any) -> Any:
    """With low-rank adapters on every linear layer. Both factors start away from zero, so that both have gradients."""
    torch.manual_seed(1)
    settings: dict[str, Any] = {"r": 2, "lora_alpha": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    settings |= {"init_lora_weights": False, **options}
    return peft.get_peft_model(llama() if model is None else model, peft.LoraConfig(**settings))


def tokenizer() -> Any:
    """A word for each token: ``w3``, ``w4``, ..."""
    vocabulary = {"<pad>": 0, "<bos>": 1, "<eos>": 2, **{f"w{i}": i for i in range(3, WORDS)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)


def sentences(lengths: list[int]) -> list[list[int]]:
    """Token numbers, a sentence of each length."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(3, WORDS, (length,), generator=generator).tolist() for length in lengths]


def sum_over_tokens(model: Any, sentence: list[int] | Tensor) -> Tensor:
    """The negative log-likelihood of a sentence after its first word, summed."""
    tokens = torch.as_tensor(sentence)
    log_probabilities = model(input_ids=tokens[None, :]).logits[0, :-1].log_softmax(-1)
    return -log_probabilities.gather(-1, tokens[1:, None]).sum()

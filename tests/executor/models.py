"""Small checkpoints of our own and what Hugging Face makes of them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

_SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,  # large, so that tokens vary and depend on the whole context
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def _heads(num_heads: int, num_kv_heads: int, head_dim: int) -> dict[str, int]:
    return {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads, "head_dim": head_dim}


CONFIGS: dict[str, PretrainedConfig] = {
    "llama, untied, groups of 2": LlamaConfig(**_SMALL, **_heads(4, 2, 16)),
    "llama, tied, no groups": LlamaConfig(**_SMALL, **_heads(4, 4, 16), tie_word_embeddings=True),
    "qwen2, tied, groups of 4": Qwen2Config(**_SMALL, **_heads(4, 1, 16), tie_word_embeddings=True),
    "qwen2, untied, groups of 2": Qwen2Config(**_SMALL, **_heads(4, 2, 16), tie_word_embeddings=False),
    "qwen3, tied, groups of 3": Qwen3Config(**_SMALL, **_heads(6, 2, 24), tie_word_embeddings=True),
    "qwen3, untied, groups of 2": Qwen3Config(**_SMALL, **_heads(4, 2, 32), tie_word_embeddings=False),
    "mistral, window of 24": MistralConfig(**_SMALL, **_heads(4, 2, 16), sliding_window=24),
    # The caps are low and the query scale unusual, so that leaving one of them out gives other tokens.
    "gemma2, soft caps, every other layer with a window of 24": Gemma2Config(
        **_SMALL,
        **_heads(4, 2, 16),
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"],
        attn_logit_softcapping=2.0,
        final_logit_softcapping=15.0,
        query_pre_attn_scalar=9,
        tie_word_embeddings=False,
    ),
    "gemma3, every other layer with a window of 24": Gemma3TextConfig(
        **_SMALL,
        **_heads(4, 1, 16),
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=9,
        tie_word_embeddings=False,
    ),
}


def saved_checkpoint(folder: Any, config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Save random weights as safetensors; gives the model that Hugging Face runs, with its own attention."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            copy.deepcopy(config),
            attn_implementation="eager",  # sdpa knows no soft cap
        ).eval()
    model.save_pretrained(folder)
    return model


def generate(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy continuation by Hugging Face, one request alone."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False
    )
    return out[0, len(prompt) :].tolist()

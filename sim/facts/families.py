"""What distinguishes the decoder families when parameters are counted.

Taken from the model classes of Hugging Face transformers; a model type that is not listed here is refused, since its
layers are not known (a hybrid or latent attention has another KV cache altogether).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Family:
    """How the layers of one ``model_type`` are built."""

    gated_mlp: bool = True
    """Gate and up projections (three matrices), or one up projection (two)."""
    tied: bool = False
    """What transformers assumes of ``tie_word_embeddings`` where the config says nothing."""
    qkv_bias: bool | str = False
    """Whether Q, K and V have biases, or the field that says so."""
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    norms_a_layer: int = 2
    norm_bias: bool = False
    qk_norm: bool = False
    """A norm of one head's size for Q and one for K."""
    learned_positions: int | None = None
    """Rows beyond the context length of a learned position table; None with rotary positions."""
    lm_head_bias: bool = False
    wide_default: bool = False
    """Whether the MLP is four times as wide as the model where the config says nothing."""
    experts: Literal["none", "all", "qwen"] = "none"
    """No experts; ``intermediate_size`` an expert (Mixtral); ``moe_intermediate_size`` an expert (Qwen)."""


def _plain(*, norms_a_layer: int = 2, tied: bool = False, positions: int | None = None, wide: bool = False) -> Family:
    """Two matrices in the MLP and a bias everywhere."""
    return Family(
        gated_mlp=False,
        tied=tied,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norms_a_layer=norms_a_layer,
        norm_bias=True,
        learned_positions=positions,
        lm_head_bias=norms_a_layer == 1,
        wide_default=wide,
    )


_LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "smollm3": replace(_LLAMA, tied=True),
    "mistral": Family(),
    "mixtral": Family(experts="all"),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True, experts="qwen"),
    "qwen3": replace(_LLAMA, mlp_bias=False, qk_norm=True),
    "qwen3_moe": replace(_LLAMA, mlp_bias=False, qk_norm=True, experts="qwen"),
    "gemma": replace(_LLAMA, mlp_bias=False, tied=True),
    "gemma2": replace(_LLAMA, mlp_bias=False, tied=True, norms_a_layer=4),
    "gemma3_text": replace(_LLAMA, mlp_bias=False, tied=True, norms_a_layer=4, qk_norm=True),
    "phi3": Family(),
    "phi": _plain(norms_a_layer=1),
    "opt": _plain(tied=True, positions=2),
    "gpt2": _plain(tied=True, positions=0, wide=True),
    "gpt_bigcode": _plain(tied=True, positions=0, wide=True),
    "gpt_neox": _plain(),
    "starcoder2": _plain(tied=True),
}

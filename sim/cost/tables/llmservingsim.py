"""Operator times in LLMServingSim's layout: ``tpN/{dense,per_sequence,attention,skew,moe}.csv`` and ``meta.yaml``.

Source of the layout: the project ``casys-kaist/LLMServingSim``, ``profiler/README.md``. Times are microseconds of one
call on one rank. ``dense`` and ``attention`` are of one layer, ``layernorm`` is called twice a layer; embedding and
final norm once a pass; ``per_sequence`` once a pass by rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .csv_table import Table, TableError, read_csv
from .lines import Line, total
from .mixed_attention import AttentionRows, AxisErrors, MixedAttention, attention_rows, choose_scales
from .skew import Skew, choose_skew, skew_rows

ONCE_A_PASS = ("embedding", "final_layernorm", "final_norm", "norm_final")
CALLS_A_LAYER = {"layernorm": 2}
HEAD = ("lm_head", "sampler")
FILES = ("dense", "per_sequence", "attention")


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One tensor-parallel degree of a profile, read; nothing composed yet. Times in seconds."""

    folder: Path
    tensor_parallel: int
    degrees: tuple[int, ...]
    """Degrees of which the profile has a folder."""
    meta: dict[str, Any]
    layers: dict[str, Line]
    """Per call, by tokens."""
    head: dict[str, Line]
    """Per call, by rows."""
    attention: AttentionRows
    scale_errors: dict[str, AxisErrors]
    skew: Skew | None
    skew_errors: dict[str, float]
    mixed: MixedAttention
    """Of one layer."""
    experts: Table | None
    notes: list[str] = field(default_factory=list)
    """What was missing and what was done without it."""

    def dense(self, num_layers: int) -> Line:
        """All layers by tokens, without attention, experts and all-reduces."""
        return total(
            (line, 1 if name in ONCE_A_PASS else num_layers * CALLS_A_LAYER.get(name, 1))
            for name, line in self.layers.items()
        )

    def rows(self) -> Line:
        """Final projection and sampler by rows."""
        return total((line, 1) for line in self.head.values())


def is_layer_profile(folder: Path) -> bool:
    """Whether ``folder`` looks like one."""
    return bool(_degrees(folder)) or ((folder / "attention.csv").is_file() and (folder / "dense.csv").is_file())


def read_layer_profile(folder: Path, tensor_parallel: int | None = None) -> LayerProfile:
    """Read ``folder`` (or one of its ``tpN``). Raises ``TableError`` with the file and what is wrong or missing."""
    degrees = _degrees(folder)
    if not degrees and (match := re.fullmatch(r"tp(\d+)", folder.name)):
        degrees, folder = {int(match[1]): folder}, folder.parent
    elif not degrees:
        degrees = {1: folder}
    degree = min(degrees) if tensor_parallel is None else tensor_parallel
    if degree not in degrees:
        raise TableError(
            f"{folder} has no times for tensor_parallel_size {degree}: it holds "
            f"{', '.join(f'tp{d}' for d in sorted(degrees))}."
        )
    notes: list[str] = []
    place = degrees[degree]
    found = {name: place / f"{name}.csv" for name in FILES}
    missing = [str(path) for path in found.values() if not path.is_file()]
    if missing:
        raise TableError(f"The profile lacks {' and '.join(missing)}: an iteration cannot be composed without it.")
    attention = attention_rows(read_csv(found["attention"], ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")))
    scales, scale_errors = choose_scales(attention)
    skew, skew_errors = _read_skew(place / "skew.csv", notes)
    return LayerProfile(
        folder=place,
        tensor_parallel=degree,
        degrees=tuple(sorted(degrees)),
        meta=read_meta(folder, notes),
        layers=_lines(read_csv(found["dense"], ("layer", "tokens", "time_us")), "tokens"),
        head=_lines(read_csv(found["per_sequence"], ("layer", "sequences", "time_us")), "sequences"),
        attention=attention,
        scale_errors=scale_errors,
        skew=skew,
        skew_errors=skew_errors,
        mixed=_attention(found["attention"], attention, scales, skew),
        experts=read_csv(place / "moe.csv") if (place / "moe.csv").is_file() else None,
        notes=notes,
    )


def read_meta(folder: Path, notes: list[str]) -> dict[str, Any]:
    """``meta.yaml`` of a profile, or what says that there is none."""
    import yaml

    path = next((p for p in (folder / "meta.yaml", folder / "meta.yml", folder / "meta.json") if p.is_file()), None)
    if path is None:
        notes.append(f"no meta.yaml in {folder}: GPU, model and versions of the profile are not known from it")
        return {}
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise TableError(f"{path} is not YAML ({' '.join(str(error).split())[:120]}).") from error
    if not isinstance(read, dict):
        raise TableError(f"{path} holds no fields: is it the profile's meta.yaml?")
    return read


def _degrees(folder: Path) -> dict[int, Path]:
    try:
        children = sorted(folder.iterdir())
    except OSError:
        return {}
    matches = ((re.fullmatch(r"tp(\d+)", child.name), child) for child in children if child.is_dir())
    return {int(match[1]): child for match, child in matches if match}


def _lines(table: Table, by: str) -> dict[str, Line]:
    points: dict[str, list[tuple[float, float]]] = {}
    sizes, times = table.numbers(by).tolist(), (table.numbers("time_us") * 1e-6).tolist()
    for name, size, seconds in zip(table.text("layer"), sizes, times, strict=True):
        if size < 0 or seconds < 0:
            raise TableError(
                f"{table.path}: {name} at {by} {size:g} takes {seconds * 1e6:g} us: times are not negative."
            )
        points.setdefault(name.strip(), []).append((size, seconds))
    return {name: Line(rows) for name, rows in sorted(points.items())}


def _read_skew(path: Path, notes: list[str]) -> tuple[Skew | None, dict[str, float]]:
    if not path.is_file():
        notes.append(f"no {path.name} in {path.parent}: decodes of unequal contexts count as their mean")
        return None, {}
    rows = skew_rows(read_csv(path, ("n", "nb", "kvs", "t_mean_us", "t_max_us", "t_skew_us")))
    return choose_skew(rows)


def _attention(path: Path, rows: AttentionRows, scales: Any, skew: Skew | None) -> MixedAttention:
    try:
        return MixedAttention(rows, 1, scales, skew)
    except ValueError as error:
        raise TableError(f"{path}: {error}.") from error

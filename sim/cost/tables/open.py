"""From a folder of operator tables, whatever its layout, to a profile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from .aiconfigurator import is_aiconfigurator
from .composed import Operators, TableProfile
from .csv_table import TableError
from .experts import expert_line
from .from_kernels import from_kernels
from .from_vidur import from_vidur
from .lines import Line, total
from .llmservingsim import LayerProfile, is_layer_profile, read_layer_profile
from .mixed_attention import MixedAttention
from .pieces import Wanted, all_reduces, digest_of, implied_device, model_of, replace_dtype
from .vidur import is_vidur

MOST_NAMED = 6
"""Profiles named where a folder holds several."""


def open_tables(folder: str | Path, wanted: Wanted | None = None) -> TableProfile:
    """The tables in ``folder`` as a profile. Raises ``TableError`` (or ``FactsError`` for a model nobody knows) with
    what is missing.
    """
    place = Path(folder)
    wanted = wanted or Wanted()
    if not place.is_dir():
        raise TableError(f"{place} is not a folder: give the folder of a GPU's operator tables.")
    place = _inner(place)
    if is_layer_profile(place):
        return _from_layers(place, wanted)
    if is_vidur(place):
        return from_vidur(place, wanted)
    if is_aiconfigurator(place):
        return from_kernels(place, wanted)
    raise TableError(
        f"{place} holds no operator tables of a known layout: tpN/dense.csv, per_sequence.csv and attention.csv "
        f"(LLMServingSim), mlp.csv and attention.csv (Vidur, Frontier), or gemm, context_attention and "
        f"generation_attention tables (AIConfigurator)."
    )


def _inner(folder: Path) -> Path:
    """``folder``, or the only one within four levels below it that holds tables of a known layout (LLMServingSim has
    ``GPU/owner/model/variant``, Vidur ``GPU/owner/model``). Raises ``TableError`` that names them if there are several.
    """
    if _has_tables(folder):
        return folder
    levels = ("*", "*/*", "*/*/*", "*/*/*/*")
    below = [path for level in levels for path in folder.glob(level) if path.is_dir() and _has_tables(path)]
    found = sorted(
        path for path in below if not any(parent in below for parent in path.parents)
    )  # tp1 is a part of one
    if len(found) > 1:
        named = ", ".join(str(path.relative_to(folder)) for path in found[:MOST_NAMED])
        rest = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        raise TableError(
            f"{folder} holds {len(found)} profiles below it ({named}{rest}): give one of them, such as {found[0]}."
        )
    return found[0] if found else folder


def _has_tables(folder: Path) -> bool:
    return is_layer_profile(folder) or is_vidur(folder) or is_aiconfigurator(folder)


def follow(pointer: Path) -> TableProfile:
    """The tables that a file written by ``TableProfile.save`` points to. Raises ``TableError`` if they have gone or
    changed.
    """
    try:
        said = json.loads(pointer.read_text(encoding="utf-8"))
        folder, wanted = Path(said["folder"]), Wanted(**{name: said[name] for name in ("model", "tensor_parallel")})
        wanted = replace(wanted, enforce_eager=said.get("enforce_eager") is True)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TableError(f"{pointer} does not say where its operator tables are ({str(error)[:60]}).") from error
    found = open_tables(folder, wanted)
    if found.hash() != said.get("hash"):
        raise TableError(
            f"The tables in {folder} are not those of {pointer} any more: predict again into a new folder."
        )
    return found


def _from_layers(folder: Path, wanted: Wanted) -> TableProfile:
    read = read_layer_profile(folder, wanted.tensor_parallel)
    config = model_of(folder, read.meta, wanted)
    notes = list(read.notes)
    layers = config.num_layers
    dense = [(read.dense(layers), 1.0)]
    if read.experts is not None:
        dense.append((expert_line(read.experts, config), float(layers)))
    elif config.num_experts:
        notes.append(f"no moe.csv in {read.folder}: the experts of {config.name} are left out")
    dense += all_reduces(config, read.tensor_parallel, (read.folder, read.folder.parent), wanted, notes)
    head = read.rows() if read.head else Line([(0.0, 0.0)])
    notes += _choices(read)
    skew = read.skew
    attention = MixedAttention(read.attention, layers, read.mixed.scales, skew)
    operators = Operators(total(dense), attention, head, needs_spread=skew is not None)
    facts = replace_dtype(config, read.meta.get("variant"))
    return TableProfile(
        source=str(folder),
        layout="LLMServingSim",
        tensor_parallel=read.tensor_parallel,
        model=facts.facts(),
        device=implied_device(str(read.meta.get("gpu") or read.meta.get("hardware") or folder.name), facts, operators),
        block_size=_block_size(read.meta),
        operators=operators,
        digest=digest_of(sorted(read.folder.glob("*.csv")), facts, wanted),
        notes=tuple(notes),
        provenance={
            name: str(read.meta[name]) for name in ("model", "vllm_version", "profiled_at") if name in read.meta
        },
        enforce_eager=wanted.enforce_eager,
    )


def _choices(read: LayerProfile) -> list[str]:
    """What was chosen on held-out rows of the profile."""
    said = []
    if read.scale_errors:
        used = "/".join(read.mixed.scales)
        others = ", ".join(
            f"{name} {e.median_percent:.1f} % (bias {e.bias_percent:+.1f} %)" for name, e in read.scale_errors.items()
        )
        said.append(f"attention axes {used}: the least median error on held-out rows of {others}")
    else:
        said.append("attention axes linear: the table has no rows to hold out")
    if read.skew_errors:
        others = ", ".join(f"{name} {error:.1f} %" for name, error in read.skew_errors.items())
        used = "none" if read.skew is None else "α(" + ", ".join(read.skew.axes) + ")"
        said.append(f"unequal contexts by {used}: the least mean error on held-out mixes of {others}")
    return said


def _block_size(meta: Mapping[str, object]) -> int:
    engine = meta.get("engine_effective")
    size = engine.get("block_size") if isinstance(engine, dict) else None
    return size if isinstance(size, int) and size >= 1 else 16

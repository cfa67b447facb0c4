"""Tables of exact batches and what they took: ``vllm bench forward`` JSON, and ``fpm_forward_perf`` rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .features import Features
from .timings import Timings, TimingsBuilder, TimingsError

FPM_KEYS = ("workload_kind", "batch_size", "total_prefill_tokens", "total_kv_read_tokens")
FPM_CELL = (
    "cell_id",
    "model_path",
    "system",
    "backend",
    "backend_version",
    "weight_quantization",
    "gemm_quant_mode",
    "moe_quant_mode",
    "fmha_quant_mode",
    "comm_quant_mode",
    "kv_cache_dtype",
    "tp",
    "pp",
    "dp",
    "moe_tp",
    "moe_ep",
    "cp",
    "moe_backend",
    "attention_backend",
    "enable_wideep",
    "enable_eplb",
)
"""What tells one setting of a table from another; with ``FPM_KEYS``, ``partition_policy`` and ``latency_ms`` a row."""
MOST_TOKENS = 10**9


def read_bench_forward(path: str | Path) -> Timings:
    """``vllm bench forward --output-json``: one case an exact batch, ``median_us`` the forward in a one-shot CUDA graph
    (no capture sizes, padding or host in it). Raises ``TimingsError``.
    """
    path = Path(path)
    cases = _json(path)
    if not isinstance(cases, list):
        raise TimingsError(f"{path} is no list of cases: give what vllm bench forward --output-json wrote.")
    builder = TimingsBuilder()
    spreads = []
    longest = 0
    for case in cases:
        try:
            features, length = _batch_features(case["requests"])
            builder.add(features, _number(case["median_us"]) / 1e6)
            longest = max(longest, length)
            spreads.append(_number(case["ranks"][0]["latency_us"]["sample_spread_pct"]))
        except _Speculative:
            builder.left_out["with draft tokens"] += 1
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            builder.left_out["cannot be read"] += 1
    noise = float(np.median(spreads)) if spreads else float("nan")
    notes = ("one-shot CUDA graphs: capture sizes, padding and the host's time are not in these times",)
    built = builder.build(path.name, notes, noise)
    return Timings(built.features, built.seconds, built.left_out, built.notes, noise, longest or None)


def read_fpm(path: str | Path, cell: str | None = None) -> Timings:
    """``fpm_forward_perf`` (CSV or Parquet): prefill rows are ``batch_size`` chunks of equal size over equal prefixes,
    decode rows as many sequences that read ``total_kv_read_tokens`` in all. ``cell`` names the ``cell_id`` where a
    table holds several. Raises ``TimingsError``.
    """
    path = Path(path)
    rows = _one_cell(path, list(_table(path)), cell)
    builder = TimingsBuilder()
    for row in rows:
        try:
            features = _fpm_features(row)
            if features is None:
                builder.left_out[f"of workload kind {str(row['workload_kind'])[:20]!r}"] += 1
            else:
                builder.add(features, _number(row["latency_ms"]) / 1e3)
        except (KeyError, TypeError, ValueError, OverflowError):
            builder.left_out["cannot be read"] += 1
    return builder.build(path.name, ("whole forwards of balanced batches: the host's time is not in these times",))


class _Speculative(Exception):
    """A batch that verifies draft tokens, which we do not model."""


def _batch_features(requests: Iterable[Mapping[str, Any]]) -> tuple[Features, int]:
    """Features of an exact batch, and its longest context."""
    decodes = kv_tokens = prefills = prefill_tokens = longest = 0
    work = 0.0
    for request in requests:
        query, length = _tokens(request["query_len"]), _tokens(request["kv_len"])
        if request.get("num_draft_tokens"):
            raise _Speculative
        if not 0 < query <= length:
            raise ValueError("a query longer than its context")
        prefix = length - query
        longest = max(longest, length)
        if query == 1 and prefix:
            decodes += 1
            kv_tokens += prefix
        else:
            prefills += 1
            prefill_tokens += query
            work += query * (prefix + query / 2)
    seqs = decodes + prefills
    tokens = decodes + prefill_tokens
    return Features(tokens, decodes, kv_tokens, prefills, prefill_tokens, work, seqs, 0, seqs), longest


def _fpm_features(row: Mapping[str, Any]) -> Features | None:
    """Features of one row; None if it is neither a prefill nor a decode."""
    kind = str(row["workload_kind"]).lower()
    batch, prefill, kv_tokens = (_tokens(row[name]) for name in FPM_KEYS[1:])
    if batch < 1:
        raise ValueError("an empty batch")
    if kind in ("decode", "generation"):
        return Features(batch, batch, kv_tokens, 0, 0, 0.0, batch, 0, batch)
    if kind in ("prefill", "context"):
        work = prefill * (kv_tokens / batch + prefill / batch / 2)
        return Features(prefill, 0, 0, batch, prefill, work, batch, 0, batch)
    return None


def _one_cell(path: Path, rows: list[dict[str, Any]], cell: str | None) -> list[dict[str, Any]]:
    """The rows of one setting: a law is of one model on one machine."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(str(row.get("cell_id", "")), []).append(row)
    if cell is not None and cell not in found:
        raise TimingsError(f"{path} holds no cell {cell[:60]!r}; it holds {_listed(found)}.")
    if cell is None and len(found) > 1:
        raise TimingsError(f"{path} holds {len(found)} cells: choose one with --cell; they are {_listed(found)}.")
    return found[cell] if cell is not None else rows


def _listed(found: Mapping[str, list[dict[str, Any]]]) -> str:
    names = sorted(found)[:5]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(f"{name[:60]!r} ({len(found[name])} rows)" for name in names) + more


def _table(path: Path) -> Iterable[dict[str, Any]]:
    import pandas as pd
    import pyarrow as pa

    try:
        if path.read_bytes()[:4] == b"PAR1":
            frame = pd.read_parquet(path)
        else:
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, on_bad_lines="skip")
    except OSError as error:
        raise TimingsError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (ValueError, pa.ArrowException, pd.errors.ParserError, MemoryError) as error:
        raise TimingsError(f"{path} is no table of CSV or Parquet ({_short(error)}).") from error
    missing = [name for name in (*FPM_KEYS, "latency_ms") if name not in frame.columns]
    if missing:
        raise TimingsError(f"{path} lacks the column {missing[0]} of an fpm_forward_perf table.")
    rows: list[dict[str, Any]] = frame.to_dict("records")  # type: ignore[assignment]
    return rows


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise TimingsError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise TimingsError(f"{path} is not JSON ({_short(error)}).") from error


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:100]


def _tokens(value: Any) -> int:
    number = _number(value)
    if number != int(number) or not 0 <= number <= MOST_TOKENS:
        raise ValueError("no number of tokens")
    return int(number)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError("no number")
    number = float(value)
    if not np.isfinite(number):
        raise ValueError("no number")
    return number

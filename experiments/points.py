"""Published figures of real servers: one row a point, read from a CSV whose columns may be named in many ways."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from ..sim.cost.tables.csv_table import TableError, read_csv
from .errors import ExperimentError

ALIASES: dict[str, tuple[str, ...]] = {
    "source": ("reference", "url", "paper", "id", "experiment", "run_id"),
    "model": ("model_name", "model_id", "llm"),
    "gpu": ("gpu_name", "device", "hardware", "accelerator", "gpu_type"),
    "profile": ("tables", "profile_dir", "profile_folder"),
    "engine": ("framework", "backend", "server", "system"),
    "vllm_version": ("version", "engine_version", "backend_version", "vllm"),
    "dtype": ("precision",),
    "kv_cache_dtype": ("kv_dtype",),
    "tensor_parallel_size": ("tp", "tp_size", "tensor_parallel", "num_gpus"),
    "max_num_seqs": ("seqs", "max_seqs", "max_batch_size", "batch_cap", "max_running_requests"),
    "max_num_batched_tokens": ("batched_tokens", "token_budget", "budget", "max_batched_tokens", "chunk_size"),
    "max_model_len": ("max_len", "max_seq_len", "context_length", "max_context"),
    "block_size": ("kv_block_size",),
    "num_gpu_blocks": ("gpu_blocks", "kv_blocks", "num_kv_blocks", "num_gpu_blocks_override"),
    "kv_cache_tokens": ("kv_tokens", "kv_cache_size_tokens"),
    "gpu_memory_utilization": ("gpu_mem_util", "gpu_memory_util", "mem_util"),
    "enable_chunked_prefill": ("chunked_prefill", "chunked", "chunking"),
    "enable_prefix_caching": ("prefix_caching", "prefix_cache"),
    "async_scheduling": ("async",),
    "enforce_eager": ("eager",),
    "host_fixed_ms": ("host_ms", "overhead_ms"),
    "host_per_seq_ms": (),
    "dataset": ("workload", "dataset_name"),
    "num_prompts": ("num_requests", "requests", "n_requests", "n"),
    "input_tokens": (
        "mean_input_tokens",
        "input_toks",
        "mean_input_len",
        "avg_prompt_len",
        "avg_input_len",
        "prompt_length",
        "mean_prompt_len",
        "input_len",
        "isl",
        "prompt_len",
        "prompt_tokens",
        "mean_prompt_tokens",
        "random_input_len",
        "avg_input_tokens",
        "input_length",
    ),
    "output_tokens": (
        "mean_output_tokens",
        "output_toks",
        "avg_output_len",
        "generated_tokens",
        "gen_tokens",
        "max_tokens",
        "output_len",
        "osl",
        "gen_len",
        "random_output_len",
        "avg_output_tokens",
        "output_length",
        "mean_output_len",
    ),
    "input_cv": ("prompt_cv",),
    "output_cv": (),
    "request_rate": ("rate", "qps", "rps", "arrival_rate", "request_rate_per_s"),
    "burstiness": (),
    "concurrency": ("max_concurrency", "clients", "num_clients", "users", "concurrent_requests", "num_users"),
    "output_tok_s": (
        "output_throughput",
        "output_tokens_per_s",
        "tok_s",
        "tokens_per_s",
        "generation_throughput",
        "output_tps",
        "throughput_tok_s",
        "output_token_throughput",
    ),
    "total_tok_s": ("total_token_throughput", "total_throughput", "total_tokens_per_s", "total_tps"),
    "request_s": ("request_throughput", "requests_per_s", "req_s", "req_per_s"),
    "mean_ttft_ms": ("ttft_ms", "avg_ttft_ms", "ttft_mean_ms"),
    "median_ttft_ms": ("p50_ttft_ms",),
    "p95_ttft_ms": ("ttft_p95_ms",),
    "p99_ttft_ms": ("ttft_p99_ms",),
    "mean_tpot_ms": ("tpot_ms", "avg_tpot_ms", "tpot_mean_ms"),
    "median_tpot_ms": ("p50_tpot_ms",),
    "p99_tpot_ms": ("tpot_p99_ms",),
    "mean_itl_ms": ("itl_ms", "avg_itl_ms", "itl_mean_ms"),
    "p99_itl_ms": ("itl_p99_ms",),
    "mean_e2el_ms": ("e2e_ms", "latency_ms", "mean_latency_ms", "mean_e2e_ms", "e2el_ms"),
    "p99_e2el_ms": ("p99_latency_ms", "p99_e2e_ms"),
    "num_preemptions": ("preemptions", "preempted"),
    "note": ("notes", "comment", "remarks"),
}
UNITS = {"_ms": 1.0, "_s": 1000.0, "_seconds": 1000.0}
"""``ttft_s`` is read as ``ttft_ms`` times 1,000: columns of times may be in either."""
TRUE, FALSE = ("true", "yes", "on", "1", "1.0", "enabled"), ("false", "no", "off", "0", "0.0", "disabled")
ABSENT = ("", "-", "–", "none", "null", "nan", "n/a", "na", "unknown", "?")


@dataclass(frozen=True, slots=True)
class Point:
    """One published point; None is what its author did not say."""

    line: int
    source: str | None = None
    model: str | None = None
    gpu: str | None = None
    profile: str | None = None
    """Folder of operator tables for this row, from the CSV's own folder."""
    engine: str | None = None
    vllm_version: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    kv_cache_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    enforce_eager: bool | None = None
    host_fixed_ms: float | None = None
    host_per_seq_ms: float | None = None
    dataset: str | None = None
    num_prompts: int | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    input_cv: float | None = None
    output_cv: float | None = None
    request_rate: float | None = None
    burstiness: float | None = None
    concurrency: int | None = None
    output_tok_s: float | None = None
    total_tok_s: float | None = None
    request_s: float | None = None
    mean_ttft_ms: float | None = None
    median_ttft_ms: float | None = None
    p95_ttft_ms: float | None = None
    p99_ttft_ms: float | None = None
    mean_tpot_ms: float | None = None
    median_tpot_ms: float | None = None
    p99_tpot_ms: float | None = None
    mean_itl_ms: float | None = None
    p99_itl_ms: float | None = None
    mean_e2el_ms: float | None = None
    p99_e2el_ms: float | None = None
    num_preemptions: int | None = None
    note: str | None = None


@dataclass(slots=True)
class Points:
    """What a file held."""

    path: Path
    points: list[Point]
    columns: dict[str, str] = field(default_factory=dict)
    """Column of the file → what it was taken for, or that it was left unread."""
    dropped: list[str] = field(default_factory=list)
    """Rows that could not be read, each with the reason."""


def read_points(path: Path) -> Points:
    """Read a CSV of published points. A row with a cell that cannot be what its column says is dropped with the
    reason; a column nobody knows is left unread. Raises ``ExperimentError`` if it is no CSV or nothing can be used.
    """
    try:
        table = read_csv(path)
    except TableError as error:
        raise ExperimentError(str(error)) from error
    taken = {name: _field_of(name) for name in table.names}
    points = Points(path, [])
    used: set[str] = set()
    for name, (target, scale) in taken.items():
        if target is None or target in used:
            points.columns[name] = "not read" if target is None else f"not read: {target} is there already"
            taken[name] = (None, 1.0)
        else:
            points.columns[name] = target if scale == 1.0 else f"{target} (× {scale:g})"
            used.add(target)
    if "model" not in used and not used & {"output_tok_s", "total_tok_s", "request_s", "mean_ttft_ms"}:
        raise ExperimentError(
            f"{path} has no column that is a published figure ({', '.join(table.names[:6])}, …): see "
            f"docs/published_points.md for the names."
        )
    hints = get_type_hints(Point)
    cells = {name: table.text(name) for name in table.names}
    for row in range(table.num_rows):
        try:
            values = {
                target: _value(cells[name][row], hints[target], scale, name)
                for name, (target, scale) in taken.items()
                if target is not None
            }
            points.points.append(Point(line=row + 2, **values))
        except ValueError as error:
            points.dropped.append(f"line {row + 2}: {error}")
    if not points.points:
        raise ExperimentError(f"{path} has no row that can be read: {points.dropped[0]}.")
    return points


def _field_of(column: str) -> tuple[str | None, float]:
    """The field a column stands for, and the factor to its unit."""
    name = re.sub(r"[^a-z0-9]+", "_", column.strip().lower()).strip("_")
    known = {field.name for field in fields(Point)} - {"line"}
    by_alias = {alias: target for target, aliases in ALIASES.items() for alias in aliases}
    if name in known or name in by_alias:
        return by_alias.get(name, name), 1.0
    for suffix, factor in UNITS.items():
        if name.endswith(suffix):
            in_ms = name.removesuffix(suffix) + "_ms"
            if in_ms in known or in_ms in by_alias:
                return by_alias.get(in_ms, in_ms), factor
    return None, 1.0


def _value(cell: str, hint: Any, scale: float, column: str) -> Any:
    text = cell.strip()
    if text.lower() in ABSENT:
        return None
    if hint == (str | None):
        return text
    if hint == (bool | None):
        if text.lower() in TRUE + FALSE:
            return text.lower() in TRUE
        raise ValueError(f"{column} is {text[:30]!r}, but yes or no is needed")
    return _number(text, scale, column, whole=hint == (int | None))


def _number(text: str, scale: float, column: str, *, whole: bool) -> float | int:
    try:
        value = float(text.replace(",", "").replace("_", "")) * scale
    except ValueError as error:
        raise ValueError(f"{column} is {text[:30]!r}, but a number is needed") from error
    infinite = math.isinf(value) and _field_of(column)[0] == "request_rate"
    if math.isnan(value) or value < 0 or (math.isinf(value) and not infinite):
        raise ValueError(f"{column} is {text[:30]!r}, but a number of at least 0 is needed")
    if whole and value != int(value):
        raise ValueError(f"{column} is {text[:30]!r}, but a whole number is needed")
    return int(value) if whole else value

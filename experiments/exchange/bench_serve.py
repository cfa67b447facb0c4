"""A result of ``vllm bench serve`` (vLLM 0.33.0's ``benchmarks/serve.py``; older files lack some fields)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .fields import Reader
from .measured_row import INFINITE, Flag, MeasuredRow, Workload

PLAIN_METRICS = (
    "completed",
    "duration",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "request_goodput",
)
SUMMARY_METRIC = re.compile(r"(mean|median|std|p\d{1,2}(?:\.\d{1,3})?)_(ttft|tpot|itl|e2el)_ms", re.ASCII)
KNOBS = ("max_num_seqs", "max_num_batched_tokens")
OWN_FIELDS = frozenset(
    (
        *PLAIN_METRICS,
        *KNOBS,
        *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "run_number"),
        *("request_rate", "burstiness", "max_concurrency", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"),
        *("failed", "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times"),
        *("generated_texts", "errors", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx"),
        *("client_queue_time", "e2el_including_client_queue", "rps_change_events", "request_goodput:"),
        *("_benchmark_name", "tokens_per_user", "tokens_per_gpu", "user_count_estimate", "gpu_count_estimate"),
    )
)
"""What a record holds by itself; whatever else it holds is a parameter of the server or the client."""


def is_bench_record(record: object) -> bool:
    """Whether a JSON value looks like a result: it says how long it took and how much was done."""
    if not isinstance(record, Mapping):
        return False
    return "completed" in record and bool({"duration", "request_throughput"} & set(record))


def read_bench_record(record: Mapping[str, Any], source: str) -> MeasuredRow:
    """A record as a row. It never raises: what is wrong with the record is a flag of the row."""
    reader = Reader(record)
    metrics = _metrics(reader)
    requests = _requests(reader, metrics)
    workload = Workload(
        request_rate=_rate(reader),
        burstiness=reader.number("burstiness") or 1.0,
        max_concurrency=reader.at_least_one("max_concurrency"),
        num_prompts=reader.at_least_one("num_prompts"),
        total_input_tokens=reader.count("total_input_tokens"),
        total_output_tokens=reader.count("total_output_tokens"),
        requests=requests,
        ramps_up=bool(reader.text("ramp_up_strategy")),
    )
    row = MeasuredRow(
        source=source,
        max_num_seqs=reader.at_least_one("max_num_seqs"),
        max_num_batched_tokens=reader.at_least_one("max_num_batched_tokens"),
        metrics=metrics,
        workload=workload,
        settings=_settings(reader),
        model=reader.text("model_id"),
    )
    failed = reader.count("failed")
    if failed:
        reader.flags.append(Flag(False, f"{failed:,} requests failed, and are not in its figures"))
    if workload.ramps_up:
        reader.flags.append(Flag(False, "its request rate ramps up, which is predicted only from listed start times"))
    return replace(row, flags=tuple(reader.flags))


def _rate(reader: Reader) -> float:
    value = reader.record.get("request_rate")
    if value is None or value == "inf" or (isinstance(value, float) and math.isinf(value)):
        return INFINITE
    rate = reader.number("request_rate")
    if rate is not None and rate <= 0:
        reader.flags.append(Flag(True, f"request_rate is {rate:g}, which is no rate"))
        return INFINITE
    return INFINITE if rate is None else rate


def _metrics(reader: Reader) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in reader.record:
        if name in PLAIN_METRICS or SUMMARY_METRIC.fullmatch(name):
            number = reader.number(name)
            if number is not None:
                found[name.replace("p50_", "median_")] = number
    if "request_goodput" not in found and (old := reader.number("request_goodput:")) is not None:
        found["request_goodput"] = old  # as older versions spelt it
    if (prompts := reader.count("num_prompts")) is not None:
        found["num_requests"] = prompts
    return found


def _settings(reader: Reader) -> dict[str, str]:
    extra = {}
    for name, value in sorted(reader.record.items()):
        is_own = name in OWN_FIELDS or SUMMARY_METRIC.fullmatch(name) or name.startswith(("spec_decode_", "probe_"))
        if not is_own and isinstance(value, str | int | float) and not name.endswith("_ms"):
            extra[name[:80]] = str(value)[:80]
    return extra


def _requests(reader: Reader, metrics: dict[str, float]) -> tuple[tuple[float, int, int], ...] | None:
    """The completed requests, where the file lists them; metrics that it does not print are computed from the lists."""
    inputs, outputs, ttfts = (reader.numbers(name) for name in ("input_lens", "output_lens", "ttfts"))
    starts = _due_times(reader)
    if inputs is None or outputs is None:
        _from_latencies(reader, metrics)
        return None
    if len(inputs) != len(outputs):
        reader.flags.append(Flag(True, f"it lists {len(inputs):,} prompts and {len(outputs):,} outputs"))
        return None
    done = [i for i, length in enumerate(outputs) if length >= 1 and inputs[i] >= 1]
    if not done:
        return None
    _check_lists(reader, metrics, sum(inputs[i] for i in done), sum(outputs[i] for i in done))
    if ttfts is not None and len(ttfts) == len(outputs):
        _from_lists(reader, metrics, done, np.array([ttfts[i] for i in done]))
    if starts is None or len(starts) != len(outputs):
        starts = [0.0] * len(outputs)
    first = min(starts[i] for i in done)
    return tuple(sorted(((starts[i] - first, int(inputs[i]), int(outputs[i])) for i in done), key=lambda r: r[0]))


def _due_times(reader: Reader) -> list[float] | None:
    """When each request was meant to be sent: its start, less what it waited at the client's own gate."""
    starts, waits = reader.numbers("start_times"), reader.numbers("queue_times")
    if starts is None or waits is None or len(waits) != len(starts):
        return starts
    return [start - wait for start, wait in zip(starts, waits, strict=True)]


def _from_latencies(reader: Reader, metrics: dict[str, float]) -> None:
    """``latencies`` (s) stay in a file without details; a request that failed has 0."""
    latencies_s = np.array([value for value in reader.numbers("latencies") or [] if value > 0])
    if len(latencies_s) and len(latencies_s) == metrics.get("completed"):
        _fill(metrics, "e2el", latencies_s)


def _check_lists(reader: Reader, metrics: Mapping[str, float], inputs: float, outputs: float) -> None:
    for name, listed in (("total_input_tokens", inputs), ("total_output_tokens", outputs)):
        total = metrics.get(name)
        if total is not None and abs(listed - total) > 0.01 * max(total, 1.0):
            reader.flags.append(Flag(True, f"{name} is {total:,.0f}, but its list adds up to {listed:,.0f}"))


def _from_lists(reader: Reader, metrics: dict[str, float], done: list[int], ttfts_s: Any) -> None:
    """TTFTs and gaps are in seconds; if they do not give the printed mean, the unit is another."""
    printed = metrics.get("mean_ttft_ms")
    own = 1e3 * float(ttfts_s.mean())
    if printed and own and not 0.9 < own / printed < 1.1:
        reader.flags.append(
            Flag(True, f"mean_ttft_ms is {printed:,.1f}, but ttfts, which are in seconds, have a mean of {own:,.1f} ms")
        )
        return
    _fill(metrics, "ttft", ttfts_s)
    latencies = reader.numbers("latencies")
    if latencies is not None and len(latencies) > max(done):
        _fill(metrics, "e2el", np.array([latencies[i] for i in done]))
    _from_gaps(reader, metrics, done, ttfts_s)


def _from_gaps(reader: Reader, metrics: dict[str, float], done: list[int], ttfts_s: Any) -> None:
    gaps = reader.record.get("itls")
    if not isinstance(gaps, list) or len(gaps) <= max(done):
        return
    try:
        own_gaps = [np.array([float(gap) for gap in gaps[i]]) for i in done]
    except (TypeError, ValueError, OverflowError):
        reader.flags.append(Flag(False, "itls is no list of lists of numbers, and is not used"))
        return
    pooled = np.concatenate(own_gaps)
    if not (np.isfinite(pooled).all() and (pooled >= 0).all()):
        reader.flags.append(Flag(False, "itls holds what is no time, and is not used"))
        return
    _fill(metrics, "e2el", ttfts_s + np.array([float(gap.sum()) for gap in own_gaps]))
    if len(pooled):
        _fill(metrics, "itl", pooled)


def _fill(metrics: dict[str, float], name: str, values_s: Any) -> None:
    """Statistics that the file does not print."""
    for word, value in (
        ("mean", values_s.mean()),
        ("std", values_s.std()),
        *((word, np.percentile(values_s, p)) for word, p in (("median", 50), ("p90", 90), ("p95", 95), ("p99", 99))),
    ):
        metrics.setdefault(f"{word}_{name}_ms", 1e3 * float(value))

"""Whether a row can be true: units, totals, and Little's law (in flight = rate · latency)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from .measured_row import INFINITE, Flag, MeasuredRow

ROUNDING = 0.02
"""Share by which printed figures may miss what they imply: some files round to two digits."""
FEWEST_ROUNDS = 2
"""Requests a client, from which a closed loop must have been full for most of the run."""
FILLED = 0.8
TIMES = ("ttft", "tpot", "itl", "e2el")
LADDER = ("median", "p90", "p95", "p99")


def check_row(row: MeasuredRow) -> tuple[Flag, ...]:
    """Everything wrong with ``row``, what reading it found first."""
    m = row.metrics
    found = [*row.flags, *_signs(m)]
    if not any(flag.impossible for flag in found):  # the others reckon with figures that are at least numbers
        found += [*_ladders(m), *_rates(m), *_totals(row), *_latencies(m), *_little(row)]
    clients, seqs = row.workload.max_concurrency, row.max_num_seqs
    if clients and seqs and clients > seqs:
        found.append(
            Flag(
                False,
                f"{clients:,} clients share {seqs:,} slots (max_num_seqs), so its TTFT and E2E measure queueing",
            )
        )
    return tuple(dict.fromkeys(found))


def _signs(m: Mapping[str, float]) -> Iterator[Flag]:
    for name, value in m.items():
        if value < 0:
            yield Flag(True, f"{name} is {value:g}, below 0")
    if m.get("completed") == 0:
        yield Flag(True, "no request completed")
    if m.get("duration") == 0:
        yield Flag(True, "its duration is 0 s")
    if m.get("completed", 0) > m.get("num_requests", INFINITE):
        yield Flag(True, f"{m['completed']:,.0f} of {m['num_requests']:,.0f} requests completed")


def _ladders(m: Mapping[str, float]) -> Iterator[Flag]:
    """Percentiles rise, and no request ends before its first token."""
    for time in TIMES:
        names = [name for word in LADDER if (name := f"{word}_{time}_ms") in m]
        for low, high in pairwise(names):
            if m[low] > m[high] * (1 + 1e-9):
                yield Flag(True, f"{low} ({m[low]:,.1f}) is above {high} ({m[high]:,.1f})")
    for word in ("mean", *LADDER):
        first, whole = f"{word}_ttft_ms", f"{word}_e2el_ms"
        if first in m and whole in m and m[first] > m[whole] * (1 + ROUNDING):
            yield Flag(True, f"{first} ({m[first]:,.1f}) is above {whole} ({m[whole]:,.1f})")


def _rates(m: Mapping[str, float]) -> Iterator[Flag]:
    """Every throughput is its total over the duration."""
    duration_s = m.get("duration")
    if not duration_s:
        return
    both = None
    if "total_input_tokens" in m and "total_output_tokens" in m:
        both = m["total_input_tokens"] + m["total_output_tokens"]
    for name, total in (
        ("request_throughput", m.get("completed")),
        ("output_throughput", m.get("total_output_tokens")),
        ("total_token_throughput", both),
    ):
        if name not in m or total is None:
            continue
        own, implied = m[name], total / duration_s
        if abs(own - implied) <= ROUNDING * max(own, implied):
            continue
        hint = "; it counts prompt tokens too" if both and _near(own, both / duration_s) else ""
        hint = "; the duration looks like ms" if _near(own, 1e3 * implied) else hint
        yield Flag(True, f"{name} is {own:,.2f}, but its total over {duration_s:,.1f} s is {implied:,.2f}{hint}")


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= ROUNDING * max(one, other)


def _totals(row: MeasuredRow) -> Iterator[Flag]:
    """A request has at least one token of each kind."""
    m = row.metrics
    for name in ("total_input_tokens", "total_output_tokens"):
        if name in m and m[name] < m.get("completed", 0):
            yield Flag(True, f"{name} is {m[name]:,.0f} for {m['completed']:,.0f} requests, less than one each")


def _latencies(m: Mapping[str, float]) -> Iterator[Flag]:
    """No request takes longer than the run, which is as well how a wrong unit shows."""
    duration_s = m.get("duration")
    for name in ("median_ttft_ms", "median_e2el_ms", "p99_ttft_ms", "p99_e2el_ms"):
        if duration_s and name in m and m[name] / 1e3 > duration_s * (1 + ROUNDING):
            yield Flag(
                True, f"{name} is {m[name] / 1e3:,.1f} s, longer than the run of {duration_s:,.1f} s: another unit?"
            )


def mean_latency_s(m: Mapping[str, float]) -> float | None:
    """Mean end-to-end latency: printed, or TTFT + TPOT · (tokens − 1)."""
    if "mean_e2el_ms" in m:
        return m["mean_e2el_ms"] / 1e3
    if {"mean_ttft_ms", "mean_tpot_ms", "total_output_tokens", "completed"} <= set(m) and m["completed"]:
        tokens = m["total_output_tokens"] / m["completed"]
        return (m["mean_ttft_ms"] + m["mean_tpot_ms"] * (tokens - 1)) / 1e3
    return None


def requests_per_s(row: MeasuredRow) -> float | None:
    """Request throughput: printed, or from the output tokens a second and the tokens a request."""
    m, work = row.metrics, row.workload
    if m.get("request_throughput"):
        return m["request_throughput"]
    if m.get("completed") and m.get("duration"):
        return m["completed"] / m["duration"]
    if m.get("output_throughput") and work.total_output_tokens and work.num_prompts:
        return m["output_throughput"] * work.num_prompts / work.total_output_tokens
    return None


def _little(row: MeasuredRow) -> Iterator[Flag]:
    """In flight = rate · latency: never more than the clients, and in a closed loop hardly fewer."""
    clients, rate = row.workload.max_concurrency, requests_per_s(row)
    if not clients or not rate:
        return
    mean_s = mean_latency_s(row.metrics)
    if mean_s is not None and rate * mean_s > clients * (1 + ROUNDING) + 0.5:
        yield Flag(
            True,
            f"{rate * mean_s:,.0f} requests were in flight on average (rate × mean latency), but max_concurrency is "
            f"{clients:,}",
        )
    prompts = row.workload.num_prompts or INFINITE
    if row.workload.request_rate == INFINITE and prompts >= FEWEST_ROUNDS * clients:
        yield from _closed_loop(row, clients, rate, mean_s)


def _closed_loop(row: MeasuredRow, clients: int, rate: float, mean_s: float | None) -> Iterator[Flag]:
    """``clients`` always in flight need a mean latency of clients / rate, but for the drain at the end."""
    m = row.metrics
    p99_s = m["p99_e2el_ms"] / 1e3 if "p99_e2el_ms" in m else None
    duration_s = m.get("duration") or (m["completed"] / rate if m.get("completed") else INFINITE)
    drain = max(0.0, 1.0 - (p99_s or mean_s or 0.0) / duration_s)
    needed_s = FILLED * drain * clients / rate
    if mean_s is not None:
        if mean_s < needed_s:
            yield Flag(
                False,
                f"only {rate * mean_s:,.0f} requests were in flight on average, though {clients:,} clients never "
                f"paused: the client, not the server, was the limit, or the tokens are counted otherwise",
            )
    elif p99_s is not None and p99_s < needed_s:
        yield Flag(
            True,
            f"{clients:,} clients at {rate:,.2f} requests/s need a mean latency of {clients / rate:,.1f} s, but the "
            f"P99 is {p99_s:,.1f} s, so at most {rate * p99_s:,.0f} were in flight{_as_total(row, p99_s)}",
        )
    elif p99_s is not None and clients / rate < p99_s / 3:
        yield Flag(
            False,
            f"{clients:,} clients at {rate:,.2f} requests/s have a mean latency of at most {clients / rate:,.1f} s "
            f"beside a P99 of {p99_s:,.1f} s: are these output tokens{_as_total(row, p99_s)}?",
        )


def _as_total(row: MeasuredRow, p99_s: float) -> str:
    """What the printed tokens a second would mean if they counted prompts too."""
    work, printed = row.workload, row.metrics.get("output_throughput")
    if not (printed and work.num_prompts and work.total_input_tokens and work.total_output_tokens):
        return ""
    each = (work.total_input_tokens + work.total_output_tokens) / work.num_prompts
    return f" (read as total tokens, at most {printed * p99_s / each:,.0f} in flight)"

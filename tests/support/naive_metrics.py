"""Metrics a second time, the obvious way: walk every batch, keep every token's time, compute by definition.

It reads nothing of the recorder: neither its gaps nor its columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from replays import Played

from batchtwin.scheduler import Bound


def naive_metrics(played: Played, slo: Mapping[str, float] | None = None) -> dict[str, float]:
    token_s: dict[int, list[float]] = defaultdict(list)
    scheduled_s: dict[int, float] = {}
    for step in played.iterations:
        for row in step.rows:
            scheduled_s.setdefault(row.request.index, step.launched_s)
            if row.samples:
                token_s[row.request.index].append(step.end_s)
    requests = played.requests
    first_s = min(request.arrival_s for request in requests)
    duration_s = max(times[-1] for times in token_s.values()) - first_s
    produced = sum(len(times) for times in token_s.values())
    prompts = sum(request.num_prompt_tokens for request in requests)
    values = {
        "ttft": [token_s[r.index][0] - r.arrival_s for r in requests],
        "itl": [b - a for times in token_s.values() for a, b in pairwise(times)],
        "tpot": [(t[-1] - t[0]) / (len(t) - 1) for t in token_s.values() if len(t) > 1],
        "e2el": [token_s[r.index][-1] - r.arrival_s for r in requests],
        "queue": [scheduled_s[r.index] - r.arrival_s for r in requests],
        "gate": [r.arrival_s - due_s for r, due_s in zip(requests, played.due_s, strict=True)],
    }
    out = {
        "num_requests": len(requests),
        "completed": len(token_s),
        "duration": duration_s,
        "total_input_tokens": prompts,
        "total_output_tokens": produced,
        "request_throughput": len(token_s) / duration_s,
        "output_throughput": produced / duration_s,
        "total_token_throughput": (prompts + produced) / duration_s,
    }
    for name, times in values.items():
        out |= _spread(name, times)
    if slo:
        out["request_goodput"] = sum(_meets(r.arrival_s, token_s[r.index], slo) for r in requests) / duration_s
    return out | _steady(played, token_s, first_s) | _server(played)


def _steady(played: Played, token_s: Mapping[int, list[float]], first_s: float) -> dict[str, float]:
    """Second by second over a fine grid would do; request by request it is exact."""
    last_s = max(request.arrival_s for request in played.requests)
    if last_s <= first_s:
        return {}
    low_s = first_s + 0.1 * (last_s - first_s)
    middle_s = (low_s + last_s) / 2
    late = [request for request in played.requests if request.arrival_s >= low_s]
    halves = [0.0, 0.0]
    for request in played.requests:
        for half, (a, b) in enumerate(((low_s, middle_s), (middle_s, last_s))):
            halves[half] += max(0.0, min(token_s[request.index][-1], b) - max(request.arrival_s, a))
    return {
        "drain_s": max(times[-1] for times in token_s.values()) - last_s,
        "steady_requests": len(late),
        "steady_mean_ttft_ms": 1e3 * np.mean([token_s[r.index][0] - r.arrival_s for r in late]),
        "steady_growth": halves[1] / halves[0] if halves[0] else float("nan"),
    }


def _spread(name: str, seconds: list[float]) -> dict[str, float]:
    names = [f"{kind}_{name}_ms" for kind in ("mean", "std", "median", "p90", "p95", "p99")]
    if not seconds:
        return dict.fromkeys(names, float("nan"))
    ms = 1e3 * np.array(seconds)
    return dict(zip(names, (ms.mean(), ms.std(), *np.percentile(ms, (50, 90, 95, 99))), strict=True))


def _meets(arrival_s: float, times: list[float], slo: Mapping[str, float]) -> bool:
    n = len(times)
    got_s = {
        "ttft_ms": times[0] - arrival_s,
        "tpot_ms": (times[-1] - times[0]) / (n - 1) if n > 1 else 0.0,
        "e2el_ms": times[-1] - arrival_s,
    }
    return all(got_s[name] * 1e3 <= limit for name, limit in slo.items())


def _server(played: Played) -> dict[str, float]:
    steps = played.iterations
    usable = played.scheduler.config.num_usable_blocks
    before_s = [0.0, *(step.end_s for step in steps)]  # a step launched early waits for the one before
    taken_s = np.array([step.end_s - max(step.launched_s, b) for step, b in zip(steps, before_s, strict=False)])
    tokens = np.array([sum(row.num_tokens for row in step.rows) for step in steps])
    running = np.array([step.num_resident for step in steps])
    usage = np.array([step.num_blocks_held / usable for step in steps])
    out = {
        "num_iterations": len(steps),
        "num_preemptions": sum(request.num_preemptions for request in played.requests),
        "recomputed_tokens": _recomputed(played),
        "padded_tokens": sum(step.padding_tokens for step in steps),
        "mean_iteration_ms": 1e3 * taken_s.mean(),
        "mean_tokens_per_iteration": tokens.mean(),
        "peak_running": running.max(),
        "peak_waiting": max(step.num_waiting for step in steps),
        "peak_kv_usage": usage.max(),
        "mean_running": np.average(running, weights=taken_s),
        "mean_kv_usage": np.average(usage, weights=taken_s),
    }
    for bound in Bound:
        active = np.array([step.batch.bound == bound for step in steps])
        out[f"bound_{bound.name.lower()}_share"] = taken_s[active].sum() / taken_s.sum()
    return out


def _recomputed(played: Played) -> int:
    """Tokens whose position in their request had been computed before."""
    reached: dict[int, int] = defaultdict(int)
    again = 0
    for step in played.iterations:
        for row in step.rows:
            end = row.start + row.num_tokens
            again += max(0, min(end, reached[row.request.index]) - row.start)
            reached[row.request.index] = max(end, reached[row.request.index])
    return again

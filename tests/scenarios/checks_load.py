"""T3: load, queues and what they look like over time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from field_replays import Inputs, Outcome, Replayed, arrow, law_of, over_seeds, replay, short

from batchtwin.experiments.timeline import state_at
from batchtwin.scheduler import Bound
from batchtwin.sim.cost.models import CostModel
from batchtwin.sim.metrics import request_times


@over_seeds
def prefill_interval(inputs: Inputs) -> Outcome:
    """Prompts every N-th step only: the median gap between tokens falls, the median first token comes later."""
    law, itl_ms, ttft_ms = law_of(inputs["profile"]), [], []
    for interval in inputs["intervals"]:
        m = replay(law, inputs["workload"], {**inputs["knobs"], "prefill_schedule_interval": interval}).metrics
        itl_ms.append(m["median_itl_ms"])
        ttft_ms.append(m["median_ttft_ms"])
    holds = all(b <= a for a, b in pairwise(itl_ms)) and itl_ms[-1] < 0.97 * itl_ms[0]
    holds &= all(b > a for a, b in pairwise(ttft_ms))
    text = f"Intervals {arrow(inputs['intervals'])}: median ITL {arrow(itl_ms)} ms, median TTFT {arrow(ttft_ms)} ms."
    return Outcome(holds, text)


@over_seeds
def long_prompts_before_short(inputs: Inputs) -> Outcome:
    """A few huge prompts: the share of the *short* requests whose first token takes more than a minute."""
    law, crowd = law_of(inputs["profile"]), inputs["workload"]
    rng = np.random.default_rng(crowd["seed"])
    arrival_s = np.cumsum(rng.exponential(1.0 / crowd["rate_per_s"], crowd["n"]))
    few = [[float(at), crowd["prompt"], crowd["output"]] for at in arrival_s - arrival_s[0]]
    with_huge = sorted([*few, *([at, tokens, crowd["output"]] for at, tokens in inputs["huge"])])
    cases = {
        "with them": (with_huge, {}),
        "without": (few, {}),
        "with them and a threshold": (with_huge, {"long_prefill_token_threshold": inputs["threshold"]}),
    }
    share = {
        name: _share_late(replay(law, {"requests": rows}, {**inputs["knobs"], **knobs}), inputs["limit_s"])
        for name, (rows, knobs) in cases.items()
    }
    holds = share["with them"] > 5 and share["without"] < 1 and share["with them and a threshold"] < 1
    said = ", ".join(f"{name} {short(value)} %" for name, value in share.items())
    return Outcome(holds, f"Short requests that wait more than {inputs['limit_s']} s for their first token: {said}.")


def _share_late(replayed: Replayed, limit_s: float) -> float:
    times = request_times(replayed.run.records)
    is_short = times.num_prompt_tokens < 100_000
    return 100 * float((times.ttft_s[is_short] > limit_s).mean())


@over_seeds
def queue_beside_a_full_cache(inputs: Inputs) -> Outcome:
    """The queue over time beside the cache: somebody waits where the cache is full, and only there."""
    replayed = replay(law_of(inputs["profile"]), inputs["workload"], inputs["knobs"])
    its = replayed.iterations
    moments_s = np.linspace(0.0, float(its["end_s"].max()), 2000)
    seen = state_at(replayed.run.records, inputs["knobs"]["num_gpu_blocks"] - 1, moments_s)
    waits = seen["waiting"] > 5
    peak = int(seen["waiting"].argmax())
    full, calm = float(seen["kv_usage"][waits].min()), float(np.median(seen["kv_usage"][seen["waiting"] == 0]))
    named = float((its["bound"][its["num_waiting"] > 5] == Bound.KV_BLOCKS).mean())
    holds = bool(waits.any()) and full > 0.9 and calm < full and named > 0.95
    text = (
        f"At its peak {seen['waiting'][peak]:.0f} wait, {seen['running'][peak]:.0f} run and "
        f"{100 * seen['kv_usage'][peak]:.1f} % of the cache are used; where more than 5 wait it is never below "
        f"{100 * full:.0f} %, where nobody waits {100 * calm:.0f} % in the median; the KV blocks are named in "
        f"{100 * named:.0f} % of the steps with that queue."
    )
    return Outcome(holds, text)


@over_seeds
def slack_everywhere_but_the_queue(inputs: Inputs) -> Outcome:
    """Few run, the cache is slack, many wait: the bound that was active is named, and it is the budget."""
    replayed = replay(law_of(inputs["profile"]), inputs["workload"], inputs["knobs"])
    m, its = replayed.metrics, replayed.iterations
    queued = its["num_waiting"] > 0
    took_s = its["end_s"] - its["start_s"]
    named = float(took_s[queued & (its["bound"] == Bound.MAX_NUM_BATCHED_TOKENS)].sum() / took_s[queued].sum())
    holds = m["mean_running"] < inputs["knobs"]["max_num_seqs"] / 4 and m["peak_kv_usage"] < 0.5
    holds &= m["peak_waiting"] > 3 * m["peak_running"] and named > 0.95
    text = (
        f"{short(m['mean_running'])} run on average of {inputs['knobs']['max_num_seqs']} allowed, KV at most "
        f"{100 * m['peak_kv_usage']:.0f} %, {m['peak_waiting']} wait: max_num_batched_tokens is named for "
        f"{100 * named:.0f} % of the time with a queue."
    )
    return Outcome(holds, text)


def caps_beyond_saturation(inputs: Inputs) -> Outcome:
    """Where more is offered than served at once, every cap leaves ρ above 1 and the latency growing."""
    law, knobs = law_of(inputs["profile"]), inputs["knobs"]
    p95_s = [_p95_s(law, inputs, rate, knobs) for rate in inputs["rates_per_s"]]
    over = inputs["rates_per_s"][-1]
    rho, capped_s = [], []
    for case in inputs["caps"]:
        own = {**knobs, **case}
        at_once = replay(law, inputs["workload"], own).metrics["request_throughput"]
        rho.append(over / at_once)
        capped_s.append(_p95_s(law, inputs, over, own))
    holds = all(b > 1.2 * a for a, b in pairwise(p95_s)) and min(rho) > 1 and min(capped_s) > 1.2 * p95_s[0]
    caps = ", ".join(" ".join(f"{name} {value:,}" for name, value in case.items()) for case in inputs["caps"])
    text = (
        f"P95 latency {arrow(p95_s)} s at {arrow(inputs['rates_per_s'])} req/s; at {over} with {caps}: "
        f"{arrow(capped_s)} s, ρ {arrow(rho)}."
    )
    return Outcome(holds, text)


def _p95_s(law: CostModel, inputs: Inputs, rate_per_s: float, knobs: Inputs) -> float:
    """Sent at even gaps: at random ones the bursts of a run this short hide where the boundary is."""
    crowd = inputs["workload"]
    rows = [[i / rate_per_s, crowd["prompt"], crowd["output"]] for i in range(crowd["n"])]
    return replay(law, {"requests": rows}, knobs).metrics["p95_e2el_ms"] / 1e3


CHECKS = {
    "S24": prefill_interval,
    "S28": long_prompts_before_short,
    "S42": queue_beside_a_full_cache,
    "S44": slack_everywhere_but_the_queue,
    "S59": caps_beyond_saturation,
}

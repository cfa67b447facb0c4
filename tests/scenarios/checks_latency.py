"""T3: first tokens against the gaps between tokens. Directions and shapes only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from field_replays import Inputs, Outcome, Replayed, arrow, law_of, over_seeds, replay, short

from batchtwin.sim.cost.features import Features, FloatArray
from batchtwin.sim.cost.models import CostModel, Fitted
from batchtwin.sim.metrics import itl_gaps


@over_seeds
def small_budget_for_itl(inputs: Inputs) -> Outcome:
    """Where prompts queue: P99 ITL rises with the budget and is about the time of a full mixed step."""
    p99_ms, full_ms = _itl_and_full_steps_ms(inputs, inputs["workload"])
    half_ms, _ = _itl_and_full_steps_ms(inputs, {**inputs["workload"], "rate_per_s": inputs["half_rate_per_s"]})
    near = all(abs(p99 / full - 1) < 1 / 3 for p99, full in zip(p99_ms, full_ms, strict=True))
    holds = near and all(later > earlier for earlier, later in pairwise(p99_ms))
    text = f"P99 ITL {arrow(p99_ms)} ms, a full mixed step {arrow(full_ms)} ms; at half the load {arrow(half_ms)} ms."
    return Outcome(holds, text)


def _itl_and_full_steps_ms(inputs: Inputs, workload: Inputs) -> tuple[list[float], list[float]]:
    p99_ms, full_ms = [], []
    for budget in inputs["budgets"]:
        knobs = {**inputs["knobs"], "max_num_batched_tokens": budget}
        replayed = replay(law_of(inputs["profile"]), workload, knobs)
        steps = replayed.iterations
        full = (steps["num_tokens"] >= 0.95 * budget) & (steps["num_decodes"] > 0)
        p99_ms.append(replayed.metrics["p99_itl_ms"])
        full_ms.append(1e3 * float(np.median(steps["device_s"][full])) if full.any() else float("nan"))
    return p99_ms, full_ms


@dataclass(frozen=True)
class WithMixedAttention:
    """A law and dearer attention where it is mixed: the KV that decodes read beside a prompt's chunk costs ``factor``
    times what it costs in a step of decodes alone.
    """

    inner: Fitted
    factor: float
    name: str = "with mixed attention"

    def durations_s(self, features: Features) -> FloatArray:
        more = (self.factor - 1) * self.inner.per_decode_kv_token_s * np.asarray(features.num_decode_kv_tokens)
        return self.inner.durations_s(features) + more * (np.asarray(features.num_prefills) > 0)

    def duration_s(self, features: Features) -> float:
        more = (self.factor - 1) * self.inner.per_decode_kv_token_s * features.num_decode_kv_tokens
        return self.inner.duration_s(features) + (more if features.num_prefills else 0.0)

    def steady_s(self, features: Features, num_steps: int) -> list[float]:
        return self.inner.steady_s(features, num_steps)


def chunking_offline(inputs: Inputs) -> Outcome:
    """Offline a small budget gains no throughput over whole prompts, where mixed attention costs what was recorded."""
    law = law_of(inputs["profile"])
    additive = _rates(law, inputs)
    mixed = _rates(WithMixedAttention(law, inputs["mixed_decode_kv_factor"]), inputs)
    gain, gain_if_additive = (100 * (rates[0] / rates[-1] - 1) for rates in (mixed, additive))
    text = (
        f"{arrow(mixed)} tokens/s at budgets of 4,096, 16,384 and whole prompts; chunks of 4,096 against whole prompts "
        f"{gain:+.1f} % (if mixed attention cost no more than its parts {gain_if_additive:+.1f} %)."
    )
    return Outcome(gain <= 0, text)


def _rates(law: CostModel, inputs: Inputs) -> list[float]:
    return [
        replay(law, inputs["workload"], {**inputs["knobs"], **case}).metrics["total_token_throughput"]
        for case in inputs["cases"]
    ]


@over_seeds
def prefill_first_starves(inputs: Inputs) -> Outcome:
    """While requests arrive: many prefill steps for each decode step under prefill_first; in vLLM's order every step
    decodes.
    """
    law, seen = law_of(inputs["profile"]), {}
    for policy in ("prefill_first", "vllm_v1"):
        replayed = replay(law, inputs["workload"], {**inputs["knobs"], "policy": policy})
        steps = replayed.iterations
        arriving = steps["end_s"] <= replayed.requests["arrival_s"].max()
        decoding = arriving & (steps["num_decodes"] > 0)
        prefills = int((arriving & (steps["num_prefills"] > 0)).sum())
        end_s = float(steps["end_s"][arriving].max())
        stalls_s = np.diff(steps["end_s"][decoding], append=end_s)
        seen[policy] = (prefills, len(stalls_s), end_s / len(stalls_s), float(stalls_s.max()))
    first, v1 = seen["prefill_first"], seen["vllm_v1"]
    holds = first[0] > 20 * first[1] and first[3] > 100 and v1[2] < 0.5 and v1[3] < 1
    return Outcome(
        holds,
        f"prefill_first: {first[0]:,} prefill and {first[1]} decode steps, one in {short(first[2])} s, none "
        f"for {short(first[3])} s; vllm_v1: one in {short(v1[2])} s, none for {short(v1[3])} s.",
    )


@over_seeds
def ttft_falls_with_output(inputs: Inputs) -> Outcome:
    """In a closed loop longer outputs spread the prompts; at a fixed rate they do not help."""
    law, closed, alike, open_ = law_of(inputs["profile"]), [], [], []
    knobs = {**inputs["knobs"], "num_clients": inputs["clients"]}
    for low, high in inputs["output_tokens"]:
        workload = {**inputs["workload"], "output": {"uniform": [low, high]}}
        closed.append(replay(law, workload, knobs).metrics["mean_ttft_ms"])
        alike.append(replay(law, {**workload, "output": (low + high) // 2}, knobs).metrics["mean_ttft_ms"])
        at_rate = {**workload, "rate_per_s": inputs["open_rate_per_s"]}
        open_.append(replay(law, at_rate, inputs["knobs"]).metrics["mean_ttft_ms"])
    holds = bool((np.diff(closed) < 0).all()) and open_[-1] >= open_[0]
    text = (
        f"Mean TTFT in a closed loop {arrow(closed)} ms (where outputs are all equal {arrow(alike)} ms), at a "
        f"fixed rate {arrow(open_)} ms."
    )
    return Outcome(holds, text)


@over_seeds
def chunk_only_when_decoding(inputs: Inputs) -> Outcome:
    """At low load: first tokens no later than with a small budget, gaps as with one."""
    law = law_of(inputs["profile"])
    m = {
        name: _ttft_and_longest_gap_ms(replay(law, inputs["workload"], {**inputs["knobs"], **case}))
        for name, case in inputs["cases"].items()
    }
    hybrid, small, large = m["hybrid"], m["small"], m["large"]
    holds = hybrid[0] <= min(small[0], 1.03 * large[0]) and hybrid[1] <= min(1.1 * small[1], large[1] / 3)
    figures = [f"{name} {short(ttft)} / {short(gap)}" for name, (ttft, gap) in m.items()]
    return Outcome(holds, f"Median TTFT / longest gap between tokens in ms: {', '.join(figures)}.")


def _ttft_and_longest_gap_ms(replayed: Replayed) -> tuple[float, float]:
    """At low load few gaps are long ones, so a percentile does not see them."""
    return replayed.metrics["median_ttft_ms"], 1e3 * float(itl_gaps(replayed.run.records)[0].max())


def budget_masks_sjf(inputs: Inputs) -> Outcome:
    """What shortest-first gains in mean latency over first-come shrinks to nothing as the budget grows."""
    gains = _gains_of_sjf(inputs, inputs["workload"])
    equal = _gains_of_sjf(inputs, inputs["equal_prompts"])
    holds = gains[0] > 5 and abs(gains[-1]) < 1 and bool((np.diff(gains) <= 1).all())
    text = (
        f"Gain of sjf in mean latency: {arrow(gains)} % at budgets {arrow(inputs['budgets'])}; where prompts are all "
        f"equal {arrow(equal)} %."
    )
    return Outcome(holds, text)


def _gains_of_sjf(inputs: Inputs, workload: Inputs) -> list[float]:
    law, gains = law_of(inputs["profile"]), []
    for budget in inputs["budgets"]:
        knobs = {**inputs["knobs"], "max_num_batched_tokens": budget}
        fcfs, sjf = (
            replay(law, workload, {**knobs, "policy": policy}).metrics["mean_e2el_ms"] for policy in ("vllm_v1", "sjf")
        )
        gains.append(100 * (1 - sjf / fcfs))
    return gains


def gate_is_not_ttft(inputs: Inputs) -> Outcome:
    """With more requests than clients the gate's wait grows, the server's TTFT does not."""
    law: CostModel = law_of(inputs["profile"])
    rows: list[dict[str, Any]] = []
    for requests, clients in inputs["requests_at_clients"]:
        workload = {"n": requests, "prompt": inputs["prompt_tokens"], "output": inputs["output_tokens"]}
        rows.append(replay(law, workload, {**inputs["knobs"], "max_concurrency": clients}).metrics)
    gates_s = [row["mean_gate_ms"] / 1e3 for row in rows]
    ttfts_s = [row["mean_ttft_ms"] / 1e3 for row in rows]
    holds = gates_s[0] == gates_s[1] == 0 and gates_s[1] < gates_s[2] < gates_s[3]
    holds &= ttfts_s[3] < 1.2 * ttfts_s[1] and gates_s[3] > 3 * ttfts_s[3]
    both_s = [gate_s + ttft_s for gate_s, ttft_s in zip(gates_s, ttfts_s, strict=True)]
    text = f"Gate {arrow(gates_s)} s, TTFT {arrow(ttfts_s)} s; a clock before the gate says {arrow(both_s)} s."
    return Outcome(holds, text)


CHECKS = {
    "S19": small_budget_for_itl,
    "S20": chunking_offline,
    "S27": prefill_first_starves,
    "S30": ttft_falls_with_output,
    "S31": chunk_only_when_decoding,
    "S32": budget_masks_sjf,
    "S51": gate_is_not_ttft,
}

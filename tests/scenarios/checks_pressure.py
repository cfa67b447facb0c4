"""KV pressure: preemption loops, the price of recomputing, reservation, who is blocked by whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from field_replays import Inputs, Outcome, Replayed, arrow, ids, law_of, over_seeds, replay, scheduler_of, short, steps

from batchtwin.sim.cost.features import Features, FloatArray
from batchtwin.sim.cost.models import Fitted


@over_seeds
def recompute_tax(inputs: Inputs) -> Outcome:
    """The share of tokens computed again rises as blocks shrink; a cheaper victim wastes less."""
    law, wasted, cheaper = law_of(inputs["profile"]), [], []
    for blocks in inputs["num_gpu_blocks"]:
        last, cheapest = (
            replay(law, inputs["workload"], {**inputs["knobs"], "num_gpu_blocks": blocks, "victim": victim})
            for victim in ("last", "cheapest")
        )
        wasted.append(100 * last.metrics["recomputed_tokens"] / last.computed_tokens)
        cheaper.append(100 * cheapest.metrics["recomputed_tokens"] / cheapest.computed_tokens)
    rises = wasted[0] == 0 and bool((np.diff(wasted) > 0).all())
    cuts = all(c < w for c, w in zip(cheaper[1:], wasted[1:], strict=True))
    text = f"Wasted {arrow(wasted)} % with the last as victim, {arrow(cheaper)} % with the cheapest."
    return Outcome(rises and cuts, text)


def preemption_loop(inputs: Inputs) -> Outcome:
    """A prompt whose first chunk fits is taken in and thrown out again and again; the whole-prompt check ends that."""
    law = law_of(inputs["profile"])
    off, on = (
        replay(law, inputs["workload"], {**inputs["knobs"], "scheduler_reserve_full_isl": reserve}).metrics
        for reserve in (False, True)
    )
    holds = off["num_preemptions"] > inputs["at_least_preemptions"] and on["num_preemptions"] == 0
    holds &= off["completed"] == on["completed"] == len(inputs["workload"]["requests"])
    text = (
        f"Off: {off['num_preemptions']} preemptions, {off['recomputed_tokens']:,} tokens again; on: "
        f"{on['num_preemptions']} and {on['recomputed_tokens']}."
    )
    return Outcome(holds, text)


def admit_on_full_length(inputs: Inputs) -> Outcome:
    """One long prompt more than fits: taken in by its first chunk it costs everybody; checked whole it waits."""
    law = law_of(inputs["profile"])
    off, on = (
        replay(law, inputs["workload"], {**inputs["knobs"], "scheduler_reserve_full_isl": reserve})
        for reserve in (False, True)
    )
    worst_off, worst_on = _worst_decode_rate(off), _worst_decode_rate(on)
    ratio = on.metrics["output_throughput"] / off.metrics["output_throughput"]
    holds = off.metrics["recomputed_tokens"] > 0 == on.metrics["recomputed_tokens"]
    holds &= ratio > 1.1 and worst_off < worst_on / 10
    text = (
        f"Off: {short(worst_off)} tok/s a stream beside prompts, {off.metrics['num_preemptions']} preemptions; on: "
        f"{short(worst_on)} tok/s once prompts are in, none; throughput on/off {short(ratio)}."
    )
    return Outcome(holds, text)


def _worst_decode_rate(replayed: Replayed) -> float:
    """Tokens a second and stream over the stretch in which nobody's first prompt is computed any more."""
    steps_, rows = replayed.iterations, replayed.requests
    four = np.sort(rows["first_token_at"])[-2]
    last = np.sort(rows["last_token_at"])[0]
    return float((last - four) / (steps_["end_s"][last] - steps_["end_s"][four]))


def evict_or_reserve(inputs: Inputs) -> Outcome:
    """Evicting starts requests sooner and pays in throughput and in the tail of TPOT, whatever the pool."""
    law, said, verdicts = law_of(inputs["profile"]), [], []
    for case in inputs["cases"]:
        knobs = {**inputs["knobs"], **case}
        reserve, evict = (
            replay(law, inputs["workload"], {**knobs, "policy": policy}).metrics for policy in ("reserve", "vllm_v1")
        )
        rate, tail, first = (
            evict[name] / reserve[name] for name in ("output_throughput", "p99_tpot_ms", "median_ttft_ms")
        )
        verdicts.append(rate < 1 < tail and first < 1)
        check = "" if case.get("scheduler_reserve_full_isl", True) else " (next chunk only)"
        said.append(f"{case['num_gpu_blocks']:,} blocks{check} × {rate:.2f}, × {tail:.2f}, × {first:.2f}")
    text = f"Throughput, P99 TPOT and median TTFT of evicting over reserving: {'; '.join(said)}."
    return Outcome(all(verdicts), text)


@dataclass(frozen=True)
class WithPrefillPenalty:
    """A law and a constant for every step that carries a prompt, as where such a step loses its captured graph."""

    inner: Fitted
    penalty_s: float
    name: str = "with prefill penalty"

    def durations_s(self, features: Features) -> FloatArray:
        return self.inner.durations_s(features) + self.penalty_s * (np.asarray(features.num_prefills) > 0)

    def duration_s(self, features: Features) -> float:
        return self.inner.duration_s(features) + (self.penalty_s if features.num_prefills else 0.0)

    def steady_s(self, features: Features, num_steps: int) -> list[float]:
        return self.inner.steady_s(features, num_steps)


def output_spread(inputs: Inputs) -> Outcome:
    """Throughput with fixed lengths, with spread prompts, with spread outputs, and spread outputs of tiny prompts."""
    law = law_of(inputs["profile"])
    penalty_s = inputs["penalty_decode_steps"] * law.fixed_s
    falls = {}
    for name, model in (("law", law), ("penalty", WithPrefillPenalty(law, penalty_s))):
        rate = [
            replay(model, workload, inputs["knobs"]).metrics["output_throughput"] for workload in inputs["workloads"]
        ]
        fixed, prompts, outputs, tiny, tiny_outputs = rate
        falls[name] = [100 * (1 - x) for x in (prompts / fixed, outputs / fixed, tiny_outputs / tiny)]
    prompts, outputs, tiny = falls["law"]
    holds = prompts < 10 and outputs > 25 and tiny > 25
    p = falls["penalty"]
    return Outcome(
        holds,
        f"Spread prompts cost {prompts:.0f} %, spread outputs {outputs:.0f} % ({tiny:.0f} % with tiny prompts). If "
        f"every step with a prompt took {inputs['penalty_decode_steps']} decode steps more: {p[0]:.0f}, {p[1]:.0f} and "
        f"{p[2]:.0f} %.",
    )


def place_in_the_queue(inputs: Inputs) -> Outcome:
    """Who is preempted is the next to be resumed; a head that lacks blocks blocks the small ones behind it."""
    case = inputs["preemption"]
    order: list[str] = []
    for batch in steps(scheduler_of(case["knobs"], case["requests"])):
        order += [f"−{name}" for name in ids(batch.preempted)] + ids(batch.resumed) + ids(batch.admitted)
    victim = next(entry for entry in order if entry.startswith("−"))
    after = order[order.index(victim) + 1]
    case = inputs["blocking"]
    first = {
        policy: _first_step_of(case["knobs"], case["requests"], policy, case["small"]) for policy in ("vllm_v1", "sjf")
    }
    holds = after == victim.removeprefix("−") and first["vllm_v1"] > first["sjf"] + 5
    text = (
        f"After request {victim.removeprefix('−')} lost its blocks request {after} came next; a small request behind a "
        f"big one starts in step {first['vllm_v1']} (vllm_v1) or {first['sjf']} (sjf)."
    )
    return Outcome(holds, text)


def _first_step_of(knobs: Inputs, requests: list[list[int]], policy: str, wanted: str) -> int:
    run = steps(scheduler_of(knobs, requests, policy))
    return next(i for i, batch in enumerate(run) if wanted in ids(batch.admitted))


CHECKS = {
    "S34": recompute_tax,
    "S36": preemption_loop,
    "S37": admit_on_full_length,
    "S39": evict_or_reserve,
    "S41": output_spread,
    "S45": place_in_the_queue,
}

"""T2: what the two knobs bound, step by step; no clock is looked at."""

from __future__ import annotations

from math import ceil

import numpy as np
from field_replays import Inputs, Outcome, Replayed, law_of, replay, scheduler_of, short, steps

from batchtwin.scheduler import Bound, ConfigError, RequestRefused, SchedulerConfig


def active_bound(inputs: Inputs) -> Outcome:
    """Every step obeys all three limits, and the one that was reached is named."""
    said, holds = [], True
    for case in inputs["cases"]:
        replayed = replay(law_of(inputs["profile"]), inputs["workload"], case["knobs"])
        steps_, knobs = replayed.iterations, case["knobs"]
        left = {
            "max_num_seqs": knobs["max_num_seqs"] - steps_["num_running"],
            "max_num_batched_tokens": knobs["max_num_batched_tokens"] - steps_["num_tokens"],
            "kv_blocks": steps_["num_free_blocks"] // ceil(inputs["workload"]["prompt"] / 16),
        }
        holds &= all(bool((room >= 0).all()) for room in left.values())
        queue = steps_["num_waiting"] > 0
        named = int((steps_["bound"][queue] == Bound[case["bound"].upper()]).sum())
        holds &= named == queue.sum() and bool((left[case["bound"]][queue] == 0).all())
        said.append(f"{case['bound']} is reached and named in {named} of {queue.sum()} steps with a queue")
    return Outcome(holds, "; ".join(said) + ".")


def decode_counts_one(inputs: Inputs) -> Outcome:
    """Steps of decodes only: as many tokens as sequences, whatever their contexts."""
    steps_ = replay(law_of(inputs["profile"]), inputs["workload"], inputs["knobs"]).iterations
    decodes = steps_["num_prefills"] == 0
    tokens, kv = steps_["num_tokens"][decodes], steps_["num_decode_kv_tokens"][decodes]
    prompts = inputs["workload"]["n"] * inputs["workload"]["prompt"]
    holds = bool((tokens == steps_["num_seqs"][decodes]).all())
    holds &= int(steps_["num_prefill_tokens"].sum()) == prompts and int(kv.max()) > 10 * int(tokens.max())
    text = f"At most {tokens.max()} tokens in a step of decodes, over contexts of up to {kv.max():,} tokens."
    return Outcome(holds, text)


def long_prompt_in_chunks(inputs: Inputs) -> Outcome:
    """⌈length / budget⌉ steps carry the prompt, none refuses it."""
    prompt, budget = inputs["prompt_tokens"], inputs["knobs"]["max_num_batched_tokens"]
    scheduler = scheduler_of(inputs["knobs"], [(prompt, 3)])
    chunks = [chunk.num_tokens for batch in steps(scheduler) for chunk in batch.chunks]
    holds = len(chunks) == ceil(prompt / budget) and sum(chunks) == prompt
    return Outcome(holds, f"{len(chunks)} chunks: {', '.join(f'{tokens:,}' for tokens in chunks)}.")


def no_quota(inputs: Inputs) -> Outcome:
    """One prompt larger than budget / requests shares a step with all the others."""
    scheduler = scheduler_of(inputs["knobs"], [(prompt, 2) for prompt in inputs["prompts"]])
    served = [chunk.num_tokens for chunk in next(steps(scheduler)).chunks]
    quota = inputs["knobs"]["max_num_batched_tokens"] // len(inputs["prompts"])
    text = f"One step serves {', '.join(map(str, served))} tokens; a quota would have been {quota}."
    return Outcome(served == inputs["prompts"] and max(served) > quota, text)


def more_than_worst_case(inputs: Inputs) -> Outcome:
    """Many more than X short requests run at once; what does not fit waits, and nothing is lost by sending it."""
    pool_tokens = (inputs["knobs"]["num_gpu_blocks"] - 1) * 16
    worst = pool_tokens // inputs["knobs"]["max_model_len"]
    law = law_of(inputs["profile"])
    few, many = (
        replay(law, {**inputs["workload"], "n": n}, inputs["knobs"]).metrics for n in (worst, inputs["workload"]["n"])
    )
    holds = many["peak_running"] > 5 * worst and many["completed"] == inputs["workload"]["n"]
    holds &= many["output_throughput"] > few["output_throughput"] and many["peak_waiting"] > 0
    ratio = many["output_throughput"] / few["output_throughput"]
    text = f"X = {worst}, but {many['peak_running']} ran at once; {short(ratio)} times the throughput of {worst} sent."
    return Outcome(holds, text)


def whole_prompt_admission(inputs: Inputs) -> Outcome:
    """A second prompt whose first chunk would fit: admitted only without the switch. A limit on the output that does
    not fit keeps nobody out.
    """
    admitted = {}
    for name, case in inputs["cases"].items():
        scheduler = scheduler_of({**inputs["knobs"], **case["knobs"]}, case["requests"])
        step_of = {
            request.request_id: i
            for i, batch in enumerate(steps(scheduler))
            for request in batch.admitted
            if not batch.preempted
        }
        admitted[name] = step_of["1"]
    holds = admitted == {name: case["second_admitted_in_step"] for name, case in inputs["cases"].items()}
    said = ", ".join(f"{name}: step {step}" for name, step in admitted.items())
    return Outcome(holds, f"The second request is admitted in — {said}.")


def resident_is_not_scheduled(inputs: Inputs) -> Outcome:
    """Prompts of everybody resident exceed the budget, no step does; the queue grows beside a slack cache."""
    law, knobs = law_of(inputs["profile"]), inputs["knobs"]
    short_, long_ = (replay(law, {**inputs["workload"], "output": output}, knobs) for output in inputs["output_tokens"])
    prompt, budget = inputs["workload"]["prompt"], knobs["max_num_batched_tokens"]
    m, steps_ = short_.metrics, short_.iterations
    holds = m["peak_running"] * prompt > budget and int(steps_["num_tokens"].max()) <= budget
    holds &= _queue_growth(short_) > 2 and m["peak_kv_usage"] < 0.5 and m["load_rho"] > 1
    holds &= long_.metrics["mean_running"] > m["mean_running"]
    text = (
        f"{m['peak_running']} resident × {prompt:,} = {m['peak_running'] * prompt:,} tokens at a budget of {budget:,}; "
        f"KV at most {100 * m['peak_kv_usage']:.0f} % while the queue reaches {m['peak_waiting']} "
        f"(ρ = {m['load_rho']:.2f}); with {inputs['output_tokens'][1]} out {short(long_.metrics['mean_running'])} "
        f"resident on average."
    )
    return Outcome(holds, text)


def _queue_growth(replayed: Replayed) -> float:
    """The queue at the last arrival over the queue at half of the arrivals."""
    start_s, waiting = replayed.iterations["start_s"], replayed.iterations["num_waiting"]
    last_s = float(replayed.requests["arrival_s"].max())
    half, end = np.searchsorted(start_s, (last_s / 2, last_s)) - 1
    return float(waiting[end]) / max(float(waiting[half]), 1.0)


def never_fits(inputs: Inputs) -> Outcome:
    """Refused at once, by an error that names the knob."""
    try:
        scheduler_of(inputs["knobs"], [inputs["request"]])
    except RequestRefused as error:
        return Outcome("num_gpu_blocks" in str(error), str(error))
    return Outcome(False, "It was accepted.")


def budget_below_model_length(inputs: Inputs) -> Outcome:
    """Without chunking a configuration error names both knobs; with it the same knobs serve the request."""
    try:
        SchedulerConfig(**inputs["knobs"], enable_chunked_prefill=False)
    except ConfigError as error:
        text = str(error)
    else:
        return Outcome(False, "The configuration was accepted.")
    scheduler = scheduler_of(inputs["knobs"], [inputs["request"]])
    served = sum(batch.num_tokens for batch in steps(scheduler))
    holds = all(name in text for name in ("max_num_batched_tokens", "max_model_len", "enable chunked prefill"))
    return Outcome(holds and served == sum(inputs["request"]) - 1, text)


def admission_goes_on(inputs: Inputs) -> Outcome:
    """Beside a slack cache somebody waits only where all slots or the whole budget are taken; everybody finishes."""
    replayed = replay(law_of(inputs["profile"]), inputs["workload"], inputs["knobs"])
    steps_, m = replayed.iterations, replayed.metrics
    full = steps_["num_running"] == inputs["knobs"]["max_num_seqs"]
    spent = steps_["num_tokens"] == inputs["knobs"]["max_num_batched_tokens"]
    idle = int(((steps_["num_waiting"] > 0) & ~full & ~spent).sum())
    holds = idle == 0 < full.sum() and m["peak_kv_usage"] < 0.5 and m["completed"] == inputs["workload"]["n"]
    text = (
        f"All {m['completed']} finish; {full.sum():,} steps stand at max_num_seqs, {idle} steps leave somebody waiting "
        f"beside a free slot and budget; KV at most {100 * m['peak_kv_usage']:.0f} %."
    )
    return Outcome(holds, text)


def clients_beyond_seqs(inputs: Inputs) -> Outcome:
    """The second half of the clients only waits: same throughput, and the bound says so."""
    law = law_of(inputs["profile"])
    at, beyond = (
        replay(law, inputs["workload"], {**inputs["knobs"], "num_clients": clients}).metrics
        for clients in inputs["clients"]
    )
    gain = beyond["output_throughput"] / at["output_throughput"] - 1
    holds = beyond["peak_running"] == inputs["knobs"]["max_num_seqs"] and abs(gain) < 0.05
    holds &= beyond["median_queue_ms"] > 10 * max(at["median_queue_ms"], 1) and beyond["bound_max_num_seqs_share"] > 0.5
    text = (
        f"{inputs['clients'][1]} clients: {beyond['peak_running']} run, {100 * gain:+.1f} % output, queue "
        f"{short(beyond['median_queue_ms'] / 1e3)} s against {short(at['median_queue_ms'] / 1e3)} s, max_num_seqs "
        f"binds {100 * beyond['bound_max_num_seqs_share']:.0f} % of the time."
    )
    return Outcome(holds, text)


def decode_beside_long_prompts(inputs: Inputs) -> Outcome:
    """A running stream gets one token a chunk."""
    prefill_s = inputs["prompt_tokens"] / inputs["prefill_tokens_per_s"]
    said, holds = [], True
    for budget, expected_s in inputs["budgets"]:
        knobs = {**inputs["knobs"], "max_num_batched_tokens": budget}
        prompts = [[1.0, inputs["prompt_tokens"], 1]] * inputs["num_prompts"]
        steps_ = replay(law_of(inputs["profile"]), {"requests": [[0.0, 64, 3000], *prompts]}, knobs).iterations
        beside = (steps_["num_prefills"] > 0) & (steps_["num_decodes"] > 0)
        gap_s, stall_s = float(np.median(steps_["device_s"][beside])), float(steps_["device_s"][beside].sum())
        holds &= abs(gap_s / expected_s - 1) < 0.05 and abs(stall_s / (prefill_s * inputs["num_prompts"]) - 1) < 0.05
        said.append(f"budget {budget:,}: {short(gap_s)} s a token ({short(1 / gap_s)} tok/s) for {short(stall_s)} s")
    return Outcome(holds, "; ".join(said) + ".")


CHECKS = {
    "S01": active_bound,
    "S02": decode_counts_one,
    "S03": long_prompt_in_chunks,
    "S04": no_quota,
    "S06": more_than_worst_case,
    "S08": whole_prompt_admission,
    "S09": resident_is_not_scheduled,
    "S14": never_fits,
    "S15": budget_below_model_length,
    "S16": admission_goes_on,
    "S17": clients_beyond_seqs,
    "S26": decode_beside_long_prompts,
}

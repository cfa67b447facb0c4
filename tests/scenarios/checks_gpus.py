"""T4: figures printed for a GPU, from its data sheet at measured efficiencies (``sim.cost.tables.by_spec``)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from field_replays import Inputs, Outcome, Replayed, arrow, replay, short

from batchtwin.sim.cost.features import Features
from batchtwin.sim.cost.tables.by_spec import spec_profile
from batchtwin.sim.cost.tables.operator_table import OperatorTable
from batchtwin.sim.facts.device import find_device
from batchtwin.sim.facts.library import load_model_config


def model_on(served: Inputs, knobs: Inputs) -> OperatorTable:
    """``model`` on ``gpus`` of kind ``gpu``, with the graphs that a server with ``knobs`` captures."""
    profile = spec_profile(
        load_model_config(served["model"]), find_device(served["gpu"]), tensor_parallel=served["gpus"]
    )
    return profile.cost_model_for(knobs["max_num_seqs"], knobs["max_num_batched_tokens"])


def ttft_is_linear_in_tokens(inputs: Inputs) -> Outcome:
    """TTFT of a lone prompt against its tokens is a line whose slope is one over the rate of prompts back to back."""
    knobs = inputs["knobs"]
    law = model_on(inputs["served"], knobs)
    prompts = np.array(inputs["prompts"])
    ttft_s = np.array([_alone(law, knobs, int(n)).metrics["mean_ttft_ms"] for n in prompts]) / 1e3
    slope, _ = np.polyfit(prompts, ttft_s, 1)
    fit = float(np.corrcoef(prompts, ttft_s)[0, 1] ** 2)
    many = replay(law, {"n": 100, "prompt": int(prompts[-2]), "output": 1}, knobs)
    rate = many.metrics["total_token_throughput"]
    text = (
        f"TTFT {arrow(1e3 * ttft_s)} ms; R² {short(fit)}; the slope is {short(1e6 * slope)} µs a token, one over the "
        f"prefill rate {short(1e6 / rate)} µs."
    )
    return Outcome(bool(fit > 0.99 and abs(slope * rate - 1) < 0.2), text)


def _alone(law: OperatorTable, knobs: Inputs, prompt: int) -> Replayed:
    return replay(law, {"requests": [[0.0, prompt, 2]]}, knobs)


def defaults_on_h100(inputs: Inputs) -> Outcome:
    """Over the budget: the queue for a first token shortens, the gaps lengthen; the larger the model the longer."""
    told, holds, worst = [], True, []
    for served in inputs["served"]:
        ttft, itl = [], []
        for budget in inputs["budgets"]:
            knobs = {**inputs["knobs"], "max_num_batched_tokens": budget}
            found = replay(model_on(served, knobs), {**inputs["workload"], "rate_per_s": served["rate_per_s"]}, knobs)
            ttft.append(found.metrics["p99_ttft_ms"])
            itl.append(found.metrics["p99_itl_ms"])
        holds &= all(later > earlier for earlier, later in pairwise(itl)) and ttft[-1] < 1.05 * ttft[0]
        worst.append(itl[0])
        told.append(f"{served['model'].rsplit('/', 1)[-1]}: P99 TTFT {arrow(ttft)} ms, P99 ITL {arrow(itl)} ms")
    knobs = {**inputs["knobs"], "max_num_batched_tokens": max(inputs["budgets"])}
    law = model_on(inputs["served"][0], knobs)
    steps_ms = [1e3 * law.duration_s(_prompt_step(tokens)) for tokens in inputs["step_tokens"]]
    text = f"{'; '.join(told)}. Prompt steps of {arrow(inputs['step_tokens'])} tokens of the 8B: {arrow(steps_ms)} ms."
    return Outcome(holds and worst[1] > worst[0], text)


def _prompt_step(tokens: int) -> Features:
    """Prompts of 1,024 tokens that fill a step."""
    chunks = tokens // 1024
    return Features(tokens, 0, 0, chunks, tokens, chunks * 1024 * 512.0, chunks, 0, chunks)


def cap_looks_like_saturation(inputs: Inputs) -> Outcome:
    """With a cap of 4 throughput is flat from 4 clients on and the cap is the named bound; lifted, it rises on."""
    capped = [_clients(inputs, inputs["knobs"], c) for c in inputs["clients"]]
    lifted = [
        _clients(inputs, {**inputs["knobs"], "max_num_seqs": max(inputs["clients"])}, c) for c in inputs["clients"]
    ]
    flat = [r.metrics["output_throughput"] for r in capped if r.run.scenario.num_clients >= 4]  # type: ignore[operator]
    rising = [r.metrics["output_throughput"] for r in lifted]
    kv, bound = capped[-1].metrics["peak_kv_usage"], capped[-1].metrics["bound_max_num_seqs_share"]
    holds = max(flat) < 1.1 * min(flat) and all(b > a for a, b in pairwise(rising)) and bound > 0.8 and kv < 0.2
    text = (
        f"Cap 4: {arrow([r.metrics['output_throughput'] for r in capped])} tok/s, max_num_seqs binds "
        f"{100 * bound:.0f} % of the time beside {100 * kv:.0f} % of KV; lifted: {arrow(rising)} tok/s."
    )
    return Outcome(holds, text)


def plateau_of_a_cap(inputs: Inputs) -> Outcome:
    """The printed throughputs within a tenth and mean TTFTs within a fifth; where it is flat the cap is the bound."""
    found = [_clients(inputs, inputs["knobs"], c) for c in inputs["clients"]]
    tok_s = [r.metrics["output_throughput"] for r in found]
    ttft_s = [r.metrics["mean_ttft_ms"] / 1e3 for r in found]
    bound = found[-1].metrics["bound_max_num_seqs_share"]
    near = all(abs(ours / theirs - 1) < 0.1 for ours, theirs in zip(tok_s, inputs["printed_tok_s"], strict=True))
    waits = all(abs(ours / theirs - 1) < 0.2 for ours, theirs in zip(ttft_s[2:], inputs["printed_ttft_s"], strict=True))
    text = (
        f"{arrow(tok_s)} tok/s; mean TTFT {arrow(ttft_s)} s; max_num_seqs binds {100 * bound:.0f} % of the time at "
        f"{inputs['clients'][-1]} clients."
    )
    return Outcome(near and waits and bound > 0.8, text)


def home_server(inputs: Inputs) -> Outcome:
    """P95 TTFT rises with users, each within a factor of two of what was printed."""
    p95_ms = [_clients(inputs, inputs["knobs"], c).metrics["p95_ttft_ms"] for c in inputs["clients"]]
    near = all(0.5 < ours / theirs < 2 for ours, theirs in zip(p95_ms, inputs["printed_p95_ttft_ms"], strict=True))
    rising = all(later > earlier for earlier, later in pairwise(p95_ms))
    return Outcome(near and rising, f"P95 TTFT {arrow(p95_ms)} ms at {', '.join(map(str, inputs['clients']))} users.")


def _clients(inputs: Inputs, knobs: dict[str, Any], clients: int) -> Replayed:
    workload = {**inputs["workload"], "n": inputs["requests_a_client"] * clients}
    return replay(model_on(inputs["served"], knobs), workload, {**knobs, "num_clients": clients})


CHECKS = {
    "S21": ttft_is_linear_in_tokens,
    "S22": defaults_on_h100,
    "S48": cap_looks_like_saturation,
    "S49": plateau_of_a_cap,
    "S56": home_server,
}

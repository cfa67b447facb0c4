"""Iteration lines as vLLM 0.33.0 writes them, of schedules that the real vLLM made (``tests/data/vllm-0.33.0``).

Contexts are counted here from the recording alone, so they check what our scheduler recovers from the lines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.sim.cost.features import Features
from batchtwin.sim.cost.models import Fitted
from batchtwin.traces import Trace

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "vllm-0.33.0"
LAW = Fitted(
    fixed_s=6e-3,
    token_knots=(0,),
    token_slopes_s=(2e-5,),
    per_decode_s=3e-5,
    per_decode_kv_token_s=4e-7,
    per_attention_pair_s=5e-9,
)
"""A server's true law, in round numbers."""
PREFIX = "(EngineCore pid=4242) INFO 11-30 02:55:04 [loggers.py:196] "


@dataclass(frozen=True)
class Server:
    """What a server did: its log, the requests it got, its knobs, and the truth about every iteration."""

    lines: list[str]
    trace: Trace
    config: SchedulerConfig
    features: list[Features]


def golden_server(name: str, *, resumed_is_context: bool = False, noise: float = 0.0, seed: int = 0) -> Server:
    """The recorded schedule ``name`` as a log whose times follow ``LAW`` (noisy by a share)."""
    recorded = json.loads((GOLDEN / f"{name}.json").read_text())
    requests = {request["id"]: request for request in recorded["requests"]}
    computed = dict.fromkeys(requests, 0)
    outputs = dict.fromkeys(requests, 0)
    was_preempted: set[str] = set()
    rng = np.random.default_rng(seed)
    usable = recorded["config"]["num_gpu_blocks"] - 1
    lines, truth = [], []
    for index, scheduled, preempted, *_ in recorded["steps"]:
        for who in preempted:
            computed[who] = 0
            was_preempted.add(who)
        context = [0, 0]
        generation = [0, 0]
        rows = []
        for who, tokens in scheduled:
            start = computed[who]
            resumed = who in was_preempted and start == 0
            kind = context if outputs[who] == 0 or (resumed and resumed_is_context) else generation
            kind[0] += 1
            kind[1] += tokens
            samples = start + tokens == requests[who]["prompt_len"] + outputs[who]
            rows.append((start, tokens, samples))
            computed[who] += tokens
            outputs[who] += samples
        if not rows:
            continue
        features = features_by_hand(rows)
        truth.append(features)
        elapsed_ms = 1e3 * LAW.duration_s(features) * (1 + noise * rng.standard_normal())
        held = {who: computed[who] for who in requests if computed[who] and outputs[who] < requests[who]["output_len"]}
        used = sum(-(-tokens // recorded["config"]["block_size"]) for tokens in held.values())
        lines.append(line(index, *context, *generation, elapsed_ms, 100 * used / usable))
    knobs: dict[str, Any] = {key: value for key, value in recorded["config"].items() if key != "policy"}
    return Server(lines, trace_of(list(requests.values())), SchedulerConfig(**knobs), truth)


def features_by_hand(rows: list[tuple[int, int, bool]]) -> Features:
    """From (start, new tokens, yields a token) of every sequence, by the definitions of ``Features``."""
    decodes = [row for row in rows if row[1] == 1 and row[0] > 0]
    chunks = [row for row in rows if row not in decodes]
    prefill = sum(tokens for _, tokens, _ in chunks)
    return Features(
        num_tokens=len(decodes) + prefill,
        num_decodes=len(decodes),
        num_decode_kv_tokens=sum(start for start, _, _ in decodes),
        num_prefills=len(chunks),
        num_prefill_tokens=prefill,
        prefill_attention_work=sum(tokens * (start + tokens / 2) for start, tokens, _ in chunks),
        num_samples=sum(samples for *_, samples in rows),
        num_blocks_swapped=0,
        num_seqs=len(rows),
    )


def line(
    index: int, contexts: int, context_tokens: int, generations: int, generation_tokens: int, ms: float, usage: float
) -> str:
    return (
        f"{PREFIX}Engine 000: Iteration({index}): {contexts} context requests, {context_tokens} context tokens, "
        f"{generations} generation requests, {generation_tokens} generation tokens, "
        f"iteration elapsed time: {ms:.2f} ms, GPU KV cache usage: {usage:.1f}%"
    )


def trace_of(requests: list[dict[str, Any]]) -> Trace:
    """The requests in order of arrival, a second a step."""
    ordered = sorted(requests, key=lambda request: request["arrival_step"])
    first = ordered[0]["arrival_step"]
    return Trace(
        name="golden",
        arrival_s=np.array([float(request["arrival_step"] - first) for request in ordered]),
        num_prompt_tokens=np.array([request["prompt_len"] for request in ordered]),
        output_len=np.array([request["output_len"] for request in ordered]),
    )

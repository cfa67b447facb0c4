"""Random workloads in the form of a recorded schedule: every knob, shared prefixes, later turns, pools that preempt."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Segment = list[Any]
"""``[stream, first offset, tokens]``"""


def _one_in(n: int) -> st.SearchStrategy[bool]:
    return st.integers(0, n - 1).map(lambda drawn: drawn == n - 1)


@st.composite
def golden_workloads(draw: st.DrawFn) -> dict[str, Any]:
    """``config`` and ``requests`` as a recording holds them; the config is one that vLLM accepts."""
    max_model_len = draw(st.integers(4, 120))
    requests: list[dict[str, Any]] = []
    for index in range(draw(st.integers(1, 16))):
        longest = max_model_len + 1 if draw(_one_in(12)) else max_model_len - 1
        requests.append(draw(_requests(str(index), requests, longest)))
    return {"config": draw(_configs(max_model_len, requests)), "requests": requests}


@st.composite
def _configs(draw: st.DrawFn, max_model_len: int, requests: list[dict[str, Any]]) -> dict[str, Any]:
    block_size = draw(st.sampled_from((1, 2, 3, 4, 5, 8, 16, 32)))
    seqs = draw(st.integers(1, 8))
    chunked = draw(st.sampled_from((True, True, False)))
    least_budget = seqs if chunked else max(seqs, max_model_len)
    needs_tokens = (min(request["prompt_len"] + request["output_len"], max_model_len) for request in requests)
    return {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": least_budget + draw(st.integers(0, 4) | st.integers(0, 48)),
        "max_model_len": max_model_len,
        "block_size": block_size,
        "num_gpu_blocks": draw(_pool_sizes(-(-max(needs_tokens) // block_size))),
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": draw(st.booleans()),
        "policy": draw(st.sampled_from(("fcfs", "priority"))),
        "long_prefill_token_threshold": min(max_model_len, draw(st.just(0) | st.integers(1, 4) | st.integers(1, 40))),
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from((0.0, 0.0, 0.01, 0.1, 0.3, 0.9))),
        "max_num_active_seqs": draw(st.none() | st.integers(1, seqs)),
        "prefill_schedule_interval": draw(st.sampled_from((1, 1, 2, 3, 5))),
        "async_scheduling": draw(st.booleans()),
    }


@st.composite
def _pool_sizes(draw: st.DrawFn, blocks_for_one: int) -> int:
    """Room for one to three of the longest requests; now and then for none, and everything stalls."""
    if draw(_one_in(10)):
        return draw(st.integers(2, 1 + blocks_for_one))
    return 1 + blocks_for_one + draw(st.integers(0, 2 * blocks_for_one))


@st.composite
def _requests(draw: st.DrawFn, name: str, earlier: list[dict[str, Any]], longest: int) -> dict[str, Any]:
    prompt = _cut(draw(_prompts(name, earlier)), longest)
    return {
        "id": name,
        "arrival_step": draw(st.integers(0, 6) | st.integers(0, 60)),
        "prompt_len": sum(length for _, _, length in prompt),
        "output_len": draw(st.integers(1, 24) | st.integers(1, 60)),
        "priority": draw(st.integers(0, 2)),
        "prompt": prompt,
    }


@st.composite
def _prompts(draw: st.DrawFn, name: str, earlier: list[dict[str, Any]]) -> list[Segment]:
    kind = draw(st.sampled_from(("own", "shared", "next turn", "anything")))
    own: Segment = [f"p:{name}", 0, draw(st.integers(1, 40))]
    tail = [own] if draw(st.booleans()) else []
    if kind == "shared":
        return [[draw(st.sampled_from(("sys", "doc"))), 0, draw(st.integers(1, 64))], *tail]
    if kind == "next turn" and earlier:
        before = draw(st.sampled_from(earlier))
        answer: Segment = [f"out:{before['id']}", 0, draw(st.integers(1, before["output_len"]))]
        return [*before["prompt"], answer, *tail]
    if kind == "anything":
        streams = ("sys", "doc", *(f"out:{request['id']}" for request in earlier))
        segment = st.tuples(st.sampled_from(streams), st.integers(0, 9), st.integers(1, 20)).map(list)
        return draw(st.lists(segment, min_size=1, max_size=4))
    return [own]


def _cut(prompt: list[Segment], longest: int) -> list[Segment]:
    """The first ``longest`` tokens."""
    kept: list[Segment] = []
    for stream, start, length in prompt:
        if longest > 0:
            kept.append([stream, start, min(length, longest)])
        longest -= length
    return kept

from __future__ import annotations

import dataclasses

import pytest

from batchtwin.dashboard.facts import facts, trace_text, versions
from batchtwin.dashboard.results import Results
from batchtwin.experiments.scenario import Scenario, TraceSpec


def _with(results: Results, **changes: object) -> dict[str, str]:
    scenario = Scenario.model_validate(results.sweep.spec.scenario.model_dump() | changes)
    results.sweep.spec = results.sweep.spec.model_copy(update={"scenario": scenario})
    return {fact.label: fact.text for fact in facts(results)}


def test_facts_name_model_device_pool_default_and_profile(by_hand: Results) -> None:
    found = _with(by_hand)
    assert found["Model"] == "tiny-llama · float32 · 5 M parameters"
    assert found["Device"] == "toy (cpu) · 1 thread"
    assert found["KV cache"] == "100 blocks of 16 tokens, the same for every cell"
    assert found["vLLM's default"] == "128 × 2,048 (server, cpu)"
    assert found["Profile"] == "pppppppppppppppp · toy"
    assert found["Load ρ"] == "1.50 at the recommended cell: saturated"
    assert "SLOs" not in found


def test_memory_budget_shows_the_blocks_it_leaves(by_hand: Results) -> None:
    found = _with(by_hand, num_gpu_blocks=None, kv_memory_bytes=3 * 2**30)
    assert found["KV cache"] == "3.00 GiB: 100 to 100 blocks of 16 tokens, by cell"


def test_a_gpu_shows_the_blocks_it_leaves(by_hand: Results) -> None:
    found = _with(by_hand, num_gpu_blocks=None, gpu="H100", tensor_parallel_size=2, gpu_memory_utilization=0.9)
    assert found["KV cache"] == "2 × H100 at 90% of its memory: 100 to 100 blocks of 16 tokens, by cell"


def test_slos_and_closed_loop_are_said(by_hand: Results) -> None:
    found = _with(by_hand, slo={"ttft_ms": 500.0}, num_clients=8, think_s=2.0)
    assert found["SLOs"] == "P99 TTFT ≤ 500 ms"
    assert found["Arrivals"] == "closed loop, 8 clients thinking 2 s"


def test_load_without_a_recommendation_is_a_dash(by_hand: Results) -> None:
    found = {fact.label: fact.text for fact in facts(dataclasses.replace(by_hand, recommendation=None))}
    assert found["Load ρ"] == "–"


@pytest.mark.parametrize(
    ("trace", "text"),
    [
        (TraceSpec(source="a.csv"), "a.csv"),
        (TraceSpec(source="a.csv", start=100, num_requests=2000), "a.csv · 2,000 requests from 100"),
        (TraceSpec(source="a.csv", thin=0.5, prompt_scale=2), "a.csv · thinned to 0.5 · lengths × 2 / 1"),
    ],
)
def test_trace_is_told_with_what_was_done_to_it(trace: TraceSpec, text: str) -> None:
    assert trace_text(trace) == text


def test_versions_tell_where_profile_and_page_come_from(by_hand: Results) -> None:
    found = {fact.label: fact.text for fact in versions(by_hand)}
    assert found["Profile made with"] == "made by hand for tests"
    assert "plotly " in found["Shown with"]

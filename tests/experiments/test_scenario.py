"""Scenarios: what contradicts itself or is unknown is refused in one sentence that names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.scenario import Scenario, TraceSpec, load_scenario, make_scenario
from batchtwin.traces import TraceError, azure_conv_like

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "both ways to size the pool": (
        {"num_gpu_blocks": 100, "kv_memory_bytes": 10**9},
        "give num_gpu_blocks or kv_memory_bytes, not both",
    ),
    "an unknown SLO": ({"slo": {"latency_ms": 5}}, "no SLO 'latency_ms'; known are ttft_ms, tpot_ms, e2el_ms"),
    "an SLO that nothing can meet": ({"slo": {"ttft_ms": 0}}, "the SLO ttft_ms is 0 ms"),
    "an SLO that is no number": (
        {"slo": {"ttft_ms": float("nan")}},
        "slo.ttft_ms is NaN, but it must be a finite number",
    ),
    "an unknown field": ({"max_num_sequences": 8}, "no field max_num_sequences; close to it are max_num_seqs and"),
    "an unknown field of the trace": (
        {"trace": {"requests": 8}},
        "no field trace.requests; close to it are num_requests and request_rate",
    ),
    "a word for a number": ({"max_num_seqs": "many"}, 'max_num_seqs is "many", but it must be a whole number'),
    "no requests": ({"trace": {"num_requests": 0}}, "trace.num_requests is 0, but it must be at least 1"),
    "a rate of nothing": ({"trace": {"rate_scale": 0}}, "trace.rate_scale is 0, but it must be above 0"),
    "a rate without end": (
        {"trace": {"rate_scale": float("inf")}},
        "trace.rate_scale is Infinity, but it must be a finite number",
    ),
    "no clients": ({"num_clients": 0}, "num_clients is 0, but it must be at least 1"),
    "thinking backwards": ({"think_s": -1}, "think_s is -1, but it must be at least 0"),
    "thinking for ever": ({"think_s": float("inf")}, "think_s is Infinity, but it must be a finite number"),
    "no threads": ({"threads": 0}, "threads is 0, but it must be at least 1"),
    "another default": ({"default_cell": "aws"}, "default_cell is \"aws\", but it must be 'llm_class' or 'server'"),
}


@pytest.mark.parametrize(("fields", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_a_contradiction_or_an_unknown_word_is_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        make_scenario(**fields)
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_without_a_word_about_the_pool_there_are_4096_blocks() -> None:
    assert Scenario().num_gpu_blocks == 4096
    assert Scenario(kv_memory_bytes=10**9).num_gpu_blocks is None


def test_a_scenario_is_never_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Scenario().max_num_seqs = 4  # type: ignore[misc]


def test_a_changed_copy_is_checked_again() -> None:
    assert Scenario().with_(max_num_seqs=9).max_num_seqs == 9
    with pytest.raises(ExperimentError, match="no SLO 'x'"):
        Scenario().with_(slo={"x": 1})
    with pytest.raises(ExperimentError, match="not both"):
        Scenario().with_(num_gpu_blocks=5, kv_memory_bytes=5)


def test_another_way_to_size_the_pool_replaces_the_one_before() -> None:
    budget = Scenario(num_gpu_blocks=100).with_(kv_memory_bytes=10**9)
    assert (budget.num_gpu_blocks, budget.kv_memory_bytes) == (None, 10**9)
    blocks = budget.with_(num_gpu_blocks=7)
    assert (blocks.num_gpu_blocks, blocks.kv_memory_bytes) == (7, None)
    assert budget.with_(max_num_seqs=4).kv_memory_bytes == 10**9


def test_knobs_reach_the_scheduler_under_their_own_names() -> None:
    config = Scenario(
        max_num_seqs=3,
        max_num_batched_tokens=5,
        max_model_len=7,
        block_size=11,
        max_num_active_seqs=2,
        scheduler_reserve_full_isl=False,
    ).config(13)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.max_model_len) == (3, 5, 7)
    assert (config.block_size, config.num_gpu_blocks, config.max_num_active_seqs) == (11, 13, 2)
    assert config.enable_chunked_prefill
    assert not config.scheduler_reserve_full_isl


def test_a_scenario_comes_back_from_disk_with_the_same_digest(tmp_path: Path) -> None:
    scenario = Scenario(trace=TraceSpec(rate_scale=0.1 + 0.2), slo={"ttft_ms": 1e3 / 3}, num_clients=2)
    path = tmp_path / "scenario.json"
    path.write_text(scenario.model_dump_json(indent=2))
    assert load_scenario(path) == scenario
    assert load_scenario(path).digest() == scenario.digest()
    assert scenario.digest() != scenario.with_(seed=1).digest()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "it is not JSON"),
        ('{"seed": "x"}', 'seed is "x", but it must be a whole number'),
        ('{"new": 1}', "there is no field new"),
    ],
)
def test_a_broken_scenario_file_is_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(content)
    with pytest.raises(ExperimentError, match=f"{path} is not a scenario: {sentence}"):
        load_scenario(path)


def test_a_missing_scenario_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"cannot be read \(No such file or directory\)"):
        load_scenario(tmp_path / "scenario.json")


def test_the_verbs_of_a_trace_act_in_the_order_read_slice_scale_lengths_scale_rate() -> None:
    source = azure_conv_like(50)
    spec = TraceSpec(source="azure-conv-like:50", start=10, num_requests=20, prompt_scale=0.5, rate_scale=4.0)
    trace = spec.load()
    assert len(trace) == 20
    expected_s = (source.arrival_s[10:30] - source.arrival_s[10]) / 4
    assert trace.arrival_s == pytest.approx(expected_s)
    halves = [round(tokens / 2) for tokens in source.num_prompt_tokens[10:30].tolist()]
    assert trace.num_prompt_tokens.tolist() == [max(1, tokens) for tokens in halves]
    assert trace.output_len.tolist() == source.output_len[10:30].tolist()


def test_offline_puts_everybody_at_the_start_and_caps_cut_lengths() -> None:
    trace = TraceSpec(source="azure-conv-like:50", offline=True, max_prompt_tokens=100, max_output_tokens=9).load()
    assert trace.arrival_s.tolist() == [0.0] * 50
    assert trace.num_prompt_tokens.max() == 100
    assert trace.output_len.max() == 9


def test_a_slice_that_leaves_nobody_is_an_error_of_the_trace() -> None:
    with pytest.raises(TraceError, match="leaves no request"):
        TraceSpec(source="azure-conv-like:50", start=50).load()

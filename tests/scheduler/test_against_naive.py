"""Policies vllm_v1 and priority decide as the second implementation does, over every knob, step for step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from golden_workloads import golden_workloads
from hypothesis import HealthCheck, given, reject, settings
from naive_vllm import TooManySteps, compact, replay

from batchtwin.experiments.verify import first_difference, load_golden

DATA = Path(__file__).resolve().parent.parent / "data" / "vllm-0.33.0"

SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _recording(workload: dict[str, Any]) -> dict[str, Any]:
    """What the second implementation makes of a workload; one that never ends is left out."""
    try:
        return replay(workload)
    except TooManySteps:
        reject()


@given(golden_workloads())
@settings(SETTINGS, max_examples=200)
def test_random_workloads_are_scheduled_as_the_second_implementation_does(workload: dict[str, Any]) -> None:
    assert first_difference(_recording(workload)) is None


@pytest.mark.full
@given(golden_workloads())
@settings(SETTINGS, max_examples=5_000)
def test_many_random_workloads_are_scheduled_as_the_second_implementation_does(workload: dict[str, Any]) -> None:
    assert first_difference(_recording(workload)) is None


@given(golden_workloads())
@settings(SETTINGS, max_examples=20)
def test_compact_recordings_compare_as_full_ones_do(workload: dict[str, Any]) -> None:
    recording = _recording(workload)
    assert first_difference({**recording, "detail": "compact", "steps": compact(recording["steps"])}) is None


def test_stalled_requests_are_compared_whatever_their_order() -> None:
    config = load_golden(DATA / "decode_only.json")["config"]
    too_long = [{"id": name, "arrival_step": 0, "prompt_len": 12, "output_len": 3} for name in "ab"]
    recording = replay({"config": {**config, "block_size": 4, "num_gpu_blocks": 3}, "requests": too_long})
    assert sorted(recording["stalled"]) == ["a", "b"]
    assert first_difference({**recording, "stalled": ["a", "b"]}) is None
    assert first_difference({**recording, "stalled": ["b", "a"]}) is None
    assert first_difference({**recording, "stalled": ["a"]}).startswith("at the end: stalled: expected ['a']")

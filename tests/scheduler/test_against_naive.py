"""Policies vllm_v1 and priority decide as the second implementation does, over every knob and step for step."""

from __future__ import annotations

from typing import Any

import pytest
from golden_workloads import golden_workloads
from hypothesis import HealthCheck, assume, given, settings
from naive_vllm import TooManySteps, compact, replay

from batchtwin.experiments.verify import first_difference

SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def difference(workload: dict[str, Any]) -> str | None:
    """In words, where the two disagree about a workload; those that never end are left out."""
    try:
        recording = replay(workload)
    except TooManySteps:
        assume(False)
    return first_difference(recording)


@given(golden_workloads())
@settings(SETTINGS, max_examples=200)
def test_random_workloads_are_scheduled_as_the_second_implementation_does(workload: dict[str, Any]) -> None:
    assert difference(workload) is None


@pytest.mark.full
@given(golden_workloads())
@settings(SETTINGS, max_examples=5_000)
def test_many_random_workloads_are_scheduled_as_the_second_implementation_does(workload: dict[str, Any]) -> None:
    assert difference(workload) is None


@given(golden_workloads())
@settings(SETTINGS, max_examples=20)
def test_compact_recordings_compare_as_full_ones_do(workload: dict[str, Any]) -> None:
    try:
        recording = replay(workload)
    except TooManySteps:
        assume(False)
    assert first_difference({**recording, "detail": "compact", "steps": compact(recording["steps"])}) is None

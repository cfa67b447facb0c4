"""``metrics(records)`` against a naive second implementation, over random workloads: the bookkeeping of gaps in
``sim.records`` touches a request only when something happens to it, the naive one walks every batch.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from naive_metrics import naive_metrics
from replays import Workload, play, workloads

from batchtwin.scheduler import SchedulerConfig
from batchtwin.sim.metrics import itl_gaps, metrics

QUICK = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(QUICK, max_examples=2000)
ANY = workloads() | workloads(policies=("slices", "vllm_v1"))
SLO = {"ttft_ms": 20.0, "tpot_ms": 2.0, "e2el_ms": 60.0}


def check(workload: Workload) -> dict[str, float]:
    played = play(workload)
    expected = naive_metrics(played, SLO)
    found = metrics(played.records, workload.config.num_usable_blocks, SLO)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True), name
    return found


@given(ANY)
@QUICK
def test_metrics_equal_those_of_a_walk_over_every_batch(workload: Workload) -> None:
    check(workload)


@given(workloads(closed=True))
@settings(QUICK, max_examples=60)
def test_metrics_equal_those_of_a_walk_in_a_closed_loop(workload: Workload) -> None:
    check(workload)


@given(workloads(policies=("vllm_v1",), asynchronous=True))
@settings(QUICK, max_examples=60)
def test_metrics_equal_those_of_a_walk_with_two_batches_in_flight(workload: Workload) -> None:
    check(workload)


@pytest.mark.full
@given(ANY | workloads(closed=True))
@LONG
def test_metrics_equal_those_of_a_walk_over_many_examples(workload: Workload) -> None:
    check(workload)


@pytest.mark.parametrize("policy", ["vllm_v1", "prefill_first"])
def test_gaps_over_preemptions_are_counted_once(policy: str) -> None:
    """Two requests of 12 + 20 tokens in 9 blocks of 4: both cannot stay, so one is preempted and computed anew."""
    config = SchedulerConfig(
        max_num_seqs=4, max_num_batched_tokens=64, max_model_len=40, block_size=4, num_gpu_blocks=10
    )
    workload = Workload(policy, config, ((0.0, 12, 20), (0.0, 12, 20), (0.01, 5, 3)))
    found = check(workload)
    assert found["num_preemptions"] >= 1
    assert found["recomputed_tokens"] >= 12
    _, counts = itl_gaps(play(workload).records)
    assert counts.sum() == 19 + 19 + 2


def test_gaps_over_stalled_decodes_are_counted_once() -> None:
    """A prompt of 30 in slices of 4 stands before a short request whose decodes get no budget meanwhile."""
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8, max_model_len=64)
    workload = Workload("slices", config, ((0.0, 30, 4), (0.0, 3, 6)))
    check(workload)
    played = play(workload)
    assert any(step.batch.stalled for step in played.iterations)
    gaps_s, counts = itl_gaps(played.records)
    assert counts.sum() == 3 + 5
    assert gaps_s.max() > 2.5 * np.median(gaps_s), "the stall is a long gap"


def test_random_workloads_contain_what_they_are_meant_to_test() -> None:
    """The strategy is worth something only if preemptions, stalls and padding occur in it."""
    seen = {"preempted": 0, "stalled": 0, "padded": 0}

    @given(ANY)
    @QUICK
    def count(workload: Workload) -> None:
        steps = play(workload).iterations
        seen["preempted"] += any(step.batch.preempted for step in steps)
        seen["stalled"] += any(step.batch.stalled for step in steps)
        seen["padded"] += any(step.padding_tokens for step in steps)

    count()
    assert min(seen.values()) >= 5, seen

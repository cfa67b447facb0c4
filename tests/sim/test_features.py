"""What a cost model sees of a batch, and that it sees the same in the record of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from replays import HOST, LAW, Workload, play, workloads

from batchtwin.scheduler import SchedulerConfig
from batchtwin.sim.cost.features import Features, features_of, features_of_columns, stack

QUICK = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@given(workloads())
@QUICK
def test_features_are_the_sums_of_a_walk_over_the_rows(workload: Workload) -> None:
    for step in play(workload).iterations:
        computed = [(row.start, row.num_tokens) for row in step.rows]
        computed += [(chunk.start, chunk.num_tokens) for chunk in step.batch.padding]
        decodes = [start for start, new in computed if new == 1 and start > 0]
        chunks = [(start, new) for start, new in computed if not (new == 1 and start > 0)]
        expected = Features(
            num_tokens=sum(new for _, new in computed),
            num_decodes=len(decodes),
            num_decode_kv_tokens=sum(decodes),
            num_prefills=len(chunks),
            num_prefill_tokens=sum(new for _, new in chunks),
            prefill_attention_work=sum(new * (start + new / 2) for start, new in chunks),
            num_samples=sum(row.samples for row in step.rows),
            num_blocks_swapped=len(step.batch.copies_out) + len(step.batch.copies_in),
            num_seqs=len(step.rows),
        )
        assert features_of(step.batch) == pytest.approx(expected)


@given(workloads())
@QUICK
def test_recorded_features_give_the_recorded_times_bit_for_bit(workload: Workload) -> None:
    played = play(workload)
    iterations = played.records.iterations
    columns = features_of_columns(iterations)
    walked = stack([features_of(step.batch) for step in played.iterations])
    for name, recorded, seen in zip(Features._fields, columns, walked, strict=True):
        assert recorded.tolist() == seen.tolist(), name
    assert LAW.durations_s(columns).tolist() == iterations["device_s"].tolist()
    assert HOST.hosts_s(columns).tolist() == iterations["host_s"].tolist()


def test_padding_counts_as_the_work_it_is_but_yields_no_samples() -> None:
    """Static batch of prompts 2 and 6: 12 slots, 2 chunks and a padding row of 4; 6·(0+3) + 2·(0+1) + 4·(2+2) = 36
    pairs. The host handles two sequences."""
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=64, max_model_len=32)
    first = play(Workload("static_batch", config, ((0.0, 2, 3), (0.0, 6, 1)))).iterations[0]
    assert features_of(first.batch) == Features(12, 0, 0, 3, 12, 36.0, 2, 0, 2)


def test_no_rows_stack_to_empty_columns() -> None:
    assert np.shape(stack([])) == (len(Features._fields), 0)

"""Rule 10: policy vllm_v1 reproduces schedules recorded from the real vLLM, step for step, block id for block id."""

from __future__ import annotations

import golden
import pytest

PLAIN = [
    "decode_only",
    "budget_hit_exactly",
    "chunked_long_prompt",
    "chunked_prefill_off",
    "max_num_seqs_saturated",
    "output_len_one",
    "max_model_len",
    "preempt_last_fcfs",
    "reserve_full_prompt_on",
    "pressure_block_4",
    "stream_plain",
    "stream_pressure",
]


@pytest.mark.parametrize("name", PLAIN)
def test_rule_10_recorded_schedule_is_reproduced(name: str) -> None:
    recording = golden.load(name)
    ours = golden.replay(recording)
    for expected, got in zip(recording["steps"], ours, strict=False):
        assert got == expected
    assert len(ours) == len(recording["steps"])

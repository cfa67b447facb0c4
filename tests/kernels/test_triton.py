"""The Triton kernels in the interpreter against the naive references: what they compute, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from .triton_cases import SMALL, full
from .workers import output_of

WORST_OVER_RMS = 20
"""The worst element may be off by so many times the tolerated RMS: of 10,000 normal errors the largest is 4."""


@pytest.fixture(scope="module")
def errors() -> dict[str, Any]:
    return output_of("triton_worker.py", "small")


@pytest.mark.parametrize("case", SMALL)
def test_attention_equals_the_reference_and_touches_no_poisoned_place(errors: dict[str, Any], case: str) -> None:
    rms_ratio, worst, worst_at = errors[case]
    assert rms_ratio < SMALL[case].tolerance
    assert worst < WORST_OVER_RMS * SMALL[case].tolerance, worst_at


def test_every_interpreted_case_is_looked_at(errors: dict[str, Any]) -> None:
    assert set(errors) == {*SMALL, "replay", "far page", "merge", "write", "write fp8", "draw"}


def test_write_kv_equals_the_reference_bit_for_bit(errors: dict[str, Any]) -> None:
    assert errors["write"][0] == 0.0


def test_drawing_takes_the_tokens_that_pytorch_takes(errors: dict[str, Any]) -> None:
    assert errors["draw"][0] == 0.0


def test_write_kv_scales_clips_and_rounds_into_an_fp8_cache(errors: dict[str, Any]) -> None:
    assert errors["write fp8"][0] == 0.0


def test_a_grid_sized_for_one_batch_serves_another_with_padding(errors: dict[str, Any]) -> None:
    assert errors["replay"][0] < 2e-6


def test_page_offsets_beyond_32_bits_are_read_and_written(errors: dict[str, Any]) -> None:
    assert errors["far page"][0] < 2e-6


def test_merging_weighs_parts_and_skips_sequences_of_one(errors: dict[str, Any]) -> None:
    assert errors["merge"][0] < 1e-6


@pytest.mark.full
def test_attention_equals_the_reference_over_every_head_size_and_page() -> None:
    grid = full()
    errors = output_of("triton_worker.py", "full")
    assert len(errors) == 300
    wrong = {
        name: (ratio, worst, at)
        for name, (ratio, worst, at) in errors.items()
        if not (ratio < grid[name].tolerance and worst < WORST_OVER_RMS * grid[name].tolerance)
    }
    assert wrong == {}

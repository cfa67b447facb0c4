"""Rows of the field: what is declared of each still holds, and the committed table says so."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from field_replays import Outcome
from field_rows import CHECKED, CHECKS, outcome, row, rows
from write_table import TABLE, table

ROW_IDS = [row["id"] for row in rows()]


@pytest.mark.parametrize("row_id", [row["id"] for row in rows() if row["verdict"] == "pass"])
def test_a_row_declared_pass_passes(row_id: str) -> None:
    found = outcome(row_id)
    assert found.holds, found.came_out


@pytest.mark.parametrize("row_id", [row["id"] for row in rows() if row["verdict"] == "fail"])
def test_a_row_declared_fail_still_fails_in_the_way_stated(row_id: str) -> None:
    assert outcome(row_id) == Outcome(False, row(row_id)["came_out"])


def test_a_row_without_a_check_gives_its_reason() -> None:
    unchecked = [row for row in rows() if row["verdict"] not in CHECKED]
    assert {row["verdict"] for row in unchecked} <= {"not modelled", "next"}
    assert all(row["note"] for row in unchecked)
    assert not {row["id"] for row in unchecked} & set(CHECKS)


def test_every_row_that_needs_no_device_table_is_there_once() -> None:
    """The numbers of the collection, by tier; S36 and S45 have a shape as well as an exact part."""
    arithmetic = {5, 7, 10, 11, 12, 13, 53}
    policy = {1, 2, 3, 4, 6, 8, 9, 14, 15, 16, 17, 26, 36, 45}
    shape = {19, 20, 24, 27, 28, 30, 31, 32, 34, 37, 39, 41, 42, 44, 51, 55, 59, 60, 63, 64}
    assert len(ROW_IDS) == len(set(ROW_IDS))
    gpus = {21, 22, 48, 49, 56, 61}
    for tier, numbers in (("T1", arithmetic), ("T2", policy), ("T3", shape), ("T4", gpus)):
        assert {row["id"] for row in rows() if row["tier"] == tier} == {f"S{number:02}" for number in numbers}


def test_the_committed_table_is_what_the_checks_give() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), "run python tests/scenarios/write_table.py"


def test_the_price_of_mixed_attention_is_that_of_the_recorded_profile(shared_path: Callable[[str], Path]) -> None:
    """S20: (mixed − chunk alone) / decodes alone, over all recorded points of 8 to 32 decodes at contexts of 16,384."""
    path = shared_path("data/llmservingsim_rtxpro6000_llama31_8b/profile/tp1/attention.csv")
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    with path.open(newline="") as file:
        took = {tuple(int(row[name]) for name in names): float(row["time_us"]) for row in csv.DictReader(file)}
    factors = [
        (took[chunk, start, decodes, kv] - took[chunk, start, 0, 0]) / took[0, 0, decodes, kv]
        for chunk, start, decodes, kv in took
        if chunk and kv == 16384 and decodes in (8, 16, 32) and (chunk, start, 0, 0) in took
    ]
    assert len(factors) == 675
    assert np.median(factors) == pytest.approx(row("S20")["inputs"]["mixed_decode_kv_factor"], abs=0.05)
    assert np.percentile(factors, 5) == pytest.approx(1.2, abs=0.05)

"""Rows of the field: what is declared of each still holds, and the committed table says so."""

from __future__ import annotations

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
    shape = {19, 20, 27, 30, 31, 32, 34, 37, 39, 41, 51, 55, 64}
    assert len(ROW_IDS) == len(set(ROW_IDS))
    for tier, numbers in (("T1", arithmetic), ("T2", policy), ("T3", shape)):
        assert {row["id"] for row in rows() if row["tier"] == tier} == {f"S{number:02}" for number in numbers}


def test_the_committed_table_is_what_the_checks_give() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), "run python tests/scenarios/write_table.py"

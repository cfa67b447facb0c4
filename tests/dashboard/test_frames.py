from __future__ import annotations

import dataclasses

import pytest

from batchtwin.dashboard import frames
from batchtwin.dashboard.results import Results


def test_summary_reads_without_a_raw_column_name(by_hand: Results) -> None:
    (row,) = frames.summary(by_hand).to_dict("records")
    assert row == {
        "Metric": "Output throughput",
        "Median": "35.0 %",
        "Worst": "50.0 %",
        "Bias": "+15.0 %",
        "Noise": "4.0 %",
        "Constant": "55.0 %",
    }


def test_regret_names_who_chose(by_hand: Results) -> None:
    rows = frames.regret(by_hand)
    assert rows["Chosen by"].tolist() == ["BatchTwin's prediction", "A random cell (mean)"]
    assert rows["Lost of the measured best output throughput"].tolist() == ["0.0 %", "18.8 %"]


def test_split_shows_the_difference_and_parts_that_sum_to_it(by_hand: Results) -> None:
    (row,) = frames.split(by_hand, "output_throughput").to_dict("records")
    assert row["Measured − predicted"] == "−100"  # 200 − 300
    assert (row["Host gaps and clock"], row["Cost model"], row["Other decisions"]) == ("−10", "−90", "0")


def test_cells_show_counts_whole_and_missing_as_missing(by_hand: Results) -> None:
    shown = frames.cells(by_hand, "output_throughput")
    assert shown["KV blocks"].tolist()[0] == 100
    assert shown["KV blocks"].isna().tolist() == [False, False, True, False, False]
    assert str(shown["Preemptions"].dtype) == "Int64"
    assert shown["Output throughput (tokens/s), measured"].tolist()[3] == 200
    assert shown["Cannot work because"].tolist()[2] == "the pool <is> too small"


def test_policy_is_shown_only_where_there_are_several(by_hand: Results) -> None:
    assert "Policy" not in frames.cells(by_hand, "output_throughput")
    by_hand.sweep.spec = by_hand.sweep.spec.model_copy(update={"policies": ("vllm_v1", "prefill_first")})
    assert "Policy" in frames.cells(by_hand, "output_throughput")


def test_nothing_measured_has_no_summary(by_hand: Results) -> None:
    bare = dataclasses.replace(by_hand, comparison=None)
    assert frames.summary(bare).empty
    assert frames.regret(bare).empty
    assert frames.split(bare, "output_throughput").empty


@pytest.mark.parametrize(("value", "text"), [(12.34, "+12.3"), (-12.34, "−12.3"), (0.001, "0.00"), (-0.001, "0.00")])
def test_signed_numbers_that_read_as_zero_have_no_sign(value: float, text: str) -> None:
    assert frames.signed(value) == text

from __future__ import annotations

import pytest

from batchtwin.dashboard.labels import LABELS, compact, label, number, percent, quantity
from batchtwin.experiments.sweep import Sweep


def test_every_metric_of_a_prediction_has_a_label(predicted: Sweep) -> None:
    metrics = predicted.feasible()[0].metrics
    assert [name for name in metrics if name not in LABELS] == []


def test_milliseconds_say_so_and_less_of_them_is_better() -> None:
    found = label("p99_itl_ms")
    assert found.with_unit == "P99 ITL (ms)"
    assert found.lower_is_better is True
    assert label("output_throughput").lower_is_better is False
    assert label("mean_running").lower_is_better is None


def test_shares_are_shown_in_per_cent() -> None:
    assert quantity("peak_kv_usage", 0.534) == "53.4 %"


def test_metric_of_a_later_version_is_shown_by_its_name() -> None:
    assert label("some_new_metric").text == "Some new metric"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0, "0"), (0.123, "0.12"), (9.994, "9.99"), (45.67, "45.7"), (1234.5, "1,234"), (-3.25, "−3.25")],
        *[(float("nan"), "–"), (float("inf"), "∞")],
    ],
)
def test_numbers_have_about_three_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(9999, "9,999"), (13_786, "13.8k"), (2_500_000, "2.50M"), (3.2e9, "3.20G"), (0.5, "0.50")],
        *[(9_999.7, "10.0k"), (999_700, "1.00M"), (99.96, "100")],
    ],
)
def test_numbers_in_cells_have_at_most_five_characters(value: float, text: str) -> None:
    assert compact(value) == text
    assert len(text) <= 5


def test_percent_has_a_sign_only_where_there_is_a_change() -> None:
    assert percent(3.14159, signed=True) == "+3.1 %"
    assert percent(-0.01, signed=True) == "0.0 %"
    assert percent(-12.25) == "−12.2 %"
    assert percent(float("nan")) == "–"

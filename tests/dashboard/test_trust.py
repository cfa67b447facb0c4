from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from profiles import toy_profile

from batchtwin.dashboard.results import Results
from batchtwin.dashboard.trust import (
    NEVER,
    binned,
    calibration_card,
    coverage,
    law_text,
    regime_of,
    residual_figure,
    residuals,
    split_figure,
    split_frame,
    validation,
)
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.replay import predict

from .conftest import SCENARIO


@pytest.mark.parametrize(("rho", "regime"), [(0.99, "below saturation"), (1.0, "saturated"), (3.0, "saturated")])
def test_saturated_is_a_load_of_at_least_one(rho: float, regime: str) -> None:
    assert regime_of(rho) == regime


def test_validation_tells_regimes_apart_and_what_was_never_measured(by_hand: Results) -> None:
    rows = validation(by_hand).set_index("Metric")
    assert rows.loc["Output throughput", "Saturated"] == "35.0 % median, 50.0 % worst (2)"  # −20 and +50 %
    assert rows.loc["Output throughput", "Below saturation"] == NEVER
    assert rows.loc["Peak KV usage", "Saturated"] == NEVER
    assert "Interval holds" not in rows


def test_nothing_measured_is_never_validated_throughout(by_hand: Results) -> None:
    rows = validation(dataclasses.replace(by_hand, comparison=None))
    assert (rows[["Below saturation", "Saturated"]] == NEVER).to_numpy().all()


def test_coverage_counts_measurements_inside_the_interval(by_hand: Results) -> None:
    assert by_hand.comparison is not None
    rows = by_hand.comparison.cells.assign(inside=[1.0, 0.0])
    results = dataclasses.replace(by_hand, comparison=dataclasses.replace(by_hand.comparison, cells=rows))
    assert coverage(results, "output_throughput") == 0.5
    assert validation(results).set_index("Metric").loc["Output throughput", "Interval holds"] == "50.0 %"
    without = by_hand.comparison.cells.assign(inside=np.nan)
    results = dataclasses.replace(by_hand, comparison=dataclasses.replace(by_hand.comparison, cells=without))
    assert coverage(results, "output_throughput") is None


def test_split_is_in_percent_of_the_measured_value_and_sums(by_hand: Results) -> None:
    (row,) = split_frame(by_hand, "output_throughput").to_dict("records")
    assert (row["rest"], row["cost"], row["schedule"]) == (-5.0, -45.0, 0.0)  # −10, −90 and 0 of 200
    assert row["total"] == row["rest"] + row["cost"] + row["schedule"] == -50.0
    figure = split_figure(split_frame(by_hand, "output_throughput"), "output_throughput")
    assert [trace.name for trace in figure.data] == ["Cost model", "Other decisions", "Host gaps and clock", "Sum"]


def test_iterations_that_the_law_made_have_no_residual() -> None:
    profile = toy_profile()
    rows = residuals([predict(Cell("vllm_v1", 4, 64).of(SCENARIO), profile)], profile)
    assert len(rows) > 50
    np.testing.assert_allclose(rows["residual_percent"], 0, atol=1e-9)


def test_residual_of_a_law_twice_as_slow_is_a_hundred_percent() -> None:
    profile = toy_profile()
    run = predict(Cell("vllm_v1", 4, 64).of(SCENARIO), profile)
    law = profile.law.model_dump()
    twice = {name: 2 * value for name, value in law.items() if name.startswith(("fixed", "per_"))}
    twice["token_slopes_s"] = tuple(2 * slope for slope in law["token_slopes_s"])
    slow = profile.model_copy(update={"law": profile.law.model_copy(update=twice)})
    np.testing.assert_allclose(residuals([run], slow)["residual_percent"], 100)


def test_bins_hold_equally_many_and_tell_median_and_band() -> None:
    rows = pd.DataFrame({"num_tokens": np.arange(240), "residual_percent": np.repeat([-10.0, 20.0], 120)})
    band = binned(rows, "num_tokens")
    assert band["count"].tolist() == [10] * 24
    assert band["median"].tolist() == [-10.0] * 12 + [20.0] * 12


def test_no_iterations_draw_an_empty_figure() -> None:
    empty = residuals([], toy_profile())
    assert residual_figure(empty, "num_tokens").layout.yaxis.range == (-10, 10)


def test_one_wild_step_does_not_flatten_the_rest() -> None:
    rows = pd.DataFrame({"num_tokens": np.arange(1, 1001), "residual_percent": [4000.0] + [8.0] * 999})
    assert residual_figure(rows, "num_tokens").layout.yaxis.range[1] == pytest.approx(8)


def test_calibration_card_has_errors_nulls_noise_and_provenance() -> None:
    card = {fact.label: fact.text for fact in calibration_card(toy_profile())}
    assert card["Fitted law, held out"] == "3.0 % median, 6.0 % P90, 9.0 % worst, bias +0.5 %"
    assert "Null: constant, held out" in card
    assert card["The device repeats itself within"] == "4.0 %"
    assert card["Made"] == "by hand for tests"


def test_law_is_told_in_microseconds_without_what_is_zero() -> None:
    text = law_text(toy_profile())
    assert text.startswith("fixed 2,000 µs, per token 100 µs")
    assert "per prefill token" not in text

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from batchtwin.dashboard.colors import NEUTRAL
from batchtwin.dashboard.pareto import explorer, frontier, pareto, pareto_data
from batchtwin.dashboard.results import Results
from batchtwin.experiments.grid import Cell

ITL = [10.0, 12.0, 30.0, 60.0]
"""P99 ITL of the four cells with a result, in ms."""


@pytest.fixture
def results(by_hand: Results) -> Results:
    """``by_hand`` (100, 110, 300 and 400 tokens/s) with latencies."""
    itl = iter(ITL)
    cells = tuple(
        one._replace(
            metrics={**one.metrics, "p99_itl_ms": (value := next(itl)), "mean_tpot_ms": value / 2, "p99_ttft_ms": 100.0}
        )
        if one.metrics
        else one
        for one in by_hand.cells
    )
    return dataclasses.replace(by_hand, cells=cells)


def test_frontier_keeps_what_nothing_beats() -> None:
    throughput, latency = pd.Series([100.0, 200, 200, 300, 150]), pd.Series([1.0, 2, 3, 5, 2])
    assert frontier(throughput, latency, lower_is_better=True) == [True, True, False, True, False]


def test_frontier_of_a_speed_turns_round() -> None:
    assert frontier(pd.Series([100.0, 200.0]), pd.Series([5.0, 6.0]), lower_is_better=False) == [False, True]


def test_undefined_values_are_never_on_the_frontier() -> None:
    assert frontier(pd.Series([100.0, 50.0]), pd.Series([np.nan, 5.0]), lower_is_better=True) == [False, True]


def test_infeasible_cells_are_left_out_and_measured_twins_stand_beside(results: Results) -> None:
    rows = pareto_data(results, "p99_itl_ms", {}, None).rows
    assert rows["throughput"].tolist() == [100, 110, 300, 400]
    assert rows["against"].tolist() == ITL
    assert rows["measured_throughput"].tolist()[::2] == [125, 200]
    assert rows["measured_against"].isna().all()  # no ITL was compared


def test_speed_of_a_user_is_one_over_the_mean_tpot(results: Results) -> None:
    rows = pareto_data(results, "tokens_per_s_user", {}, None).rows
    assert rows["against"].tolist() == pytest.approx([200, 1000 / 6, 1000 / 15, 1000 / 30])


@pytest.mark.parametrize(
    ("against", "slo", "limit"),
    [
        ("p99_ttft_ms", {"ttft_ms": 250.0}, 250.0),
        ("tokens_per_s_user", {"tpot_ms": 50.0}, 20.0),
        ("p99_itl_ms", {"tpot_ms": 50.0}, None),  # TPOT is not ITL
    ],
)
def test_slo_of_the_axis_is_its_limit(
    results: Results, against: str, slo: dict[str, float], limit: float | None
) -> None:
    assert pareto_data(results, against, slo, None).limit == limit  # type: ignore[arg-type]


def test_figure_shades_what_misses_the_slo_and_marks_the_recommended_cell(results: Results) -> None:
    data = pareto_data(results, "p99_ttft_ms", {"ttft_ms": 50.0}, Cell("vllm_v1", 8, 256))
    figure = pareto(data)
    shade = figure.layout.shapes[0]
    assert shade.x0 == 50
    assert shade.x1 > 100
    (star,) = [trace for trace in figure.data if trace.name == "Recommended"]
    assert (list(star.x), list(star.y)) == ([100.0], [300.0])
    assert star.marker.color == NEUTRAL  # seen on light and on dark
    (cloud,) = [trace for trace in figure.data if trace.name.startswith("Predicted")]
    assert set(cloud.marker.symbol) == {"circle-open"}  # 100 ms miss 50 ms


def test_points_carry_the_key_of_their_cell(results: Results) -> None:
    figure = pareto(pareto_data(results, "p99_itl_ms", {}, None))
    (cloud,) = [trace for trace in figure.data if trace.name.startswith("Predicted")]
    assert cloud.customdata[0][0] == Cell("vllm_v1", 4, 64).key


def test_explorer_has_an_axis_a_knob_in_octaves_and_one_a_known_metric(results: Results) -> None:
    rows = pd.DataFrame([{**one.cell._asdict(), "status": one.status, **one.metrics} for one in results.cells])
    (trace,) = explorer(rows, ("output_throughput", "p99_itl_ms", "beauty")).data
    assert [axis.label for axis in trace.dimensions] == [
        "max_num_seqs",
        "max_num_batched_tokens",
        "Output tokens/s",
        "P99 ITL, ms",
    ]
    assert list(trace.dimensions[0]["values"]) == [2, 2, 3, 7]
    assert list(trace.dimensions[0].ticktext) == ["4", "8", "128"]

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from batchtwin.dashboard.colors import ERRORS, MEASURED, PREDICTED, VALUES
from batchtwin.dashboard.data import HeatmapData, heatmap_data
from batchtwin.dashboard.heatmaps import heatmap
from batchtwin.dashboard.results import Results

NAN = float("nan")


@pytest.fixture
def data(by_hand: Results) -> HeatmapData:
    return heatmap_data(by_hand, "output_throughput")


def _trace(figure: go.Figure, name: str) -> Any:
    (found,) = [trace for trace in figure.data if trace.name == name]
    return found


def _colors(trace: Any) -> list[str]:
    return [color for _, color in trace.colorscale]


@pytest.mark.parametrize(("what", "matrix"), [("predicted", "predicted"), ("measured", "measured")])
def test_each_matrix_is_one_trace_with_its_numbers(data: HeatmapData, what: Any, matrix: str) -> None:
    trace = _trace(heatmap(data, what), what)
    np.testing.assert_array_equal(trace.z, getattr(data, matrix))
    assert _colors(trace) == [color for _, color in VALUES]


def test_error_is_one_trace_around_zero_within_a_round_limit(data: HeatmapData) -> None:
    trace = _trace(heatmap(data, "error"), "error")
    np.testing.assert_array_equal(trace.z, data.error_percent)
    assert (trace.zmin, trace.zmax) == (-50, 50)  # the worst is +50 %
    assert _colors(trace) == [color for _, color in ERRORS]
    assert trace.text[0][0] == "−20.0"
    assert trace.text[1][1] == "+50.0"


def test_small_errors_do_not_look_large(data: HeatmapData) -> None:
    small = dataclasses.replace(data, error_percent=data.error_percent / 100)
    assert _trace(heatmap(small, "error"), "error").zmax == 10


def test_predicted_and_measured_share_their_colors(data: HeatmapData) -> None:
    one, other = (_trace(heatmap(data, what), what) for what in ("predicted", "measured"))
    assert (one.zmin, one.zmax) == (other.zmin, other.zmax) == (100, 400)


def test_titles_carry_metric_unit_and_the_color_of_their_world(data: HeatmapData) -> None:
    titles = {what: heatmap(data, what).layout.title.text for what in ("predicted", "measured", "error")}
    assert PREDICTED in titles["predicted"]
    assert MEASURED in titles["measured"]
    assert all("Output throughput (tokens/s)" in titles[what] for what in ("predicted", "measured"))
    assert "(%)" in titles["error"]


def test_axes_show_the_knobs_values_with_their_units(data: HeatmapData) -> None:
    layout = heatmap(data, "predicted").layout
    assert list(layout.xaxis.ticktext) == ["64", "256", "2,048"]
    assert list(layout.yaxis.ticktext) == ["4", "8", "128"]
    assert layout.xaxis.title.text == "max_num_batched_tokens (tokens)"
    assert layout.yaxis.title.text == "max_num_seqs (sequences)"


def test_marks_stand_within_their_cells(data: HeatmapData) -> None:
    figure = heatmap(data, "predicted")
    for name, (row, column) in (("recommended", (1, 1)), ("vLLM default", (2, 2)), ("preempts", (2, 2))):
        mark = _trace(figure, name)
        assert len(mark.x) == len(mark.y) == 1
        assert abs(mark.x[0] - column) < 0.5
        assert abs(mark.y[0] - row) < 0.5


def test_no_recommendation_leaves_no_mark(data: HeatmapData) -> None:
    figure = heatmap(dataclasses.replace(data, recommended=None, default=None), "predicted")
    assert not _trace(figure, "recommended").x
    assert not _trace(figure, "vLLM default").x


def test_preemption_is_marked_on_the_prediction_only(data: HeatmapData) -> None:
    assert not _trace(heatmap(data, "measured"), "preempts").x


def test_hatching_stays_within_infeasible_cells(data: HeatmapData) -> None:
    hatching = _trace(heatmap(data, "predicted"), "infeasible")
    points = [(x, y) for x, y in zip(hatching.x, hatching.y, strict=True) if x is not None]
    assert points
    assert all(-0.5 <= x <= 0.5 and 0.5 <= y <= 1.5 for x, y in points)  # row 1, column 0


def test_hatching_strokes_are_diagonals(data: HeatmapData) -> None:
    hatching = _trace(heatmap(data, "predicted"), "infeasible")
    points = list(zip(hatching.x, hatching.y, strict=True))
    for (x0, y0), (x1, y1), gap in zip(points[::3], points[1::3], points[2::3], strict=True):
        assert x1 - x0 == pytest.approx(y0 - y1)
        assert gap == (None, None)


def test_hovering_an_infeasible_cell_says_why_and_cannot_inject_markup(data: HeatmapData) -> None:
    text = _trace(heatmap(data, "predicted"), "grid").customdata[1][0]
    assert "the pool &lt;is&gt; too small" in text


def test_hovering_a_measured_cell_says_all_three_numbers(data: HeatmapData) -> None:
    text = _trace(heatmap(data, "measured"), "measured").customdata[0][0]
    for part in ("predicted 100 tokens/s", "measured 125 tokens/s ± 4 %", "error −20.0 %"):
        assert part in text


def test_hovering_tells_unmeasured_cells_from_those_outside_the_grid(data: HeatmapData) -> None:
    hovers = _trace(heatmap(data, "measured"), "grid").customdata
    assert "not measured" in hovers[0][1]
    assert "not in this grid" in hovers[0][2]


def test_colors_follow_the_logarithm_where_values_span_decades(data: HeatmapData) -> None:
    wide = dataclasses.replace(data, predicted=data.predicted * np.array([[1.0], [1.0], [100.0]]))
    trace = _trace(heatmap(wide, "predicted"), "predicted")
    assert trace.z[2][2] == pytest.approx(np.log10(40_000))
    assert trace.text[2][2] == "40k"


def test_bright_is_better_whichever_way_the_metric_runs(data: HeatmapData) -> None:
    latency = heatmap(dataclasses.replace(data, metric="mean_ttft_ms"), "predicted")
    assert _colors(_trace(latency, "predicted")) == [color for _, color in reversed(VALUES)]


def test_equal_values_everywhere_still_have_a_color_range(data: HeatmapData) -> None:
    fives = np.where(np.isnan(data.predicted), NAN, 5.0)
    flat = dataclasses.replace(data, predicted=fives, measured=data.measured * NAN)
    trace = _trace(heatmap(flat, "predicted"), "predicted")
    assert trace.zmin < 5 < trace.zmax


def test_empty_matrices_draw_without_a_warning(data: HeatmapData) -> None:
    empty = dataclasses.replace(data, predicted=data.predicted * NAN, measured=data.measured * NAN)
    assert np.isnan(_trace(heatmap(empty, "predicted"), "predicted").z).all()
    none = dataclasses.replace(data, error_percent=data.error_percent * NAN)
    assert _trace(heatmap(none, "error"), "error").zmax == 10


def test_wide_grids_have_no_numbers_in_their_cells(data: HeatmapData) -> None:
    tokens = tuple(2**power for power in range(5, 17))
    wide = {
        field.name: np.repeat(getattr(data, field.name)[:, :1], len(tokens), axis=1)
        for field in dataclasses.fields(data)
        if isinstance(getattr(data, field.name), np.ndarray)
    }
    figure = heatmap(dataclasses.replace(data, max_num_batched_tokens=tokens, **wide), "predicted")
    assert _trace(figure, "predicted").texttemplate is None

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from batchtwin.dashboard.colors import ERRORS, MEASURED, PREDICTED, VALUES
from batchtwin.dashboard.data import HeatmapData, heatmap_data
from batchtwin.dashboard.heatmaps import CLICKS, edges, heatmap, legend
from batchtwin.dashboard.results import Results

NAN = float("nan")


@pytest.fixture
def data(with_default: Results) -> HeatmapData:
    return heatmap_data(with_default, "output_throughput")


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


@pytest.mark.parametrize(("name", "cell"), [("recommended", (1, 1)), ("vLLM default", (2, 2)), ("preempts", (2, 2))])
def test_marks_stand_within_their_cells(data: HeatmapData, name: str, cell: tuple[int, int]) -> None:
    mark = _trace(heatmap(data, "predicted"), name)
    assert len(mark.x) == len(mark.y) >= 1
    rows, columns = edges(data.max_num_seqs), edges(data.max_num_batched_tokens)
    assert all(columns[cell[1]] < x < columns[cell[1] + 1] for x in mark.x)
    assert all(rows[cell[0]] < y < rows[cell[0] + 1] for y in mark.y)


def test_both_axes_are_logarithmic_to_base_two(data: HeatmapData) -> None:
    layout = heatmap(data, "predicted").layout
    assert list(layout.xaxis.tickvals) == [6, 8, 11]  # 64, 256, 2,048
    assert list(layout.yaxis.tickvals) == [2, 3, 7]  # 4, 8, 128


@pytest.mark.parametrize(
    ("values", "expected"), [((4, 8, 32), (1.5, 2.5, 4.0, 6.0)), ((16,), (3.5, 4.5)), ((2, 4), (0.5, 1.5, 2.5))]
)
def test_edges_are_half_way_between_octaves(values: tuple[int, ...], expected: tuple[float, ...]) -> None:
    assert edges(values) == pytest.approx(expected)


def test_failed_and_skipped_cells_are_marked_and_say_why(data: HeatmapData) -> None:
    status, reasons = data.status.copy(), data.reasons.copy()
    status[0, 0], status[0, 1], reasons[0, 0], reasons[0, 1] = "failed", "skipped", "Failed twice: x.", "Behind others."
    figure = heatmap(dataclasses.replace(data, status=status, reasons=reasons), "predicted")
    assert len(_trace(figure, "failed").x) == len(_trace(figure, "skipped").x) == 1
    texts = _trace(figure, "grid").customdata
    assert "failed:<br>Failed twice: x." in texts[0][0]
    assert "left out by the search:<br>Behind others." in texts[0][1]


def test_cells_that_meet_the_slos_are_outlined_on_the_prediction(data: HeatmapData) -> None:
    meets = np.zeros_like(data.meets_slo)
    meets[1, 1] = True
    marked = dataclasses.replace(data, meets_slo=meets)
    assert len(_trace(heatmap(marked, "predicted"), "meets the SLOs").x) == 6  # five corners and a gap
    assert not [trace for trace in heatmap(marked, "measured").data if trace.name == "meets the SLOs"]


def test_every_cell_of_the_grid_can_be_clicked_by_its_key(data: HeatmapData) -> None:
    points = _trace(heatmap(data, "predicted"), CLICKS)
    assert len(points.x) == 9
    assert points.customdata[0][0] == "vllm_v1-seqs4-tokens64"
    assert points.customdata[-1][0] == "vllm_v1-seqs128-tokens2048"


def test_legend_tells_only_marks_that_are_there(data: HeatmapData) -> None:
    text = legend(data)
    for mark in ("★ recommended", "◆ vLLM's default", "⋯ preempts", "▨ cannot work", "not predicted yet"):
        assert mark in text
    assert "failed" not in text
    assert "SLOs" not in text


def test_one_outlier_does_not_take_the_colours_from_the_others(data: HeatmapData) -> None:
    errors = np.array([[3.0, -4.0, 5.0], [6.0, -7.0, 8.0], [2.0, 9.0, 900.0]])
    figure = heatmap(dataclasses.replace(data, error_percent=errors), "error")
    assert _trace(figure, "error").zmax == 188  # P90 of nine sizes: a fifth of the way from 9 to 900
    assert "colours end at ±188 %" in figure.layout.title.text
    assert _trace(figure, "error").text[2][2] == "+900.0"


def test_no_recommendation_leaves_no_mark(data: HeatmapData) -> None:
    figure = heatmap(dataclasses.replace(data, recommended=None, default=None), "predicted")
    assert not _trace(figure, "recommended").x
    assert not _trace(figure, "vLLM default").x


def test_preemption_is_marked_on_the_prediction_only(data: HeatmapData) -> None:
    assert "preempts" not in {trace.name for trace in heatmap(data, "measured").data}


def test_hatching_stays_within_infeasible_cells(data: HeatmapData) -> None:
    hatching = _trace(heatmap(data, "predicted"), "infeasible")
    points = [(x, y) for x, y in zip(hatching.x, hatching.y, strict=True) if x is not None]
    assert points
    assert all(5 <= x <= 7 and 2.5 <= y <= 5 for x, y in points)  # 64 tokens and 8 sequences


def test_hatching_strokes_are_diagonals(data: HeatmapData) -> None:
    hatching = _trace(heatmap(data, "predicted"), "infeasible")
    points = list(zip(hatching.x, hatching.y, strict=True))
    for (x0, y0), (x1, y1), gap in zip(points[::3], points[1::3], points[2::3], strict=True):
        assert (x1 - x0) / 2.0 == pytest.approx((y0 - y1) / 2.5)  # the cell is 2 octaves wide and 2.5 high
        assert gap == (None, None)


def test_hovering_an_infeasible_cell_says_why_and_cannot_inject_markup(data: HeatmapData) -> None:
    text = _trace(heatmap(data, "predicted"), "grid").customdata[1][0]
    assert "the pool &lt;is&gt; too small" in text


def test_hovering_a_measured_cell_says_all_three_numbers(data: HeatmapData) -> None:
    text = _trace(heatmap(data, "measured"), "measured").customdata[0][0]
    for part in ("predicted 100 tokens/s", "measured 125 tokens/s ± 4 %", "error −20.0 %"):
        assert part in text


def test_hovering_tells_cells_without_a_measurement_a_prediction_or_a_place_apart(data: HeatmapData) -> None:
    hovers = _trace(heatmap(data, "measured"), "grid").customdata
    assert "not measured" in hovers[0][1]
    assert "not predicted" in hovers[0][2]
    outside = dataclasses.replace(data, in_grid=np.zeros_like(data.in_grid))
    assert "not in this grid" in _trace(heatmap(outside, "predicted"), "grid").customdata[0][1]


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

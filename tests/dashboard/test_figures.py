from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from batchtwin.dashboard.colors import MEASURED, PREDICTED
from batchtwin.dashboard.data import parity_data
from batchtwin.dashboard.figures import parity
from batchtwin.dashboard.results import Results


def _trace(figure: go.Figure, name: str) -> Any:
    (found,) = [trace for trace in figure.data if trace.name == name]
    return found


@pytest.fixture
def figure(by_hand: Results) -> go.Figure:
    return parity(parity_data(by_hand, "output_throughput"), "output_throughput")


def test_points_are_measured_across_and_predicted_up(figure: go.Figure) -> None:
    points = _trace(figure, "Saturated (load ρ ≥ 1)")  # both have a load of 1.5
    assert list(points.x) == [125, 200]
    assert list(points.y) == [100, 300]
    assert points.marker.color == PREDICTED
    assert points.error_x.color == MEASURED
    assert list(points.error_x.array) == pytest.approx([5, 0])  # a single repeat has no spread


def test_cells_below_saturation_have_another_mark(by_hand: Results) -> None:
    rows = parity_data(by_hand, "output_throughput").assign(load_rho=[0.7, 1.5])
    figure = parity(rows, "output_throughput")
    below, beyond = _trace(figure, "Below saturation"), _trace(figure, "Saturated (load ρ ≥ 1)")
    assert (list(below.x), list(beyond.x)) == ([125], [200])
    assert below.marker.symbol != beyond.marker.symbol


def test_bands_are_as_wide_as_they_say(figure: go.Figure) -> None:
    for width in (5, 10, 25):
        band = _trace(figure, f"±{width} %")
        ratios = sorted({round(y / x, 9) for x, y in zip(band.x, band.y, strict=True)})
        assert ratios == pytest.approx([1 - width / 100, 1 + width / 100])


def test_axes_have_one_range_and_their_unit(figure: go.Figure) -> None:
    assert figure.layout.xaxis.range == figure.layout.yaxis.range
    assert figure.layout.xaxis.title.text.endswith("Measured (tokens/s)")
    assert figure.layout.yaxis.title.text.endswith("Predicted (tokens/s)")
    assert MEASURED in figure.layout.xaxis.title.text
    assert PREDICTED in figure.layout.yaxis.title.text


def test_null_baselines_wait_in_the_legend(figure: go.Figure) -> None:
    null = _trace(figure, "A constant step time")
    assert list(null.y) == pytest.approx([200, 100])
    assert null.visible == "legendonly"


def test_values_over_more_than_fourfold_get_logarithmic_axes(by_hand: Results) -> None:
    rows = parity_data(by_hand, "output_throughput").assign(measured=[10.0, 1000.0], predicted=[11.0, 900.0])
    axis = parity(rows, "output_throughput").layout.xaxis
    assert axis.type == "log"
    assert axis.range[0] < math.log10(10)
    assert axis.range[1] > math.log10(1000)


def test_counts_with_zeros_stay_linear(by_hand: Results) -> None:
    rows = parity_data(by_hand, "output_throughput").assign(measured=[0.0, 50.0], predicted=[0.0, 40.0])
    axis = parity(rows, "num_preemptions").layout.xaxis
    assert axis.type == "linear"
    assert axis.range[0] == 0


def test_undefined_values_do_not_decide_the_range() -> None:
    names = ["policy", "max_num_seqs", "max_num_batched_tokens", "measured", "predicted", "error_percent", "noise"]
    rows = pd.DataFrame([["vllm_v1", 4, 64, np.nan, np.nan, np.nan, np.nan, 1.2]], columns=[*names, "load_rho"])
    figure = parity(rows.assign(constant=np.nan, roofline_affine=np.nan), "mean_tpot_ms")
    assert figure.layout.xaxis.range == (0, 1)

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
from profiles import toy_profile

from batchtwin.dashboard.capacity_curves import Curve, attainment, curve, frame, goodput
from batchtwin.experiments.bracket import Bracket, Tried
from batchtwin.experiments.capacity import Capacity, capacity
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.replay import predict
from batchtwin.experiments.scenario import Scenario, TraceSpec

SCENARIO = Scenario(
    trace=TraceSpec(num_requests=40, prompt_scale=0.1, output_scale=0.2), num_gpu_blocks=200, max_model_len=1024
)
SLO = {"ttft_ms": 400.0}
SMALL, LARGE = Cell("vllm_v1", 2, 256), Cell("vllm_v1", 16, 256)


@pytest.fixture(scope="module")
def curves() -> list[Curve]:
    return [curve(SCENARIO, toy_profile(), cell, SLO) for cell in (SMALL, LARGE)]


def test_curve_is_what_the_capacity_search_tried(curves: list[Curve]) -> None:
    found = capacity(SMALL.of(SCENARIO), toy_profile(), slo=SLO, tolerance=0.05)
    assert curves[0].capacity.rate_per_s == found.rate_per_s
    assert curves[0].rows["rate_per_s"].tolist() == [found.rate_of(tried) for tried in found.bracket.tried]


def test_attainment_is_the_share_that_meets_the_slo(curves: list[Curve]) -> None:
    found = curves[0]
    scale = found.capacity.bracket.tried[-1].rate_scale
    trace = {**SCENARIO.trace.model_dump(), "rate_scale": scale}
    metrics = predict(SMALL.of(SCENARIO).with_(trace=trace, slo=SLO), toy_profile()).metrics
    assert found.rows["attainment"].iloc[-1] == metrics["request_goodput"] / metrics["request_throughput"]


def test_unstable_is_the_lowest_rate_whose_load_reaches_one(curves: list[Curve]) -> None:
    rows = pd.DataFrame({"rate_per_s": [1.0, 2.0, 3.0, 4.0], "load_rho": [0.5, 0.9, 1.0, 1.4]})
    assert dataclasses.replace(curves[0], rows=rows).unstable_from_per_s == 3.0
    assert dataclasses.replace(curves[0], rows=rows.iloc[:2]).unstable_from_per_s is None


@pytest.mark.parametrize(("rate", "beyond"), [(2.5, False), (3.5, True)])
def test_capacity_of_a_burst_is_told_from_one_that_lasts(rate: float, beyond: bool) -> None:
    rows = pd.DataFrame({"rate_per_s": [1.0, 3.0], "load_rho": [0.5, 1.1]})
    met = Tried(rate, True, {}, "")
    found = Capacity(rate, 1.0, SLO, None, Bracket(met, None, "highest", (met,)))
    one = Curve(SMALL, found, rows)
    assert one.is_beyond_stability is beyond
    assert "The queue grows from 3 requests/s on" in one.words


def test_figures_draw_a_curve_and_an_upright_capacity_a_cell(curves: list[Curve]) -> None:
    for figure, column, scale in ((goodput(curves), "goodput_per_s", 1), (attainment(curves), "attainment", 100)):
        for one in curves:
            (line,) = [t for t in figure.data if t.name.startswith(f"{one.cell.max_num_seqs} ×")]
            assert list(line.x) == one.rows["rate_per_s"].tolist()
            assert list(line.y) == pytest.approx((one.rows[column] * scale).tolist())
        uprights = [shape.x0 for shape in figure.layout.shapes if shape.type == "line"]
        assert uprights == [one.capacity.rate_per_s for one in curves]


def test_unstable_rates_are_shaded(curves: list[Curve]) -> None:
    shades = [shape.x0 for shape in goodput(curves).layout.shapes if shape.type == "rect"]
    assert shades == [one.unstable_from_per_s for one in curves if one.unstable_from_per_s is not None]
    assert shades


def test_frame_names_the_cell_of_every_row(curves: list[Curve]) -> None:
    assert frame(curves)["max_num_seqs"].unique().tolist() == [2, 16]

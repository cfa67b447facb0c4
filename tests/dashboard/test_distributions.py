from __future__ import annotations

import numpy as np
import pytest
from profiles import toy_profile

from batchtwin.dashboard.cell_choice import first_cells
from batchtwin.dashboard.colors import MEASURED, PREDICTED
from batchtwin.dashboard.distributions import Distribution, cdfs, differences, distribution, frame
from batchtwin.dashboard.results import Results, read_results
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.replay import predict
from batchtwin.experiments.run import Run
from batchtwin.experiments.sweep import Sweep

from .conftest import SCENARIO

CELL, OTHER = Cell("vllm_v1", 4, 64), Cell("vllm_v1", 8, 256)


@pytest.fixture(scope="module")
def run() -> Run:
    return predict(CELL.of(SCENARIO), toy_profile())


@pytest.mark.parametrize("name", ["ttft", "itl", "tpot", "e2el"])
def test_half_of_the_sample_lies_within_the_runs_own_median(run: Run, name: str) -> None:
    values = distribution(CELL, run).quantiles_ms[name]
    assert (np.diff(values) >= 0).all()
    below, above = values[99], values[101]
    assert below <= run.metrics[f"median_{name}_ms"] <= above


def test_itl_pools_gaps_and_tpot_does_not(run: Run) -> None:
    found = distribution(CELL, run).quantiles_ms
    assert found["itl"].max() > found["tpot"].max()  # one long gap is a mean of many


def test_figure_has_four_panels_with_a_dash_a_cell_and_a_colour_a_world(run: Run) -> None:
    one = distribution(CELL, run)
    found = [one, Distribution(CELL, "measured", one.quantiles_ms), Distribution(OTHER, "predicted", one.quantiles_ms)]
    figure = cdfs(found)
    assert len(figure.data) == 12
    colors = [(trace.line.color, trace.line.dash) for trace in figure.data[:3]]
    assert colors == [(PREDICTED, "solid"), (MEASURED, "solid"), (PREDICTED, "dash")]
    assert [note.text.split()[0] for note in figure.layout.annotations] == ["TTFT", "ITL", "TPOT", "E2E"]
    assert sum(bool(trace.showlegend) for trace in figure.data) == 3


def test_frame_has_every_share_of_every_curve(run: Run) -> None:
    rows = frame([distribution(CELL, run)])
    assert len(rows) == 201
    assert rows["share"].tolist()[::100] == [0, 0.5, 1]
    assert {"ttft_ms", "itl_ms", "tpot_ms", "e2el_ms", "kind"} <= set(rows)


def test_differences_carry_units_changes_and_what_was_measured(measured: Sweep) -> None:
    results = read_results(measured)
    cells = [result.cell for result in results.cells if result.cell in results.sweep.measured_cells()][:2]
    rows = differences(results, cells).set_index("Metric")
    first, second = (results.by_cell[cell].metrics["mean_tpot_ms"] for cell in cells)
    heads = [f"{cell.max_num_seqs} × {cell.max_num_batched_tokens:,}" for cell in cells]
    assert rows.loc["Mean TPOT", "Unit"] == "ms"
    change = f"{100 * (second / first - 1):+.1f} %".replace("-", "−")
    assert rows.loc["Mean TPOT", heads[1]].endswith(f"({change})")
    assert rows.loc["Mean TPOT", f"{heads[0]} measured"]


def test_first_cells_are_the_chosen_one_and_the_default(by_hand: Results) -> None:
    assert first_cells(by_hand, CELL) == [CELL, Cell("vllm_v1", 8, 256), Cell("vllm_v1", 128, 2048)]

"""Predicted beside measured, on a sweep whose figures are written by hand and on one with stand-ins for a device."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from profiles import toy_profile
from sweeps import base_metrics, measured_stand_in, spec, tiny_scenario, write_measured, write_sweep

from batchtwin.experiments.compare import METRICS, Comparison, compare
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.render_compare import comparison_parts
from batchtwin.experiments.sweep import Sweep, sweep

A, B, C, D = (Cell("vllm_v1", s, t) for s, t in ((64, 1024), (64, 2048), (128, 1024), (128, 2048)))
# Output throughput by hand, D being vLLM's default on a CPU:
#                predicted   measured (repeats)     constant   roofline·α+β
PREDICTED = {A: 100.0, B: 126.0, C: 110.0, D: 90.0}
MEASURED = {A: (100.0, 104.0, 90.0), B: (105.0,), C: (110.0,), D: (80.0,)}
CONSTANT = {A: 50.0, B: 50.0, C: 50.0, D: 60.0}
ROOFLINE = {A: 200.0, B: 100.0, C: 110.0, D: 80.0}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    base = base_metrics(tiny_scenario())

    def figures(value: float) -> dict[str, float]:
        return base | {"output_throughput": value}

    predicted = {
        cell: {
            "metrics": figures(PREDICTED[cell]),
            "nulls": {"constant": figures(CONSTANT[cell]), "roofline_affine": figures(ROOFLINE[cell])},
        }
        for cell in (A, B, C, D)
    }
    made = write_sweep(
        tmp_path_factory.mktemp("by-hand") / "sweep", spec(tiny_scenario(), (64, 128), (1024, 2048)), predicted
    )
    for cell, values in MEASURED.items():
        for repeat, value in enumerate(values):
            write_measured(made, cell, repeat, figures(value))
    return made


@pytest.fixture(scope="module")
def found(by_hand: Sweep) -> Comparison:
    return compare(by_hand)


def _row(table: pd.DataFrame, cell: Cell, metric: str = "output_throughput") -> dict[str, float]:
    rows = table[(table["max_num_seqs"] == cell.max_num_seqs) & (table["metric"] == metric)]
    rows = rows[rows["max_num_batched_tokens"] == cell.max_num_batched_tokens]
    assert len(rows) == 1
    return rows.iloc[0].to_dict()


def test_errors_are_relative_to_the_median_of_the_repeats(found: Comparison) -> None:
    a, b = _row(found.cells, A), _row(found.cells, B)
    assert (a["measured"], a["num_repeats"], a["error_percent"]) == (100.0, 3, 0.0)
    assert b["error_percent"] == pytest.approx(20.0)
    assert b["constant_error_percent"] == pytest.approx(100 * (50 / 105 - 1))
    assert a["roofline_affine_error_percent"] == pytest.approx(100.0)


def test_repeat_noise_is_half_the_range_and_unknown_with_one_repeat(found: Comparison) -> None:
    """(104 − 90) / 2 = 7 of 100."""
    assert _row(found.cells, A)["repeat_noise_percent"] == pytest.approx(7.0)
    assert math.isnan(_row(found.cells, B)["repeat_noise_percent"])


def test_the_summary_holds_median_worst_bias_noise_and_the_baselines(found: Comparison) -> None:
    """Errors 0, +20, 0 and +12.5 %; the constant's −50, −52.4, −54.5 and −25 %; the roofline's +100, −4.8, 0 and 0."""
    row = found.summary[found.summary["metric"] == "output_throughput"].iloc[0].to_dict()
    assert row["num_cells"] == 4
    assert row["median_error_percent"] == pytest.approx(6.25)
    assert row["worst_error_percent"] == pytest.approx(20.0)
    assert row["bias_percent"] == pytest.approx(8.125)
    assert row["repeat_noise_percent"] == pytest.approx(7.0)
    assert row["constant_median_percent"] == pytest.approx((50 + 100 * 55 / 105) / 2)
    assert row["roofline_affine_median_percent"] == pytest.approx(100 * 5 / 105 / 2)
    assert list(found.summary["metric"]) == list(METRICS)


def test_regret_is_what_is_lost_by_believing_each_predictor(found: Comparison) -> None:
    """Measured best is C with 110. The prediction chooses B (105), the constant D (80), the roofline A (100), vLLM D;
    a random cell gives (100 + 105 + 110 + 80) / 4 = 98.75."""
    assert found.regret_percent == pytest.approx(
        {
            "predicted": 100 * 5 / 110,
            "constant": 100 * 30 / 110,
            "roofline_affine": 100 * 10 / 110,
            "random": 100 * 11.25 / 110,
            "vllm_default": 100 * 30 / 110,
        }
    )


def test_rank_correlation_is_spearmans(found: Comparison) -> None:
    """Predicted ranks 2 4 3 1, measured 2 3 4 1: 1 − 6 · 2 / (4 · 15)."""
    assert found.rank_correlation == pytest.approx(0.8)


def test_cells_that_differ_by_less_than_their_noise_are_called_ties(found: Comparison) -> None:
    """7 % of 100, 105, 110 and 80 is 7, 7.35, 7.7 and 5.6: 100, 105 and 110 overlap, 80 with none of them."""
    said = " ".join(part for part in comparison_parts(found) if isinstance(part, str))
    assert "measured: 0.800; of 6 pairs of cells 3 are ties" in said


def test_without_repeats_nobody_knows_what_is_a_tie(found: Comparison) -> None:
    once = found.cells.assign(repeat_noise_percent=math.nan)
    said = " ".join(part for part in comparison_parts(replace(found, cells=once)) if isinstance(part, str))
    assert "measured once each" in said
    assert "are ties" not in said


def test_the_split_takes_the_run_in_the_middle(by_hand: Sweep, found: Comparison) -> None:
    """Of A's repeats 100, 104 and 90 the first: the one whose own objective is the median. (The figures of the split
    are the run's own, from its records; the heads here are written over.)"""
    runs = sorted(by_hand.measured(A), key=lambda run: run.metrics["output_throughput"])
    assert _row(found.split, A)["measured"] == pytest.approx(runs[1].metrics["output_throughput"])
    parts = found.split
    error = parts["measured"] - parts["predicted"]
    assert np.allclose(parts["rest"] + parts["cost"] + parts["schedule"], error, rtol=1e-9, equal_nan=True)


def test_infeasible_and_unmeasured_cells_are_left_out(tmp_path: Path) -> None:
    base = base_metrics(tiny_scenario())
    ok = {"metrics": base, "nulls": {"constant": base, "roofline_affine": base}}
    cells = {A: ok, B: ok, D: {"status": "infeasible", "reason": "No."}}
    made = write_sweep(tmp_path / "s", spec(tiny_scenario(), (64, 128), (1024, 2048)), cells)
    write_measured(made, A, 0, {})
    found = compare(tmp_path / "s")
    assert set(zip(found.cells["max_num_seqs"], found.cells["max_num_batched_tokens"], strict=True)) == {(64, 1024)}
    assert math.isnan(found.rank_correlation), "one cell has no ranks"
    assert found.regret_percent["random"] == 0.0
    assert "vllm_default" not in found.regret_percent


def test_with_nothing_measured_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    made = write_sweep(
        tmp_path / "s", spec(tiny_scenario(), (64,), (1024,)), {A: {"metrics": base_metrics(tiny_scenario())}}
    )
    with pytest.raises(ExperimentError, match=r"has no measured cell: run the sweep with --measure\."):
        compare(made)


def test_a_goodput_of_zero_everywhere_costs_nobody_anything(tmp_path: Path) -> None:
    scenario = tiny_scenario(slo={"ttft_ms": 1e-6}, trace={"max_output_tokens": 1})
    done = sweep(tmp_path / "s", scenario, toy_profile(), max_num_seqs=(2, 4), max_num_batched_tokens=(64,))
    for cell in done.to_measure(None):
        write_measured(done, cell, 0, {})
    found = compare(done)
    assert found.objective == "request_goodput"
    assert set(found.regret_percent.values()) == {0.0}
    assert found.cells[found.cells["metric"] == "mean_tpot_ms"]["error_percent"].isna().all()
    assert (found.cells[found.cells["metric"] == "request_goodput"]["error_percent"] == 0).all()


def test_a_slower_device_than_predicted_shows_as_bias_that_is_the_cost_models(tmp_path: Path) -> None:
    """Runs that stand in for measured ones: step times 25 % longer, with noise whose mean is exp(0.2² / 2), on a server
    that is always busy."""
    scenario = tiny_scenario(trace={"offline": True, "output_scale": 0.1})
    done = sweep(tmp_path / "s", scenario, toy_profile(), max_num_seqs=(2, 4, 8), max_num_batched_tokens=(32, 64))
    for cell in done.to_measure(None):
        run = measured_stand_in(cell.of(scenario), toy_profile(), bias=1.25)
        run.save(done.folder / "cells" / cell.key / "measured-0")
    found = compare(done)
    summary = found.summary.set_index("metric")
    slower = 1.25 * math.exp(0.02)
    assert summary.loc["output_throughput", "bias_percent"] == pytest.approx(100 * (slower - 1), abs=4)
    assert summary.loc["mean_e2el_ms", "bias_percent"] == pytest.approx(100 * (1 / slower - 1), abs=4)
    split = found.split[found.split["metric"] == "mean_e2el_ms"]
    assert (split["schedule"] == 0).all()
    assert (split["cost"] > 0).all()
    assert found.rank_correlation > 0.8
    assert found.regret_percent["predicted"] < 2

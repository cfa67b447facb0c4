"""Matrices and frames, against a sweep written by hand (``by_hand`` in conftest says what is in it)."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pandas as pd
import pytest

from batchtwin.dashboard.data import bound_of, heatmap_data, heatmap_frame, metric_names, parity_data, table
from batchtwin.dashboard.results import Results

NAN = float("nan")


def test_rows_are_sequences_and_columns_are_tokens_both_rising(by_hand: Results) -> None:
    data = heatmap_data(by_hand, "output_throughput")
    assert data.max_num_seqs == (4, 8)
    assert data.max_num_batched_tokens == (64, 256)
    np.testing.assert_array_equal(data.predicted, [[100, 110], [NAN, 300]])


def test_default_beside_the_grid_adds_no_row_of_its_own(by_hand: Results) -> None:
    data = heatmap_data(by_hand, "output_throughput")
    assert data.in_grid.all()
    assert data.default is None


def test_measured_cells_carry_median_error_and_noise(by_hand: Results) -> None:
    data = heatmap_data(by_hand, "output_throughput")
    np.testing.assert_array_equal(data.measured, [[125, NAN], [NAN, 200]])
    np.testing.assert_array_equal(data.error_percent, [[-20, NAN], [NAN, 50]])
    assert data.noise_percent[0, 0] == 4
    assert data.is_measured


def test_infeasible_cell_has_its_reason_and_no_value(by_hand: Results) -> None:
    data = heatmap_data(by_hand, "output_throughput")
    assert data.status.tolist() == [["ok", "ok"], ["infeasible", "ok"]]
    assert data.reasons[1, 0] == "the pool <is> too small"
    assert data.reasons[0, 0] == ""


def test_preempting_default_and_recommended_cells_are_known(with_default: Results) -> None:
    data = heatmap_data(with_default, "output_throughput")
    assert np.argwhere(data.preempting).tolist() == [[2, 2]]
    assert data.default == (2, 2)
    assert data.recommended == (1, 1)


def test_cells_that_meet_the_slos_are_known(with_default: Results) -> None:
    cells = tuple(
        one._replace(metrics={**one.metrics, "p99_ttft_ms": one.metrics["output_throughput"]}) if one.metrics else one
        for one in with_default.cells
    )
    data = heatmap_data(dataclasses.replace(with_default, cells=cells), "output_throughput", slo={"ttft_ms": 300.0})
    assert np.argwhere(data.meets_slo).tolist() == [[0, 0], [0, 1], [1, 1]]  # 100, 110 and 300 ms, not 400


def test_slos_are_judged_by_the_mean_over_the_seeds_as_the_recommendation_judges(with_default: Results) -> None:
    cells = tuple(
        one._replace(
            metrics={**one.metrics, "p99_ttft_ms": 100.0}, seeds=[{"p99_ttft_ms": late}, {"p99_ttft_ms": 100.0}]
        )
        for one, late in zip(with_default.cells, (900.0, 100.0, 0.0, 500.0, 900.0), strict=True)
        if one.metrics
    )
    data = heatmap_data(dataclasses.replace(with_default, cells=cells), "output_throughput", slo={"ttft_ms": 300.0})
    assert np.argwhere(data.meets_slo).tolist() == [[0, 1], [1, 1]]  # means of 367, 100, 233 and 367 ms


def test_without_slos_no_cell_is_said_to_meet_them(by_hand: Results) -> None:
    assert not heatmap_data(by_hand, "output_throughput").meets_slo.any()


def test_frame_of_a_map_has_a_row_a_cell(by_hand: Results) -> None:
    rows = heatmap_frame(heatmap_data(by_hand, "output_throughput"))
    assert rows["output_throughput_predicted"].tolist()[:2] == [100, 110]
    assert rows["status"].tolist() == ["ok", "ok", "infeasible", "ok"]


def test_unknown_metric_is_nowhere_and_not_an_error(by_hand: Results) -> None:
    assert np.isnan(heatmap_data(by_hand, "mean_ttft_ms").predicted).all()


def test_recommendation_of_another_policy_is_not_marked(by_hand: Results) -> None:
    assert by_hand.recommendation is not None
    other = by_hand.recommendation.cell._replace(policy="prefill_first")
    moved = dataclasses.replace(by_hand, recommendation=dataclasses.replace(by_hand.recommendation, cell=other))
    assert heatmap_data(moved, "output_throughput", "vllm_v1").recommended is None


def test_nothing_measured_leaves_measured_matrices_empty(by_hand: Results) -> None:
    data = heatmap_data(dataclasses.replace(by_hand, comparison=None), "output_throughput")
    assert not data.is_measured
    assert np.isnan(data.error_percent).all()


def test_parity_turns_noise_and_null_errors_into_the_metrics_unit(by_hand: Results) -> None:
    rows = parity_data(by_hand, "output_throughput")
    assert rows["measured"].tolist() == [125, 200]
    assert rows["predicted"].tolist() == [100, 300]
    assert rows["noise"].iloc[0] == pytest.approx(5)  # 4 % of 125
    assert rows["constant"].tolist() == pytest.approx([200, 100])  # 125 · 1.6 and 200 · 0.5
    assert rows["roofline_affine"].isna().all()


def test_parity_of_nothing_measured_has_columns_and_no_rows(by_hand: Results) -> None:
    rows = parity_data(dataclasses.replace(by_hand, comparison=None), "output_throughput")
    assert rows.empty
    assert "measured" in rows


def test_table_has_every_cell_with_what_was_measured_beside_it(by_hand: Results) -> None:
    rows = table(by_hand)
    assert rows["status"].tolist() == ["ok", "ok", "infeasible", "ok", "ok"]
    assert rows["output_throughput_measured"].tolist()[0] == 125
    assert rows["output_throughput_error_percent"].tolist()[3] == 50
    assert rows["output_throughput_measured"].isna().tolist() == [False, True, True, False, True]


def test_table_survives_csv(by_hand: Results) -> None:
    rows = table(by_hand)
    again = pd.read_csv(io.StringIO(rows.to_csv(index=False)))
    assert again["max_num_seqs"].tolist() == [4, 4, 8, 8, 128]
    assert again["output_throughput"].tolist()[4] == 400


def test_bound_is_said_in_words(by_hand: Results) -> None:
    assert [bound_of(cell) for cell in by_hand.cells] == [
        "max_num_seqs",
        "max_num_seqs",
        "",
        "the KV blocks",
        "nothing",
    ]


def test_objective_comes_first_among_the_metrics(by_hand: Results) -> None:
    spec = by_hand.sweep.spec.model_copy(update={"objective": "request_goodput"})
    by_hand.sweep.spec = spec
    names = metric_names(by_hand)
    assert names[0] == "request_goodput"
    assert len(names) == len(set(names))

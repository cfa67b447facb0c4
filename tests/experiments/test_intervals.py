"""Intervals and leads from figures written by hand, and cells predicted with several seeds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from profiles import toy_profile
from sweeps import tiny_scenario, write_measured

from batchtwin.experiments.compare import compare
from batchtwin.experiments.grid import Cell, CellResult
from batchtwin.experiments.intervals import interval, lead_half, over_seeds, sampling_half
from batchtwin.experiments.render import print_comparison
from batchtwin.experiments.replay import predict
from batchtwin.experiments.sweep import open_sweep, sweep

T_95_2 = 2.919986
"""Student's t with two degrees of freedom at 95 %, from a table."""


def cell(value: float, half: float, *seeds: float) -> CellResult:
    return CellResult(
        Cell("vllm_v1", 4, 64),
        "ok",
        "",
        100,
        {"output_throughput": value},
        {},
        low={"output_throughput": value - half},
        high={"output_throughput": value + half},
        seeds=[{"output_throughput": seed} for seed in seeds],
    )


def test_the_seeds_part_is_students_t_of_their_mean() -> None:
    """10, 12, 14: a standard deviation of 2, a standard error of 2/√3."""
    assert sampling_half([10, 12, 14]) == pytest.approx(T_95_2 * 2 / math.sqrt(3), rel=1e-5)
    assert sampling_half([10]) == 0.0


def test_both_parts_add_in_quadrature_around_the_mean_over_the_seeds() -> None:
    low, high = interval(cell(10, 3, 12, 14), "output_throughput")
    half = math.hypot(3, T_95_2 * 2 / math.sqrt(3))
    assert (low, high) == pytest.approx((12 - half, 12 + half), rel=1e-5)
    assert over_seeds(cell(10, 3, 12, 14)) == {"output_throughput": 12.0}


def test_an_interval_does_not_go_below_zero() -> None:
    assert interval(cell(10, 12), "output_throughput") == (0.0, 22.0)


def test_a_lead_is_uncertain_by_both_cells_and_by_its_own_spread_over_the_seeds() -> None:
    """Leads 10, 10, 10: the seeds move both cells alike and say nothing against it. √(3² + 4²) = 5."""
    assert lead_half(cell(100, 3, 110, 120), cell(90, 4, 100, 110), "output_throughput") == pytest.approx(5.0)
    spread = lead_half(cell(100, 3, 110, 120), cell(90, 4, 98, 106), "output_throughput")
    assert spread == pytest.approx(math.hypot(5, T_95_2 * 2 / math.sqrt(3)), rel=1e-5)


def test_a_cell_without_an_end_has_no_interval() -> None:
    bare = cell(10, 1)._replace(low={}, high={})
    assert all(math.isnan(end) for end in interval(bare, "output_throughput"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("seeds") / "s"
    sweep(path, tiny_scenario(), toy_profile(), max_num_seqs=(2, 4), max_num_batched_tokens=(64,), seeds=3)
    return path


def test_a_drawn_trace_is_predicted_with_three_seeds_and_all_is_kept_on_disk(folder: Path) -> None:
    found = open_sweep(folder)
    assert found.spec.num_seeds == 3
    result = found.predicted()[0]
    scenario = result.cell.of(tiny_scenario())
    for more, kept in enumerate(result.seeds, 1):
        again = predict(scenario.with_(trace={**scenario.trace.model_dump(), "seed": more}), toy_profile()).metrics
        assert kept == pytest.approx({name: again[name] for name in kept})
    assert result.seeds[0]["mean_ttft_ms"] != result.seeds[1]["mean_ttft_ms"]
    assert result.low["output_throughput"] < result.metrics["output_throughput"] < result.high["output_throughput"]


def test_a_recorded_trace_has_one_seed_whatever_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,9,4\n0.01,8,3\n")
    scenario = tiny_scenario(trace={"source": str(path), "prompt_scale": 1.0, "output_scale": 1.0})
    done = sweep(tmp_path / "s", scenario, toy_profile(), max_num_seqs=(2,), max_num_batched_tokens=(64,), seeds=5)
    assert done.spec.num_seeds == 1
    assert done.predicted()[0].seeds == []


def test_the_capacity_is_that_of_the_same_requests_all_at_once(folder: Path) -> None:
    result = open_sweep(folder).predicted()[0]
    scenario = result.cell.of(tiny_scenario())
    at_once = predict(scenario.with_(trace={**scenario.trace.model_dump(), "offline": True}), toy_profile()).metrics
    arrival_s = scenario.trace.load().arrival_s
    assert result.metrics["capacity_request_throughput"] == pytest.approx(at_once["request_throughput"])
    rate = (len(arrival_s) - 1) / arrival_s[-1]
    assert result.metrics["offered_rho"] == pytest.approx(rate / at_once["request_throughput"])


def test_coverage_is_the_share_of_measured_cells_inside(folder: Path) -> None:
    """One cell measured at its prediction, one at twice the upper end."""
    done = open_sweep(folder)
    first, second = done.predicted()[:2]
    write_measured(done, first.cell, 0, {"output_throughput": first.metrics["output_throughput"]})
    write_measured(done, second.cell, 0, {"output_throughput": 2 * second.high["output_throughput"]})
    found = compare(done)
    row = found.summary.set_index("metric").loc["output_throughput"]
    assert row["coverage_percent"] == 50.0
    rows = found.cells[found.cells["metric"] == "output_throughput"]
    assert rows["inside"].tolist() == [1.0, 0.0]
    assert rows["predicted_low"].tolist() == [done.predicted()[i].low["output_throughput"] for i in (0, 1)]
    halves = [
        50
        * (
            r.high["output_throughput"] / r.metrics["output_throughput"]
            - r.low["output_throughput"] / r.metrics["output_throughput"]
        )
        for r in (first, second)
    ]
    assert row["interval_percent"] == pytest.approx(sum(halves) / 2)


def test_a_bare_sweep_has_the_same_metrics_and_nothing_beside_them(folder: Path, tmp_path: Path) -> None:
    bare = sweep(
        tmp_path / "s", tiny_scenario(), toy_profile(), max_num_seqs=(2, 4), max_num_batched_tokens=(64,), bare=True
    )
    for with_all, result in zip(open_sweep(folder).predicted(), bare.predicted(), strict=True):
        assert result.metrics == pytest.approx({n: with_all.metrics[n] for n in result.metrics}, nan_ok=True)
        assert (result.nulls, result.low, result.high, result.seeds) == ({}, {}, {}, [])
    write_measured(bare, result.cell, 0, {})
    found = compare(bare)
    print_comparison(found)
    assert set(found.regret_percent) == {"predicted", "random", "vllm_default"}
    assert found.summary["coverage_percent"].isna().all()


def test_requests_of_another_seed_that_cannot_be_served_make_the_cell_infeasible_in_words(tmp_path: Path) -> None:
    """The first three prompts of seed 1 are of 1,104 tokens at most, one of seed 2 is of 2,521."""
    trace = {"source": "azure-conv-like:40", "prompt_scale": 1.0, "num_requests": 3, "seed": 1}
    scenario = tiny_scenario(trace=trace, max_model_len=1300, num_gpu_blocks=1000)
    done = sweep(tmp_path / "s", scenario, toy_profile(), max_num_seqs=(2,), max_num_batched_tokens=(64,), seeds=2)
    result = done.predicted()[0]
    assert result.status == "infeasible"
    assert result.reason.startswith("With seed 2 of the requests: Request")
    assert "With seeds=1 only those of seed 1 are looked at" in result.reason

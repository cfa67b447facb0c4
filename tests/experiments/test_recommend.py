"""Recommendations, on sweeps whose figures are written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sweeps import base_metrics, spec, tiny_scenario, write_sweep

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.recommend import recommend
from batchtwin.experiments.scenario import Scenario
from batchtwin.experiments.sweep import Sweep

BOUNDS = ("none", "max_num_seqs", "max_num_batched_tokens", "kv_blocks")
SMALL, WIDE, LONG, LARGE = (Cell("vllm_v1", s, t) for s, t in ((4, 64), (8, 64), (4, 128), (8, 128)))
Make = Callable[..., Sweep]


def shares(bound: str) -> dict[str, float]:
    """This bound is active for 60 % of the busy time, none for the rest."""
    active = {f"bound_{name}_share": 0.0 for name in BOUNDS}
    active["bound_none_share"] = 0.4
    active[f"bound_{bound}_share"] += 0.6
    return active


def figures(throughput: float, bound: str = "none", **metrics: float) -> dict[str, Any]:
    return {"metrics": base_metrics(tiny_scenario()) | shares(bound) | {"output_throughput": throughput} | metrics}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """``make({cell: figures})``: that sweep, over 2 × 2 values."""

    def build(cells: Mapping[Cell, Mapping[str, Any]], scenario: Scenario | None = None, **fields: Any) -> Sweep:
        asked = spec(scenario or tiny_scenario(), (4, 8), (64, 128), **fields)
        return write_sweep(tmp_path / "sweep", asked, cells)

    return build


def test_the_smallest_knobs_within_two_per_cent_of_the_best_are_chosen(make: Make) -> None:
    """1,000 is best; 980 is 2.0 % less and just within; 979 is not."""
    sweep = make({SMALL: figures(979), WIDE: figures(990), LONG: figures(980), LARGE: figures(1000)})
    found = recommend(sweep)
    assert (found.cell, found.best, found.meets_slo) == (LONG, LARGE, True)
    assert found.metrics["output_throughput"] == 980
    assert recommend(sweep, tolerance=0.0).cell == LARGE
    assert recommend(sweep, tolerance=0.03).cell == SMALL


def test_the_sentence_names_the_knobs_the_figure_and_what_holds_the_others_back(make: Make) -> None:
    sweep = make(
        {
            SMALL: figures(500, "max_num_seqs"),
            WIDE: figures(700, "max_num_batched_tokens"),
            LONG: figures(600, "max_num_seqs"),
            LARGE: figures(1000),
        }
    )
    assert recommend(sweep).sentence == (
        "Choose max_num_seqs=8 and max_num_batched_tokens=128: the smallest knobs within 2% of the best, 1,000.0 "
        "output tokens/s. max_num_seqs holds back 2 of the 3 slower cells."
    )


@pytest.mark.parametrize(
    ("bound", "ending"),
    [
        ("kv_blocks", "The KV blocks hold back 3 of the 3 slower cells."),
        ("max_num_batched_tokens", "max_num_batched_tokens holds back 3 of the 3 slower cells."),
        (
            "none",
            "In 3 of the 3 slower cells no bound is active for most of the time: their steps themselves are slower.",
        ),
    ],
)
def test_the_dominant_bound_of_the_slower_cells_is_named(make: Make, bound: str, ending: str) -> None:
    slower = {cell: figures(500, bound) for cell in (SMALL, WIDE, LONG)}
    assert recommend(make({**slower, LARGE: figures(1000)})).sentence.endswith(ending)


@pytest.mark.parametrize(
    ("bound", "ending"),
    [
        ("none", "No bound holds any cell back for long: the load, not a knob, sets the throughput."),
        ("max_num_seqs", "The other cells do as well; what is active most of the time here is max_num_seqs."),
        ("kv_blocks", "The other cells do as well; what is active most of the time here is the KV blocks."),
    ],
)
def test_where_all_cells_do_as_well_that_is_said(make: Make, bound: str, ending: str) -> None:
    found = recommend(make({cell: figures(1000, bound) for cell in (SMALL, WIDE, LONG, LARGE)}))
    assert found.cell == SMALL
    assert found.sentence.endswith(ending)


def test_an_slo_excludes_cells_whose_p99_misses_it(make: Make) -> None:
    sweep = make(
        {
            SMALL: figures(500, p99_ttft_ms=90.0, p99_tpot_ms=9.0),
            WIDE: figures(700, p99_ttft_ms=100.0, p99_tpot_ms=30.0),
            LONG: figures(1000, p99_ttft_ms=100.1, p99_tpot_ms=9.0),
        }
    )
    found = recommend(sweep, slo={"ttft_ms": 100})
    assert (found.cell, found.meets_slo) == (WIDE, True)
    assert "700.0 output tokens/s, meeting P99 TTFT ≤ 100 ms." in found.sentence
    assert recommend(sweep, slo={"ttft_ms": 100, "tpot_ms": 10}).cell == SMALL
    assert recommend(sweep).cell == LONG


def test_the_slos_of_the_scenario_hold_unless_others_are_given(make: Make) -> None:
    cells = {
        SMALL: figures(500, p99_e2el_ms=10.0, request_goodput=1.0),
        LARGE: figures(900, p99_e2el_ms=50.0, request_goodput=2.0),
    }
    sweep = make(cells, tiny_scenario(slo={"e2el_ms": 20.0}), objective="request_goodput")
    assert recommend(sweep).cell == SMALL
    assert recommend(sweep, slo={"e2el_ms": 60.0}).cell == LARGE
    assert recommend(sweep, slo={}).cell == LARGE
    assert "1.0 requests/s within the SLOs" in recommend(sweep).sentence


def test_if_no_cell_meets_the_slos_the_best_is_named_and_that_is_said(make: Make) -> None:
    found = recommend(make({SMALL: figures(500), LARGE: figures(1000)}), slo={"ttft_ms": 0.001})
    assert (found.cell, found.meets_slo) == (LARGE, False)
    assert "no cell meets P99 TTFT ≤ 0.001 ms, so the load is too high for any" in found.sentence


def test_one_policy_can_be_asked_for_and_is_named_where_it_is_not_vllms(make: Make) -> None:
    static = Cell("static_batch", 4, 64)
    sweep = make({static: figures(300), LARGE: figures(1000)}, policies=("vllm_v1", "static_batch"))
    assert recommend(sweep).cell == LARGE
    found = recommend(sweep, policy="static_batch")
    assert found.cell == static
    assert found.sentence.startswith("Choose static_batch with max_num_seqs=4 and")


def test_the_command_to_copy_carries_the_knobs_and_the_blocks(make: Make) -> None:
    assert recommend(make({SMALL: figures(500)})).serve_command == (
        "vllm serve tiny-llama --max-num-seqs 4 --max-num-batched-tokens 64 --num-gpu-blocks-override 200"
    )


def test_an_unknown_slo_is_refused(make: Make) -> None:
    with pytest.raises(ExperimentError, match="no SLO 'p99'; known are ttft_ms, tpot_ms, e2el_ms"):
        recommend(make({SMALL: figures(500)}), slo={"p99": 1})


def test_without_a_feasible_cell_the_sentence_says_why(make: Make) -> None:
    sweep = make({SMALL: {"status": "infeasible", "reason": "Request '7' needs more: raise num_gpu_blocks."}})
    with pytest.raises(ExperimentError) as caught:
        recommend(sweep)
    assert str(caught.value) == (
        f"No cell of {sweep.folder} is feasible; the first, vllm_v1-seqs4-tokens64: Request '7' needs more: raise "
        f"num_gpu_blocks."
    )


def test_without_a_cell_of_that_policy_the_sentence_says_so(make: Make) -> None:
    sweep = make({SMALL: figures(500)})
    with pytest.raises(ExperimentError, match="has no predicted cell of policy orca: run the sweep with it"):
        recommend(sweep, policy="orca")


def with_half(throughput: float, half: float, **more: Any) -> dict[str, Any]:
    ends = {"low": {"output_throughput": throughput - half}, "high": {"output_throughput": throughput + half}}
    return figures(throughput) | ends | more


def test_a_lead_within_its_interval_is_said_to_be_a_tie(make: Make) -> None:
    """Half intervals of 50 each: leads of less than √2 · 50 = 70.7 are ties. 1,000 − 940 is one, 1,000 − 900 none."""
    cells = {SMALL: with_half(500, 50), WIDE: with_half(900, 50), LONG: with_half(940, 50), LARGE: with_half(1000, 50)}
    found = recommend(make(cells))
    assert found.cell == LARGE
    assert found.tied == (LONG,)
    assert (found.low["output_throughput"], found.high["output_throughput"]) == (950, 1050)
    assert found.sentence.endswith(
        "Its interval is 950.0 to 1,050.0: a tie with 4 × 128, the difference lies within its interval."
    )


def test_a_lead_beyond_its_interval_is_said_with_it(make: Make) -> None:
    cells = {cell: with_half(500, 30) for cell in (SMALL, WIDE, LONG)}
    found = recommend(make({**cells, LARGE: with_half(1000, 40)}))
    assert found.tied == ()
    assert found.sentence.endswith("Its interval is 960.0 to 1,040.0; it leads the next by 500.0 ± 50.0.")


def test_the_mean_over_the_seeds_decides(make: Make) -> None:
    """WIDE is ahead with the sweep's own seed, LARGE over all three."""
    ahead = with_half(1000, 1, seeds=[{"output_throughput": 700.0}, {"output_throughput": 700.0}])
    behind = with_half(950, 1, seeds=[{"output_throughput": 950.0}, {"output_throughput": 950.0}])
    found = recommend(make({SMALL: with_half(1, 1), WIDE: ahead, LONG: with_half(1, 1), LARGE: behind}))
    assert found.cell == LARGE
    assert found.means["output_throughput"] == 950
    assert ", 950.0 output tokens/s on average over 3 seeds." in found.sentence


def test_fewer_than_three_seeds_of_drawn_requests_are_said(make: Make) -> None:
    sweep = make(dict.fromkeys((SMALL, WIDE, LONG, LARGE), figures(100)), num_seeds=1)
    assert recommend(sweep).sentence.endswith(
        "It rests on one seed of drawn requests: sweep with 3 seeds or more before relying on it."
    )


def test_more_offered_than_any_cell_can_take_is_said(make: Make) -> None:
    over = {cell: figures(100, offered_rho=rho) for cell, rho in ((SMALL, 3.0), (WIDE, 1.2), (LONG, 2.0), (LARGE, 1.5))}
    assert "Load ρ is 1.20 at the best: more is offered than any of these cells" in recommend(make(over)).sentence


def test_a_limit_that_only_the_upper_end_breaks_is_said(make: Make) -> None:
    cells = {
        cell: figures(100, p99_ttft_ms=450.0) | {"low": {"p99_ttft_ms": 400.0}, "high": {"p99_ttft_ms": 600.0}}
        for cell in (SMALL, WIDE, LONG, LARGE)
    }
    found = recommend(make(cells), slo={"ttft_ms": 500})
    assert found.meets_slo
    assert "P99 TTFT may be as high as 600 ms, beyond the limit." in found.sentence

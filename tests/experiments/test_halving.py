"""Searching the grid: who is left out, why, and that nobody is unless it was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from profiles import toy_profile
from sweeps import bytes_of, tiny_scenario

from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.halving import halve, prefix
from batchtwin.experiments.pool import open_pool
from batchtwin.experiments.recommend import recommend
from batchtwin.experiments.replay import predict
from batchtwin.experiments.scenario import Scenario
from batchtwin.experiments.sweep import Sweep, sweep

PROFILE = toy_profile()
SEQS, TOKENS = (1, 2, 4, 8), (16, 64)
GRID = [Cell("vllm_v1", seqs, tokens) for seqs in SEQS for tokens in TOKENS]


def loaded() -> Scenario:
    """All at once: the knobs matter from the first request on."""
    return tiny_scenario(trace={"source": "azure-conv-like:40", "offline": True})


def run(folder: Path, scenario: Scenario | None = None, **options: Any) -> Sweep:
    scenario = scenario or loaded()
    return sweep(folder, scenario, PROFILE, max_num_seqs=SEQS, max_num_batched_tokens=TOKENS, **options)


def test_a_prefix_is_the_first_requests_of_the_trace() -> None:
    whole = loaded().trace.load()
    for share, count in ((0.25, 10), (0.5, 20), (0.001, 1)):
        assert prefix(loaded(), share).trace.load() == whole.head(count)


def test_each_round_leaves_out_who_is_below_the_median_and_the_tolerance() -> None:
    """Scores and cuts again, by hand, from single replays of the prefix."""
    with open_pool() as pool:
        rungs = list(halve(GRID, loaded(), PROFILE, "output_throughput", pool))
    left = list(GRID)
    assert [rung.num_requests for rung in rungs] == [10, 20]
    for rung in rungs:
        shorter = loaded().with_(trace={**loaded().trace.model_dump(), "num_requests": rung.num_requests})
        scores = {cell: predict(cell.of(shorter), PROFILE).metrics["output_throughput"] for cell in left}
        assert rung.scores == pytest.approx(scores)
        ranked = sorted(scores.values())
        middle = len(ranked) // 2
        median = ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2
        below = {cell for cell, score in scores.items() if score < median and score < 0.98 * ranked[-1]}
        assert set(rung.skipped) == (below if len(left) > 4 else set())
        left = [cell for cell in left if cell not in below] if len(left) > 4 else left
    assert len(left) < len(GRID)


def test_left_out_cells_are_there_with_round_score_and_cut(tmp_path: Path) -> None:
    done = run(tmp_path / "s", search=True)
    results = {result.cell: result for result in done.predicted()}
    assert set(results) == set(done.spec.cells)
    skipped = [result for result in results.values() if result.status == "skipped"]
    assert skipped
    first = next(result for result in skipped if result.cell == Cell("vllm_v1", 1, 16))
    score = json.loads((tmp_path / "s" / "search.json").read_text())["rounds"][0]["scores"][first.cell.key]
    head = f"Left out after round 1 (the first 10 requests): its output_throughput of {score:,.1f} is below the cut of "
    assert first.reason.startswith(head)
    assert "(best of 8: " in first.reason
    assert not {result.cell for result in done.feasible()} & {result.cell for result in skipped}


def test_a_search_finds_what_the_whole_sweep_recommends(tmp_path: Path) -> None:
    whole, searched = run(tmp_path / "whole"), run(tmp_path / "searched", search=True)
    assert all(result.status == "ok" for result in whole.predicted())
    assert recommend(searched).cell == recommend(whole).cell
    ours = {result.cell: result.metrics for result in searched.feasible()}
    for result in whole.predicted():
        if result.cell in ours:
            assert ours[result.cell] == pytest.approx(result.metrics, nan_ok=True)


def test_where_the_load_decides_nobody_is_left_out(tmp_path: Path) -> None:
    """A request every few seconds: all cells deliver what is asked of them."""
    idle = tiny_scenario(trace={"source": "azure-conv-like:40", "rate_scale": 0.05})
    done = run(tmp_path / "s", idle, search=True)
    assert {result.status for result in done.predicted()} == {"ok"}


def test_rule_7_a_search_writes_the_same_bytes_with_any_number_of_workers_and_resumed(tmp_path: Path) -> None:
    for workers in (1, 2):
        run(tmp_path / str(workers), search=True, workers=workers)
    reference = bytes_of(tmp_path / "1")
    assert bytes_of(tmp_path / "2") == reference
    for path in (tmp_path / "2" / "cells").glob("*/predicted.json"):
        path.unlink()
    run(tmp_path / "2", search=True)
    assert bytes_of(tmp_path / "2") == reference


def test_a_search_and_a_whole_sweep_are_two_sweeps(tmp_path: Path) -> None:
    run(tmp_path / "s", search=True)
    with pytest.raises(ExperimentError, match=r"holds another sweep \(search differs\)"):
        run(tmp_path / "s")

"""Sweeps to show: some made by hand, some really predicted. What is called measured here is a stand-in: predictions
of another profile, saved as measured runs; no device took part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from profiles import toy_profile

from batchtwin.dashboard.results import Results
from batchtwin.experiments.compare import Comparison
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.recommend import Recommendation
from batchtwin.experiments.replay import predict
from batchtwin.experiments.scenario import Scenario, TraceSpec
from batchtwin.experiments.sweep import CellResult, Sweep, SweepSpec, sweep

SHARES = ("none", "max_num_seqs", "max_num_batched_tokens", "kv_blocks")
SCENARIO = Scenario(
    trace=TraceSpec(
        num_requests=60,
        prompt_scale=0.15,
        output_scale=0.2,
        max_prompt_tokens=600,
        max_output_tokens=80,
        rate_scale=40,
    ),
    num_gpu_blocks=100,
    max_model_len=1024,
)
MakeSweep = Callable[..., Sweep]


@pytest.fixture(scope="session")
def make_sweep() -> MakeSweep:
    """``make_sweep(folder, measured=0, **options)``: a real predicted sweep, with that many stand-in repeats."""

    def make(folder: Path, measured: int = 0, **options: object) -> Sweep:
        grid = {"max_num_seqs": [4, 8, 128], "max_num_batched_tokens": [64, 256, 2048], **options}
        made = sweep(folder, grid.pop("scenario", SCENARIO), toy_profile(), **grid)
        for repeat in range(measured):
            stand_in = toy_profile(host_fixed_s=2e-4 * (repeat + 1))
            for cell in made.to_measure(5):
                run = predict(cell.of(made.spec.scenario), stand_in)
                target = folder / "cells" / cell.key / f"measured-{repeat}"
                dataclasses.replace(run, kind="measured").save(target)
        return made

    return make


@pytest.fixture(scope="session")
def predicted(make_sweep: MakeSweep, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return make_sweep(tmp_path_factory.mktemp("results") / "only-predicted")


@pytest.fixture(scope="session")
def measured(make_sweep: MakeSweep, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return make_sweep(tmp_path_factory.mktemp("results") / "with-measured", 2)


@pytest.fixture
def by_hand(tmp_path: Path) -> Results:
    """Sequences 4 and 8 by 64 and 256 tokens, and vLLM's default 128 × 2048 beside the grid.

    4 × 64 predicts 100 tokens/s, 4 × 256: 110, 8 × 256: 300, the default 400 with 7 preemptions; 8 × 64 cannot work.
    Measured are 4 × 64 (125 ± 4 %) and 8 × 256 (200, one repeat).
    """
    spec = SweepSpec(
        scenario=SCENARIO,
        policies=("vllm_v1",),
        max_num_seqs=(4, 8),
        max_num_batched_tokens=(64, 256),
        trace_digest="d" * 64,
        profile_hash="p" * 16,
    )
    cells = (
        _cell(4, 64, 100.0, bound="max_num_seqs"),
        _cell(4, 256, 110.0, bound="max_num_seqs"),
        CellResult(Cell("vllm_v1", 8, 64), "infeasible", "the pool <is> too small", 0, {}, {}),
        _cell(8, 256, 300.0, bound="kv_blocks"),
        _cell(128, 2048, 400.0, preemptions=7, bound="none"),
    )
    chosen = cells[3]
    recommendation = Recommendation(
        chosen.cell, chosen.metrics, chosen.cell, True, "Choose max_num_seqs=8. It is fast.", "vllm serve x"
    )
    return Results(Sweep(tmp_path / "by-hand", spec, toy_profile()), cells, _comparison(), recommendation)


@pytest.fixture
def with_default(by_hand: Results) -> Results:
    """``by_hand`` with vLLM's default in the grid: 4, 8 and 128 sequences by 64, 256 and 2,048 tokens, most of which
    is not predicted yet.
    """
    spec = by_hand.sweep.spec.model_copy(
        update={"max_num_seqs": (4, 8, 128), "max_num_batched_tokens": (64, 256, 2048)}
    )
    return dataclasses.replace(by_hand, sweep=Sweep(by_hand.sweep.folder, spec, by_hand.sweep.profile))


def _cell(seqs: int, tokens: int, throughput: float, *, preemptions: int = 0, bound: str) -> CellResult:
    shares = {f"bound_{name}_share": 0.7 if name == bound else 0.1 for name in SHARES}
    metrics = {"output_throughput": throughput, "num_preemptions": preemptions, "load_rho": 1.5, **shares}
    return CellResult(Cell("vllm_v1", seqs, tokens), "ok", "", 100, metrics, {})


def _comparison() -> Comparison:
    rows = [
        _row(4, 64, "output_throughput", 100.0, 125.0, -20.0, 4.0, constant=60.0),
        _row(8, 256, "output_throughput", 300.0, 200.0, 50.0, float("nan"), constant=-50.0),
    ]
    summary = {
        "metric": ["output_throughput"],
        "num_cells": [2],
        "median_error_percent": [35.0],
        "worst_error_percent": [50.0],
        "bias_percent": [15.0],
        "repeat_noise_percent": [4.0],
        "worst_repeat_noise_percent": [4.0],
        "constant_median_percent": [55.0],
    }
    parts = {"measured": 200.0, "predicted": 300.0, "rest": -10.0, "cost": -90.0, "schedule": 0.0}
    split = [{**Cell("vllm_v1", 8, 256)._asdict(), "metric": "output_throughput", **parts}]
    regret = {"predicted": 0.0, "random": 18.75}
    frames = pd.DataFrame(rows), pd.DataFrame(summary), pd.DataFrame(split)
    return Comparison("output_throughput", *frames, rank_correlation=1.0, regret_percent=regret)


def _row(
    seqs: int, tokens: int, metric: str, said: float, found: float, error: float, noise: float, *, constant: float
) -> dict[str, object]:
    return {
        **Cell("vllm_v1", seqs, tokens)._asdict(),
        "metric": metric,
        "predicted": said,
        "measured": found,
        "error_percent": error,
        "repeat_noise_percent": noise,
        "num_repeats": 1 if math.isnan(noise) else 3,
        "constant_error_percent": constant,
    }

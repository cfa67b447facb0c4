"""How fast the simulator is: a whole real trace through the scheduler, on one core.

    python benchmarks/speed.py [--shared ../shared] [--repeats 5] [--points low busy overload] [--features] [--grid]

Trace, cost profile and points are those of ``bench/h100_like.json`` in the shared data (an 8B model on an H100-like
device; coefficients from arithmetic). Each repeat is a process of its own, everything in turn; ``stepped`` is
iterations/s with leaping off. ``--features`` adds the same points with prefix caching, with priorities, with
asynchronous scheduling and with eight replicas behind a router at eight times the rate; ``--grid`` predicts 10 × 8
cells on two cores. Prints its setup, a table of medians with their spread, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from setups import AZURE, ROOT, SHARED, law_of, load_setup, profile_of

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefix caching": {"enable_prefix_caching": True},
    "priorities": {"policy": "priority"},
    "asynchronous": {"async_scheduling": True},
    "8 replicas": {"num_replicas": 8},
}
GRID_SEQS = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384]
GRID_TOKENS = [512, 768, 1024, 1536, 2048, 3072, 4096, 8192]
NUM_PRIORITIES = 3


def replay_once(shared: Path, point: str, feature: str, *, leap: bool) -> dict[str, float]:
    """One replay in this process: steady state timed apart from imports and reading."""
    began = time.perf_counter()
    import numpy as np

    from batchtwin.scheduler.config import SchedulerConfig
    from batchtwin.sim.cost_backend import CostModelBackend
    from batchtwin.sim.router import LeastOutstanding
    from batchtwin.sim.world import simulate
    from batchtwin.traces.readers import read_trace

    setup, options = load_setup(shared, "h100_like"), dict(FEATURES[feature])
    num_replicas, policy = options.pop("num_replicas", 1), options.pop("policy", "vllm_v1")
    at = setup["points"][point]
    config = SchedulerConfig(
        max_num_seqs=setup["max_num_seqs"],
        max_num_batched_tokens=setup["max_num_batched_tokens"],
        max_model_len=16_384,
        block_size=setup["block_size"],
        num_gpu_blocks=at["num_gpu_blocks"],
        **options,
    )
    trace = read_trace(shared / AZURE).scale_rate(at["rate_scale"] * num_replicas)
    if policy == "priority":
        trace = replace(trace, priority=np.arange(len(trace)) % NUM_PRIORITIES)
    read = time.perf_counter()
    backends = [CostModelBackend(law_of(setup)) for _ in range(num_replicas)]
    records = simulate(
        trace, config, policy, backends, rule=LeastOutstanding() if num_replicas > 1 else None, leap=leap
    )
    done = time.perf_counter()
    return {
        "num_requests": len(trace),
        "num_iterations": len(records.iterations["end_s"]),
        "num_preemptions": int(records.iterations["num_preempted"].sum()),
        "setup_s": read - began,
        "replay_s": done - read,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--points", nargs="+", default=["low", "busy", "overload"])
    parser.add_argument("--features", action="store_true")
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--once", nargs=2, metavar=("POINT", "FEATURE"), help=argparse.SUPPRESS)
    parser.add_argument("--stepped", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        print(json.dumps(replay_once(args.shared, *args.once, leap=not args.stepped)))
        return
    if not (args.shared / AZURE).exists():
        sys.exit(f"{args.shared / AZURE} is not there: give --shared.")
    print(f"whole Azure conversation trace, {args.repeats} processes a row, in turn, one core")
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    features = list(FEATURES) if args.features else ["plain"]
    runs: dict[tuple[str, str], list[dict[str, float]]] = {
        (point, feature): [] for feature in features for point in args.points
    }
    for _ in range(args.repeats):
        for (point, feature), rows in runs.items():
            stepped = _process(args.shared, point, feature, "--stepped")
            rows.append(_process(args.shared, point, feature) | {"stepped_s": stepped["replay_s"]})
    result: dict[str, Any] = {" ".join(what): _summary(rows) for what, rows in runs.items()}
    _print(result)
    if args.grid:
        result["grid"] = _grid(args.shared, args.repeats)
    print(json.dumps(result))


def _process(shared: Path, point: str, feature: str, *more: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--shared", str(shared), "--once", point, feature, *more]
    began = time.perf_counter()
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    row: dict[str, float] = json.loads(out.stdout)
    return row | {"whole_s": time.perf_counter() - began}


def _summary(rows: list[dict[str, float]]) -> dict[str, float]:
    out = {name: median(row[name] for row in rows) for name in rows[0]}
    out["iterations_per_request"] = out["num_iterations"] / out["num_requests"]
    out["stepped_iterations_per_s"] = median(row["num_iterations"] / row["stepped_s"] for row in rows)
    for what in ("requests", "iterations"):
        rates = sorted(row[f"num_{what}"] / row["replay_s"] for row in rows)
        out |= {f"{what}_per_s": median(rates), f"{what}_per_s_min": rates[0], f"{what}_per_s_max": rates[-1]}
    return out


def _print(result: dict[str, Any]) -> None:
    heads = {"requests/s": 24, "iterations/s": 28, "stepped": 10, "it/request": 12, "whole s": 9, "peak MiB": 10}
    print(f"{'':26}" + "".join(f"{head:>{width}}" for head, width in heads.items()) + f"{'preempt':>9}")
    for what, row in result.items():
        cells = [
            f"{row[f'{name}_per_s']:,.0f} ({row[f'{name}_per_s_min']:,.0f}–{row[f'{name}_per_s_max']:,.0f})"
            for name in ("requests", "iterations")
        ]
        cells += [f"{row['stepped_iterations_per_s']:,.0f}", f"{row['iterations_per_request']:.2f}"]
        cells += [f"{row['whole_s']:.2f}", f"{row['peak_mib']:.0f}"]
        line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, heads.values(), strict=True))
        print(f"{what:26}{line}{row['num_preemptions']:>9.0f}")


def _grid(shared: Path, repeats: int) -> dict[str, Any]:
    """A sweep of the whole trace at ``busy``, metrics only, two workers, results on disk."""
    from batchtwin.experiments.scenario import Scenario, TraceSpec
    from batchtwin.experiments.sweep import sweep

    setup = load_setup(shared, "h100_like")
    at = setup["points"]["busy"]
    scenario = Scenario(
        trace=TraceSpec(source=str(shared / AZURE), rate_scale=at["rate_scale"]),
        model="8b-for-benchmarks",
        dtype="bfloat16",
        device="cuda",
        max_model_len=16_384,
        block_size=setup["block_size"],
        num_gpu_blocks=at["num_gpu_blocks"],
    )
    walls_s = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            sweep(
                Path(folder) / "sweep",
                scenario,
                profile_of(setup),
                max_num_seqs=GRID_SEQS,
                max_num_batched_tokens=GRID_TOKENS,
                workers=2,
                bare=True,
            )
            walls_s.append(time.perf_counter() - began)
    walls_s.sort()
    num_cells = len(GRID_SEQS) * len(GRID_TOKENS)
    print(
        f"\ngrid of {num_cells} cells on two cores, metrics only: {median(walls_s):.1f} s "
        f"({walls_s[0]:.1f}–{walls_s[-1]:.1f})"
    )
    return {"num_cells": num_cells, "wall_s": median(walls_s), "walls_s": walls_s}


if __name__ == "__main__":
    main()

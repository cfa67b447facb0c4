"""How fast the simulator is: a whole real trace through the scheduler, on one core.

    python benchmarks/speed.py [--shared ../shared] [--repeats 5] [--points low busy overload]

Trace, cost profile and points are those of ``bench/h100_like.json`` in the shared data (an 8B model on an H100-like
device; coefficients from arithmetic). Each repeat is a process of its own, the points in turn; ``stepped`` is
iterations/s with leaping off. Prints its setup, a table of medians with their spread, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRACE = "data/azure_llm_2023/AzureLLMInferenceTrace_conv.csv"


def replay_once(shared: Path, point: str, *, leap: bool = True) -> dict[str, float]:
    """One replay in this process: steady state timed apart from imports and reading."""
    began = time.perf_counter()
    from batchtwin.experiments.scenario import Scenario, TraceSpec
    from batchtwin.experiments.world import run_scenario
    from batchtwin.sim.cost.models import Fitted
    from batchtwin.sim.cost_backend import CostModelBackend

    setup = json.loads((shared / "bench" / "h100_like.json").read_text())
    law, at = setup["duration_s"], setup["points"][point]
    model = Fitted(
        fixed_s=law["fixed"],
        per_prefill_token_s=law["per_prefill_token"],
        per_decode_s=law["per_decode_seq"],
        per_decode_kv_token_s=law["per_decode_kv_token"],
        per_attention_pair_s=law["per_prefill_query_context_pair"],
    )
    scenario = Scenario(
        trace=TraceSpec(source=str(shared / TRACE), rate_scale=at["rate_scale"]),
        max_num_seqs=setup["max_num_seqs"],
        max_num_batched_tokens=setup["max_num_batched_tokens"],
        max_model_len=16_384,
        block_size=setup["block_size"],
        num_gpu_blocks=at["num_gpu_blocks"],
    )
    num_requests = len(scenario.trace.load())
    read = time.perf_counter()
    records = run_scenario(scenario, at["num_gpu_blocks"], CostModelBackend(model), leap=leap)
    done = time.perf_counter()
    return {
        "num_requests": num_requests,
        "num_iterations": len(records.iterations["end_s"]),
        "num_preemptions": int(records.iterations["num_preempted"].sum()),
        "setup_s": read - began,
        "replay_s": done - read,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("BATCHTWIN_SHARED", ROOT.parent / "shared")))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--points", nargs="+", default=["low", "busy", "overload"])
    parser.add_argument("--once", help=argparse.SUPPRESS)
    parser.add_argument("--stepped", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        print(json.dumps(replay_once(args.shared, args.once, leap=not args.stepped)))
        return
    if not (args.shared / TRACE).exists():
        sys.exit(f"{args.shared / TRACE} is not there: give --shared.")
    print(f"whole Azure conversation trace, policy vllm_v1, {args.repeats} processes a point, in turn, one core")
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    runs: dict[str, list[dict[str, float]]] = {point: [] for point in args.points}
    for _ in range(args.repeats):
        for point in args.points:
            stepped = _process(args.shared, point, "--stepped")
            runs[point].append(_process(args.shared, point) | {"stepped_s": stepped["replay_s"]})
    heads = {
        "requests/s": 22,
        "iterations/s": 26,
        "stepped": 10,
        "it/request": 12,
        "whole s": 9,
        "peak MiB": 10,
        "preempt": 9,
    }
    print(f"{'point':10}" + "".join(f"{head:>{width}}" for head, width in heads.items()))
    result: dict[str, Any] = {point: _summary(rows) for point, rows in runs.items()}
    for point, row in result.items():
        requests = f"{row['requests_per_s']:,.0f} ({row['requests_per_s_min']:,.0f}–{row['requests_per_s_max']:,.0f})"
        steps = (
            f"{row['iterations_per_s']:,.0f} ({row['iterations_per_s_min']:,.0f}–{row['iterations_per_s_max']:,.0f})"
        )
        print(
            f"{point:10}{requests:>22}{steps:>26}{row['stepped_iterations_per_s']:>10,.0f}{row['iterations_per_request']:>12.2f}{row['whole_s']:>9.2f}"
            f"{row['peak_mib']:>10.0f}{row['num_preemptions']:>9.0f}"
        )
    print(json.dumps(result))


def _process(shared: Path, point: str, *more: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--shared", str(shared), "--once", point, *more]
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


if __name__ == "__main__":
    main()

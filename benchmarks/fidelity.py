"""How true the twin is on this machine: a grid predicted, then measured three times, interleaved.

    python benchmarks/fidelity.py [--trace FILE] [--out results/fidelity] [--minutes 4] [--repeats 3]

The embedded model in float32 on one CPU thread; a slice of the Azure 2023 conversation trace with its lengths scaled
to the model; a pool so small that the cells with many sequences preempt. The profile is written, and its hash
printed, before the first cell is measured. Prints its setup, the errors beside the repeat noise of the same cells and
beside the null baselines, the targets, and one JSON line. The result is ``fidelity.json`` in the output folder; copied
to ``benchmarks/results/fidelity_<device>.json`` it becomes a part of ``docs/fidelity.md`` (``write_fidelity.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from write_fidelity import TARGETS

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
ROOT = Path(__file__).resolve().parent.parent
TRACE = "data/azure_llm_2023/AzureLLMInferenceTrace_conv.csv"
MAX_MODEL_LEN = 1280
SEQS, TOKENS = (4, 12, 32, 96), (128, 512, 2048)


def main() -> None:
    args = _arguments()
    from batchtwin.experiments.calibrate import calibrate
    from batchtwin.experiments.compare import compare
    from batchtwin.experiments.render import print_comparison
    from batchtwin.experiments.render_profile import print_profile
    from batchtwin.experiments.sweep import sweep

    if (args.out / "sweep.json").exists():
        sys.exit(f"{args.out} holds results already: choose another folder.")
    profile = calibrate(
        minutes=args.minutes,
        threads=1,
        max_num_seqs=max(SEQS),
        max_model_len=MAX_MODEL_LEN,
        num_gpu_blocks=args.blocks,  # the pool that will be used: a larger one would not stay in the caches
    )
    path = args.out / "calibration.json"
    profile.save(path)
    print_profile(profile, path)
    print(f"profile hash {profile.hash()}, written before any cell is measured\n", flush=True)
    scenario = _scenario(args)
    began = time.perf_counter()
    done = sweep(
        args.out,
        scenario,
        profile,
        max_num_seqs=SEQS,
        max_num_batched_tokens=TOKENS,
        measure="all",
        repeats=args.repeats,
        workers=2,
        progress=_say,
    )
    comparison = compare(done)
    print_comparison(comparison)
    cells = comparison.cells
    result: dict[str, Any] = {
        "profile_hash": profile.hash(),
        "held_out": profile.fit.held_out.model_dump(),
        "calibration_noise_percent": profile.fit.repeat_noise_percent,
        "measured_minutes": (time.perf_counter() - began) / 60,
        "summary": comparison.summary.set_index("metric").to_dict("index"),
        "regret_percent": comparison.regret_percent,
        "rank_correlation": comparison.rank_correlation,
        "cells": _cells(done),
        "provenance": profile.provenance,
        "interval": _interval(profile, comparison),
        "split": comparison.split.to_dict("records"),
        "latency": comparison.latency.to_dict("records"),
        "over_time": comparison.over_time.to_dict("records"),
        "figures": cells.to_dict("records"),
    }
    _print_grid(result["cells"])
    _print_targets(comparison.summary.set_index("metric"), comparison.regret_percent)
    throughput = cells[cells["metric"] == "output_throughput"]["measured"]
    print(f"best over worst measured throughput: {throughput.max() / throughput.min():.2f}")
    (args.out / "fidelity.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def _interval(profile: Any, comparison: Any) -> dict[str, Any]:
    """What the intervals rest on, at which level, and how many of the measured figures lie inside."""
    from batchtwin.sim.cost.spread import LEVEL

    spread = profile.fit.spread
    inside = comparison.cells["inside"].dropna()
    return {
        "level": LEVEL,
        "inside": int(inside.sum()),
        "of": len(inside),
        "spread": None if spread is None else spread.model_dump(),
    }


def _scenario(args: argparse.Namespace) -> Any:
    """The slice of the trace, its lengths scaled to the small model."""
    from batchtwin.experiments.scenario import make_scenario

    return make_scenario(
        trace={
            "source": str(args.trace),
            "start": 1000,
            "num_requests": args.requests,
            "prompt_scale": 0.25,
            "output_scale": 0.25,
            "max_prompt_tokens": 1024,
            "max_output_tokens": 128,
            "rate_scale": args.rate_scale,
        },
        threads=1,
        max_model_len=MAX_MODEL_LEN,
        num_gpu_blocks=args.blocks,
    )


def _arguments() -> argparse.Namespace:
    shared = Path(os.environ.get("BATCHTWIN_SHARED", ROOT.parent / "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default=shared / TRACE if (shared / TRACE).exists() else "azure-conv-like")
    parser.add_argument("--out", type=Path, default=Path("results/fidelity"))
    parser.add_argument("--minutes", type=float, default=4.0, help="of calibration")
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--rate-scale", type=float, default=3.0)
    parser.add_argument("--blocks", type=int, default=420)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def _say(what: str, done: int, total: int) -> None:
    print(f"{what}: {done}/{total}", file=sys.stderr, flush=True)


def _cells(done: Any) -> list[dict[str, float]]:
    """Per cell: busy time over arrivals' span (measured), load (predicted), preemptions, throughputs."""
    rows = []
    for result in done.feasible():
        runs = done.measured_metrics(result.cell)
        middle = sorted(runs, key=lambda run: run["output_throughput"])[len(runs) // 2]
        rows.append(
            {
                "max_num_seqs": result.cell.max_num_seqs,
                "max_num_batched_tokens": result.cell.max_num_batched_tokens,
                "load_rho": middle["load_rho"],
                "offered_rho": result.metrics["offered_rho"],
                "preemptions": middle["num_preemptions"],
                "measured_tok_s": middle["output_throughput"],
                "predicted_tok_s": result.metrics["output_throughput"],
                "measured_p99_itl_ms": middle["p99_itl_ms"],
                "predicted_p99_itl_ms": result.metrics["p99_itl_ms"],
                "measured_mean_ttft_ms": middle["mean_ttft_ms"],
                "predicted_mean_ttft_ms": result.metrics["mean_ttft_ms"],
                "measured_mean_tpot_ms": middle["mean_tpot_ms"],
                "predicted_mean_tpot_ms": result.metrics["mean_tpot_ms"],
            }
        )
    return rows


def _print_grid(rows: list[dict[str, float]]) -> None:
    print("\nseqs tokens  load ρ  preempt  tok/s measured (predicted)   TPOT ms        P99 ITL ms       mean TTFT ms")
    for row in rows:
        print(
            f"{row['max_num_seqs']:4.0f} {row['max_num_batched_tokens']:6.0f} {row['load_rho']:7.2f} "
            f"{row['preemptions']:8.0f}  {row['measured_tok_s']:10.1f} ({row['predicted_tok_s']:.1f})"
            f"  {row['measured_mean_tpot_ms']:9.1f} ({row['predicted_mean_tpot_ms']:.1f})"
            f"  {row['measured_p99_itl_ms']:9.1f} ({row['predicted_p99_itl_ms']:.1f})"
            f"  {row['measured_mean_ttft_ms']:9.0f} ({row['predicted_mean_ttft_ms']:.0f})"
        )


def _print_targets(summary: Any, regret: dict[str, float]) -> None:
    print("\ntarget                          aimed at   reached")
    for metric, column, limit in TARGETS:
        print(f"{metric + ', ' + column.split('_')[0]:34}{limit:6.1f} % {summary.loc[metric, column]:8.1f} %")
    print(f"{'regret':34}{3.0:6.1f} % {regret['predicted']:8.1f} %   (others: {regret})")


if __name__ == "__main__":
    main()

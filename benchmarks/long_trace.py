"""Traces of any length: what a request costs, in time and memory, when the trace is repeated.

    python benchmarks/long_trace.py [--shared ../shared] [--repeats 1 13 52] [--point busy]

The Azure conversation trace one after another so many times (52 times are 1,007,032 requests) at a point of
``bench/h100_like.json`` (``low``, ``busy`` or ``overload``), streamed to disk and its metrics computed from there. Each
length is a process of its own, which has replayed 200 requests before. Prints its setup, a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from setups import AZURE, ROOT, SHARED, load_setup, profile_of

WARM_UP_REQUESTS = 200


def replay_once(shared: Path, repeat: int, point: str, folder: Path) -> dict[str, float]:
    """One streamed replay in this process."""
    from batchtwin.experiments.replay import predict
    from batchtwin.experiments.scenario import Scenario, TraceSpec
    from batchtwin.experiments.spill import ParquetSink

    setup = load_setup(shared, "h100_like")
    at = setup["points"][point]
    scenario = Scenario(
        trace=TraceSpec(source=str(shared / AZURE), repeat=repeat, rate_scale=at["rate_scale"]),
        model="8b-for-benchmarks",
        dtype="bfloat16",
        device="cuda",
        max_num_seqs=setup["max_num_seqs"],
        max_num_batched_tokens=setup["max_num_batched_tokens"],
        max_model_len=16_384,
        block_size=setup["block_size"],
        num_gpu_blocks=at["num_gpu_blocks"],
    )
    num_requests = len(scenario.trace.load())
    few = scenario.trace.model_copy(update={"repeat": 1, "num_requests": WARM_UP_REQUESTS})
    with tempfile.TemporaryDirectory() as elsewhere:  # imports are no part of a request's cost
        predict(scenario.with_(trace=few.model_dump()), profile_of(setup), sink=ParquetSink(Path(elsewhere)))
    began, began_cpu = time.perf_counter(), time.process_time()
    run = predict(scenario, profile_of(setup), sink=ParquetSink(folder))
    replayed, replayed_cpu = time.perf_counter(), time.process_time()
    replay_mib = _peak_mib()
    metrics = run.metrics
    return {
        "num_requests": num_requests,
        "num_iterations": metrics["num_iterations"],
        "replay_s": replayed - began,
        "replay_cpu_s": replayed_cpu - began_cpu,
        "metrics_s": time.perf_counter() - replayed,
        "replay_peak_mib": replay_mib,
        "peak_mib": _peak_mib(),
        "disk_mib": sum(path.stat().st_size for path in folder.iterdir()) / 2**20,
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--repeats", nargs="+", type=int, default=[1, 13, 52])
    parser.add_argument("--point", default="busy", choices=("low", "busy", "overload"))
    parser.add_argument("--once", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.once:
            print(json.dumps(replay_once(args.shared, args.once, args.point, Path(folder))))
            return
    if not (args.shared / AZURE).exists():
        sys.exit(f"{args.shared / AZURE} is not there: give --shared.")
    print(f"Azure conversation trace, repeated, at {args.point}, H100-like device; vllm_v1, one core, streamed to disk")
    print(f"Python {platform.python_version()}, {platform.machine()}\n")
    heads = ("requests", "iterations", "replay s", "CPU µs/request", "metrics s", "MiB replay", "MiB peak", "MiB disk")
    print("".join(f"{head:>16}" for head in heads))
    rows = []
    for repeat in args.repeats:
        command = [sys.executable, __file__, "--shared", str(args.shared), "--once", str(repeat)]
        command += ["--point", args.point]
        row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
        rows.append(row)
        shown = (
            f"{row['num_requests']:,}",
            f"{row['num_iterations']:,}",
            f"{row['replay_s']:.1f}",
            f"{row['replay_cpu_s'] / row['num_requests'] * 1e6:.1f}",
            f"{row['metrics_s']:.1f}",
            *(f"{row[name]:,.0f}" for name in ("replay_peak_mib", "peak_mib", "disk_mib")),
        )
        print("".join(f"{value:>16}" for value in shown), flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()

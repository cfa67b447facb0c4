"""The common workload, as a whole process: imports, reading the CSV, simulating, writing result files.

    python benchmarks/peers.py [--shared ../shared] [--repeats 5] [--requests 1000 10000 100000] [--others ENV/bin]

Workload: ``bench/common_workload.py`` of the shared data at 4.5 requests/s; law, limits and blocks: ``a100_like.json``.
Each run is a process of its own that leaves ``metrics.json`` and ``requests.parquet`` (one row a request);
the sizes take turns, and with ``--others`` (the programs of an environment that has them, see ``peers_others.py``) so
do the other simulators that a package registry has. Prints its setup, medians beside the other simulators' figures as
they were measured on another day, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from peers_others import OTHERS, rows_of
from setups import ROOT, SHARED, load_setup

RATE_PER_S = 4.5
_WIDE = {**os.environ, "COLUMNS": "200"}  # so that no table of theirs is wrapped
TARGETS_S = {1_000: 0.4, 10_000: 0.8, 100_000: 3.5}
QUOTED_FROM = (
    "quoted from the measurements of 2026-11-29 on a shared 2-core x86-64 machine that drifts up to 1.4x: the same "
    "lengths, Poisson 5.0 requests/s, 128 sequences, 2,048 tokens, each tool's own cost of an 8B model on an A100; "
    "medians of 3 whole processes (100k: one; Vidur as shipped 10k: two)"
)
QUOTED: dict[str, dict[int, tuple[float, int]]] = {
    "dynamo.replay 1.4.2 (Rust)": {1_000: (1.15, 82), 10_000: (2.06, 144), 100_000: (9.84, 758)},
    "sched-sim 0.2.1 (Python)": {1_000: (0.69, 45), 10_000: (4.46, 111), 100_000: (49.4, 767)},
    "BLIS roofline (Go)": {1_000: (2.18, 54), 10_000: (29.0, 287)},
    "Vidur, all outputs off": {1_000: (7.96, 2153), 10_000: (17.5, 2154)},
    "Vidur as shipped, warm": {1_000: (13.3, 2153), 10_000: (43.5, 2153)},
    "inference-lab npm (own draws)": {1_000: (0.40, 78), 10_000: (13.8, 274)},
}
"""Tool → requests → (wall seconds of the whole process, peak MiB)."""


def simulate(shared: Path, workload: Path, folder: Path) -> None:
    """One run in this process: what a user's own script would be."""
    began = time.perf_counter()
    from setups import law_of

    from batchtwin.experiments.parquet import write_table
    from batchtwin.scheduler.config import SchedulerConfig
    from batchtwin.sim.cost_backend import CostModelBackend
    from batchtwin.sim.metrics import metrics
    from batchtwin.sim.world import simulate as run
    from batchtwin.traces.readers import read_trace

    setup = load_setup(shared, "a100_like")
    config = SchedulerConfig(
        max_num_seqs=setup["max_num_seqs"],
        max_num_batched_tokens=setup["max_num_batched_tokens"],
        max_model_len=8_192,
        block_size=setup["block_size"],
        num_gpu_blocks=setup["num_gpu_blocks"],
    )
    backend = CostModelBackend(law_of(setup))
    imported = time.perf_counter()
    trace = read_trace(workload)
    read = time.perf_counter()
    records = run(trace, config, "vllm_v1", [backend])
    replayed = time.perf_counter()
    found = metrics(records, config.num_usable_blocks)
    write_table(records.requests, folder / "requests.parquet")
    parts = {"import_s": imported - began, "read_s": read - imported, "replay_s": replayed - read}
    done = {**parts, "write_s": time.perf_counter() - replayed}
    (folder / "metrics.json").write_text(json.dumps({**found, "timing": done}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", nargs="+", type=int, default=list(TARGETS_S))
    parser.add_argument("--others", type=Path, help="folder of python and programs that have the other simulators")
    parser.add_argument("--once", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        simulate(args.shared, *args.once)
        return
    if not (args.shared / "bench" / "a100_like.json").exists():
        sys.exit(f"{args.shared / 'bench'} is not there: give --shared.")
    with tempfile.TemporaryDirectory() as scratch:
        workloads = {n: _workload(args.shared, n, Path(scratch)) for n in args.requests}
        runs: dict[int, list[dict[str, float]]] = {n: [] for n in args.requests}
        others = _Others(args.others, workloads, load_setup(args.shared, "a100_like")) if args.others else None
        for _ in range(args.repeats):
            for n in args.requests:
                runs[n].append(_process(args.shared, workloads[n], Path(scratch)))
                if others:
                    others.run(n)
    result = {n: {name: median(row[name] for row in rows) for name in rows[0]} for n, rows in runs.items()}
    _print(result, {n: sorted(row["whole_s"] for row in rows) for n, rows in runs.items()}, args.repeats)
    if others:
        others.show(result)


class _Others:
    """Runs of the other simulators, in turn with ours."""

    def __init__(self, programs: Path, workloads: dict[int, Path], setup: dict[str, Any]) -> None:
        self._programs, self._setup = programs.resolve(), setup
        self._workloads: dict[tuple[str, int], Path] = {}
        self._runs: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for other in OTHERS:
            for n, workload in workloads.items():
                self._workloads[other.name, n] = path = workload.with_name(f"{other.package}-{n}.jsonl")
                other.write(rows_of(workload), path)

    def run(self, n: int) -> None:
        """Each once on ``n`` requests."""
        for other in OTHERS:
            path = self._workloads[other.name, n]
            command = other.command(self._programs, path, self._setup)
            output = path.with_suffix(".out")
            began = time.perf_counter()
            with output.open("wb") as file:
                child = subprocess.Popen(command, cwd=path.parent, stdout=file, stderr=subprocess.STDOUT, env=_WIDE)
                _, status, usage = os.wait4(child.pid, 0)
            whole_s = time.perf_counter() - began
            child.returncode = os.waitstatus_to_exitcode(status)
            said = " ".join(output.read_text(errors="replace").split())
            if child.returncode or other.says_done.format(n=n) not in said:
                sys.exit(f"{other.name} did not complete {n} requests (exit code {child.returncode}): {said[-500:]}")
            self._runs.setdefault((other.name, n), []).append((whole_s, usage.ru_maxrss / 1024))

    def show(self, ours: dict[int, dict[str, float]]) -> None:
        """Medians beside ours."""
        print("\nRun in turn with ours, each with a cost model of its own:\n")
        print(f"{'':32}" + "".join(f"{f'{n:,}: wall s':>28}{'MiB':>8}{'× ours':>8}" for n in ours))
        for other in OTHERS:
            line = f"{other.name:32}"
            for n, row in ours.items():
                walls_s = sorted(wall_s for wall_s, _ in self._runs[other.name, n])
                wall_s, mib = median(walls_s), median(mib for _, mib in self._runs[other.name, n])
                text = f"{wall_s:.2f} ({walls_s[0]:.2f}–{walls_s[-1]:.2f})"
                line += f"{text:>28}{mib:>8.0f}{wall_s / row['whole_s']:>8.1f}"
            print(line)


def _workload(shared: Path, n: int, folder: Path) -> Path:
    path = folder / f"workload-{n}.csv"
    command = [sys.executable, str(shared / "bench" / "common_workload.py"), "-n", str(n), "--rate", str(RATE_PER_S)]
    path.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    return path


def _process(shared: Path, workload: Path, folder: Path) -> dict[str, float]:
    """Wall time from before the interpreter starts until it has gone, and what the system says it used."""
    command = [sys.executable, __file__, "--shared", str(shared), "--once", str(workload), str(folder)]
    began = time.perf_counter()
    child = subprocess.Popen(command, cwd=ROOT)
    _, status, usage = os.wait4(child.pid, 0)
    whole_s = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"A run of {workload.name} ended with exit code {child.returncode}.")
    found = json.loads((folder / "metrics.json").read_text())
    return {
        "whole_s": whole_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
        "num_iterations": found["num_iterations"],
        "completed": found["completed"],
        **found["timing"],
    }


def _print(result: dict[int, dict[str, float]], walls_s: dict[int, list[float]], repeats: int) -> None:
    print(f"Whole processes on the common workload, {RATE_PER_S} requests/s, vllm_v1, medians of {repeats}, in turn")
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    heads = ("wall s", "(range)", "target", "CPU s", "import", "read", "replay", "write", "MiB", "iterations", "req/s")
    print(f"{'requests':>9}" + "".join(f"{head:>12}" for head in heads))
    for n, row in result.items():
        cells = [f"{row['whole_s']:.2f}", f"{walls_s[n][0]:.2f}-{walls_s[n][-1]:.2f}", f"{TARGETS_S.get(n, 0) or '-'}"]
        cells += [f"{row[name]:.2f}" for name in ("cpu_s", "import_s", "read_s", "replay_s", "write_s")]
        cells += [f"{row['peak_mib']:.0f}", f"{row['num_iterations']:,.0f}", f"{n / row['whole_s']:,.0f}"]
        print(f"{n:>9,}" + "".join(f"{cell:>12}" for cell in cells))
    print(f"\nOthers, {QUOTED_FROM}:\n")
    print(f"{'':32}" + "".join(f"{f'{n:,}: wall s':>16}{'MiB':>8}" for n in result))
    for tool, figures in QUOTED.items():
        cells = [(f"{figures[n][0]:.2f}", f"{figures[n][1]}") if n in figures else ("-", "-") for n in result]
        print(f"{tool:32}" + "".join(f"{wall:>16}{mib:>8}" for wall, mib in cells))
    out: dict[str, Any] = {"ours": result, "quoted": QUOTED, "targets_s": TARGETS_S}
    print(json.dumps(out))


if __name__ == "__main__":
    main()

"""One run on a machine with a GPU, under 12 minutes: everything this project claims of a GPU, measured or refuted.

    python benchmarks/gpu_check.py [--out gpu_check.json] [--minutes 11] [--wheels DIR] [--dry-run]

The machine needs torch, triton, transformers, numpy and pandas of any recent versions, and no network. Bring one pure
wheel, ``simpy`` (4.1 or newer, py3-none-any), in ``--wheels`` or installed; without it there is no sweep. With scipy
and pydantic there too (they are not pure: install them), predictions and floors come on the spot, else later from the
file by ``gpu_predict.py`` and ``gpu_expectations.py --against``. What is measured beside ours if installed: flash-attn
(2 or 3), FlashInfer, vLLM.

Each section is written to the file as it ends, the last row by row. One that would not fit into the minutes left is
skipped, and says so. What they are expected to take on an H100, in s, never measured yet:

    setup         2   what ran where
    correctness  90   every kernel against the naive reference, mostly compiling; one that fails is not timed
    roof          5   bandwidth and arithmetic that this device really has
    kernels      10   decode and prefill against that
    engine       90   a random model of Llama-3.1-8B's shape: weights, 51 graphs, steps against their floors
    calibration  75   designed batches, whose times make the cost model
    sweep       150   12 cells of both knobs with their step logs
    prediction    5   the sweep predicted from the calibration alone
    peers       150   the kernels of others beside ours: last, since one of them may crash the process

A file kept as ``benchmarks/results/gpu_check_NAME.json`` is a gate of the test suite from then on.
``--dry-run`` runs all of it on the CPU at toy sizes: its figures mean nothing, its code paths do.
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
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / "benchmarks" / "wheels"
PACKAGES = ("torch", "triton", "transformers", "numpy", "pandas", "simpy", "scipy", "pydantic")
FORMAT = 1
Section = Callable[["Report"], dict[str, Any]]


class Report:
    """The results file: written whole after every section, so that a run cut short leaves what it had."""

    def __init__(self, path: Path, *, dry_run: bool, minutes: float) -> None:
        self.path = path
        self.dry_run = dry_run
        self.device = "cpu" if dry_run else "cuda"
        self.sections: dict[str, Any] = {}
        self._deadline = time.monotonic() + 60 * minutes

    def left_s(self) -> float:
        """Seconds until the time given is used up."""
        return self._deadline - time.monotonic()

    def run(self, name: str, section: Section, needs_s: float) -> None:
        """Run a section if it still fits; whatever goes wrong in it is written down and the next one runs."""
        began = time.monotonic()
        if self.left_s() < needs_s and not self.dry_run:
            done: dict[str, Any] = {"skipped": f"{self.left_s():.0f} s were left, it needs about {needs_s:.0f}"}
        else:
            try:
                done = section(self)
            except Exception as error:  # noqa: BLE001  (a GPU run must leave all that it can)
                done = {"failed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-3000:]}
        self.keep(name, self.sections.get(name, {}) | done | {"wall_s": round(time.monotonic() - began, 2)})
        say = done.get("summary") or done.get("failed") or done.get("skipped") or "done"
        print(f"[{name}] {say}  ({self.sections[name]['wall_s']:.0f} s)", flush=True)

    def keep(self, name: str, done: dict[str, Any]) -> None:
        """Write what a section has so far."""
        self.sections[name] = done
        scratch = self.path.with_name(self.path.name + ".part")
        scratch.write_text(json.dumps({"format": FORMAT, "dry_run": self.dry_run, "sections": self.sections}) + "\n")
        scratch.replace(self.path)


def setup(report: Report) -> dict[str, Any]:
    """What ran where."""
    import torch

    facts: dict[str, Any] = {
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "python": platform.python_version(),
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "HEAD") or os.environ.get("BATCHTWIN_COMMIT", "unknown"),
        "device": report.device,
    }
    if report.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        query = (
            "nvidia-smi",
            "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
            "--format=csv,noheader",
        )
        facts |= {
            "gpu": properties.name,
            "memory_bytes": properties.total_memory,
            "multi_processor_count": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "nvidia_smi": _output(*query),
            "cuda": torch.version.cuda,
        }
    return facts | {"summary": f"{facts.get('gpu', 'CPU, dry run')}, torch {facts['versions'].get('torch')}"}


def roof(report: Report) -> dict[str, Any]:
    """What the device can do at best."""
    from batchtwin.executor.peaks import flops_per_s, memory_bytes_per_s

    dtype = "float32" if report.dry_run else "bfloat16"
    memory, flops = memory_bytes_per_s(report.device), flops_per_s(report.device, dtype)
    summary = f"copy {memory / 1e9:,.0f} GB/s, {dtype} product {flops / 1e12:,.2f} TFLOP/s"
    return {"memory_bytes_per_s": memory, "flops_per_s": flops, "dtype": dtype, "summary": summary}


def predict(report: Report) -> dict[str, Any]:
    """The sweep predicted from the calibration, where scipy is there."""
    missing = [name for name in ("scipy", "simpy") if find_spec(name) is None]
    if missing:
        return {"skipped": f"{missing[0]} is not here: run gpu_predict.py on the results file elsewhere"}
    from gpu_predict import predicted

    return predicted(report.sections)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def find_package(wheels: Path) -> None:
    """Make ``batchtwin`` (this checkout, whatever its folder is called) and brought wheels importable."""
    sys.path[:0] = [str(ROOT / "benchmarks"), *sorted(map(str, wheels.glob("*-none-any.whl")))]
    if find_spec("batchtwin") is not None:
        return
    if ROOT.name == "batchtwin":
        sys.path.insert(0, str(ROOT.parent))
        return
    place = tempfile.mkdtemp()
    (Path(place) / "batchtwin").symlink_to(ROOT, target_is_directory=True)
    sys.path.insert(0, place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--minutes", type=float, default=11.0)
    parser.add_argument("--wheels", type=Path, default=WHEELS)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    find_package(args.wheels)
    import torch

    if not args.dry_run and not torch.cuda.is_available():
        sys.exit("There is no CUDA device here: run it where one is, or with --dry-run.")
    import gpu_engine
    import gpu_kernels
    import gpu_peers

    def peers(report: Report) -> dict[str, Any]:
        gpu_engine.release()
        return gpu_peers.peers(report)

    report = Report(args.out, dry_run=args.dry_run, minutes=args.minutes)
    for name, section, needs_s in (
        ("setup", setup, 1),
        ("correctness", gpu_kernels.correctness, 20),
        ("roof", roof, 5),
        ("kernels", gpu_kernels.kernels, 60),
        ("engine", gpu_engine.engine, 60),
        ("calibration", gpu_engine.calibration, 45),
        ("sweep", gpu_engine.sweep, 45),
        ("prediction", predict, 5),
        ("peers", peers, 20),
    ):
        report.run(name, section, needs_s)
    print(f"Wrote {args.out}")
    failed = [name for name, done in report.sections.items() if "failed" in done]
    sys.exit(f"Failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()

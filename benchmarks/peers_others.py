"""How other simulators replay the same workload, as a user of theirs would: one command a run, results on disk.

Both come from the package registry, into an environment of their own:

    python -m venv others && others/bin/pip install sched-sim==0.2.1 ai-dynamo==1.4.2
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HASH_BLOCK_TOKENS = 512
"""Tokens that one of Mooncake's hash ids stands for."""


class Other(NamedTuple):
    """A simulator, how it is told the workload, and how it is run."""

    name: str
    package: str
    write: Callable[[list[dict[str, str]], Path], None]
    command: Callable[[Path, Path, dict[str, Any]], list[str]]
    """(folder of its programs, workload, setup) → what is run."""
    says_done: str
    """What its output says of ``{n}`` requests that all were completed."""


def rows_of(workload: Path) -> list[dict[str, str]]:
    """The rows of the common workload."""
    with workload.open(newline="") as file:
        return list(csv.DictReader(file))


def _write_mooncake(rows: list[dict[str, str]], path: Path) -> None:
    """Each prompt with hash ids of its own: nothing is shared."""
    next_id = 0
    with path.open("w") as file:
        for row in rows:
            prompt = int(row["num_prefill_tokens"])
            num_ids = math.ceil(prompt / HASH_BLOCK_TOKENS)
            ids = list(range(next_id, next_id + num_ids))
            next_id += num_ids
            entry = {
                "timestamp": float(row["arrived_at"]) * 1e3,
                "input_length": prompt,
                "output_length": int(row["num_decode_tokens"]),
                "hash_ids": ids,
            }
            file.write(json.dumps(entry) + "\n")


def _dynamo(programs: Path, workload: Path, setup: dict[str, Any]) -> list[str]:
    """Its own cost model; speed of the simulation is what is compared, not what it predicts."""
    engine = {name: setup[name] for name in ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "block_size")}
    arguments = json.dumps({**engine, "enable_prefix_caching": False})
    report = ["--report-json", str(workload.with_suffix(".report.json"))]
    return [
        str(programs / "python"), "-m", "dynamo.replay", str(workload), "--trace-format", "mooncake",
        "--extra-engine-args", arguments, *report,
    ]  # fmt: skip


def _write_sched_sim(rows: list[dict[str, str]], path: Path) -> None:
    entries = [
        {
            "id": str(i),
            "timestamp": float(row["arrived_at"]),
            "prompt_tokens": int(row["num_prefill_tokens"]),
            "output_tokens": int(row["num_decode_tokens"]),
        }
        for i, row in enumerate(rows)
    ]
    path.write_text(json.dumps(entries))


def _sched_sim(programs: Path, workload: Path, setup: dict[str, Any]) -> list[str]:
    """Its chunked scheduler; it has no option for the batch cap, and writes no result file unless it is a timeline."""
    budget = str(setup["max_num_batched_tokens"])
    return [
        str(programs / "sched-sim"), "trace", str(workload), "-s", "chunked", "-h", "a100", "--token-budget", budget,
        "--no-gantt",
    ]  # fmt: skip


OTHERS = (
    Other("dynamo.replay 1.4.2 (Rust)", "ai-dynamo", _write_mooncake, _dynamo, "Request Count (requests) ┃ {n:,}.00"),
    Other("sched-sim 0.2.1 (Python)", "sched-sim", _write_sched_sim, _sched_sim, "{n} / {n}"),
)

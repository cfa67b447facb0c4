"""Public vLLM starts, and what ``plan_memory`` makes of them; run as a program it writes ``docs/memory.md``."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from batchtwin.sim.facts.device import find_device
from batchtwin.sim.facts.library import load_model_config
from batchtwin.sim.facts.memory import GIB, Knobs, MemoryPlan, plan_memory

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data" / "vllm_starts.json"
TABLE = ROOT / "docs" / "memory.md"
PARTS = ("weights", "peak", "kv")
HEAD = """# Where a GPU's memory goes: `batchtwin plan` against public logs

Written by `python tests/sim/facts/starts.py`; a test holds this file against the code.

```
usable   = memory of the device · gpu_memory_utilization
weights  = (projections / GPUs) · bytes a weight + (embeddings / GPUs + norms, biases, routers, rotary table) · bytes
forward  = budget · (n · hidden + 3 · MLP width / GPUs) · bytes     n = 4 (3 before vLLM 0.8); 2 widths without a gate
sampler  = sequences · vocabulary · 15 + budget · hidden · bytes    38.5 instead of 15 before vLLM 0.17
KV       = usable − weights − max(forward, sampler) − CUDA graphs (since 0.21) − context and NCCL
blocks   = KV / (2 · layers · KV heads of a GPU · head size · bytes of the KV dtype · block size)
```

No constant was fitted to a row's KV. The counts of tensors are those that the kernels hold; the 15 and the 38.5 bytes a
logit, the context and the graphs are read from some of these same logs, so the table says how well one rule does for
all of them, not how well it does on logs it has not seen. The remarks at each constant (`sim/facts/memory.py`) say
which logs those are. The H100 studies do not state the knobs: vLLM's defaults there are assumed. GiB a GPU, ours
(logged):

"""


class Start(NamedTuple):
    """One start: what was logged, and the plan of the same knobs."""

    row: dict[str, Any]
    plan: MemoryPlan

    @property
    def name(self) -> str:
        """Of the test."""
        return f"{self.row['model']}-{self.row['tensor_parallel_size']}-{self.row['vllm_version']}"

    @property
    def ours(self) -> dict[str, float]:
        p = self.plan
        return {"weights": p.weight_bytes / GIB, "peak": p.peak_bytes / GIB, "kv": p.kv_bytes / GIB}

    @property
    def logged(self) -> dict[str, float | None]:
        return {part: self.row[f"{part}_gib"] for part in PARTS}

    def error(self, part: str) -> float | None:
        """Ours over logged, less 1."""
        logged = self.logged[part]
        return None if logged is None else self.ours[part] / logged - 1


def starts() -> list[Start]:
    """Every row of the data."""
    return [Start(row, _plan(row)) for row in json.loads(DATA.read_text(encoding="utf-8"))["starts"]]


def _plan(row: dict[str, Any]) -> MemoryPlan:
    device = find_device(row["gpu"])
    if row["total_gib"] is not None:
        device = dataclasses.replace(device, memory_bytes=int(row["total_gib"] * GIB))
    names = ("tensor_parallel_size", "gpu_memory_utilization", "vllm_version")
    knobs = {name: row[name] for name in names if row[name] is not None}
    return plan_memory(
        load_model_config(row["model"]), device, Knobs(row["max_num_seqs"], row["max_num_batched_tokens"], **knobs)
    )


def table() -> str:
    """The whole file."""
    found = starts()
    lines = [
        "| model | GPUs | vLLM | seqs / budget | weights | peak | left for KV | from |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(start) for start in found),
    ]
    sums = [_summary(found, part) for part in PARTS]
    return HEAD + "\n".join(lines) + "\n\n" + "\n".join(sums) + "\n"


def _line(start: Start) -> str:
    row = start.row
    parts = [
        "–" if logged is None else f"{start.ours[part]:.2f} ({logged:.2f})" for part, logged in start.logged.items()
    ]
    where = row["source"] + (f"; *{row['note']}*" if row["note"] else "")
    cells = (
        row["model"],
        f"{row['tensor_parallel_size']} × {row['gpu']}",
        row["vllm_version"],
        f"{row['max_num_seqs']:,} / {row['max_num_batched_tokens']:,}",
        *parts,
        where,
    )
    return f"| {' | '.join(cells)} |"


def _summary(found: list[Start], part: str) -> str:
    errors = [100 * error for start in found if (error := start.error(part)) is not None]
    sizes = [abs(error) for error in errors]
    return (
        f"* {part.capitalize() if part != 'kv' else 'Left for KV'}: {len(errors)} starts, median error "
        f"{statistics.median(sizes):.1f} %, worst {max(sizes):.1f} %, mean of the signed errors "
        f"{statistics.fmean(errors):+.1f} %."
    )


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")

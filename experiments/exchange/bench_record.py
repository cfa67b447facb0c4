"""Our runs as records of ``vllm bench serve`` and folders of ``vllm bench sweep``, so that their tools open them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...sim.metrics import request_times
from ..grid import Cell
from ..run import Run, write_whole
from ..scenario import Scenario
from ..sweep import Sweep
from .bench_serve import PLAIN_METRICS, SUMMARY_METRIC

SERVER_FIELDS = (
    "max_model_len",
    "block_size",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "async_scheduling",
)
"""Scenario fields that go into a record as the parameters of ``vllm serve`` that they are."""


def bench_record(scenario: Scenario, metrics: Mapping[str, float], kind: str, num_gpu_blocks: int) -> dict[str, Any]:
    """A result without details, as vLLM names its fields; ``backend`` says that it is ours and which kind. What is
    undefined is left out.
    """
    own = {name: metrics[name] for name in metrics if name in PLAIN_METRICS or SUMMARY_METRIC.fullmatch(name)}
    return {
        "endpoint_type": f"batchtwin-{kind}",
        "backend": f"batchtwin-{kind}",
        "label": None,
        "model_id": scenario.model,
        "tokenizer_id": scenario.model,
        "num_prompts": metrics["num_requests"],
        "request_rate": "inf" if scenario.trace.offline else _rate(scenario),
        "burstiness": scenario.trace.burstiness,
        "max_concurrency": scenario.max_concurrency or scenario.num_clients,
        **{name: value for name, value in own.items() if math.isfinite(value)},
        "failed": metrics["num_requests"] - metrics["completed"],
        "max_num_seqs": scenario.max_num_seqs,
        "max_num_batched_tokens": scenario.max_num_batched_tokens,
        "num_gpu_blocks_override": num_gpu_blocks,
        **{name: getattr(scenario, name) for name in SERVER_FIELDS},
    }


def detailed_record(run: Run) -> dict[str, Any]:
    """A run's record with one entry a request that finished, as ``--save-detailed`` writes it; times in seconds. The
    gaps of each (``itls``) are left out: a run keeps them pooled, and their statistics are in the record.
    """
    times = request_times(run.records)
    return bench_record(run.scenario, run.metrics, run.kind, run.num_gpu_blocks) | {
        "input_lens": times.num_prompt_tokens.tolist(),
        "output_lens": times.num_output_tokens.tolist(),
        "start_times": times.arrival_s.tolist(),
        "queue_times": times.gate_s.tolist(),
        "ttfts": times.ttft_s.tolist(),
        "latencies": times.e2el_s.tolist(),
        "errors": [""] * len(times.e2el_s),
    }


def write_sweep_folder(sweep: Sweep, folder: Path) -> int:
    """A sweep as ``vllm bench sweep serve`` leaves one: a folder a cell with ``run=0.json`` and ``summary.json``, and
    ``summary.csv``. Predictions only; cells without one are left out. Returns how many there are.
    """
    records = []
    for result in sweep.feasible():
        scenario = result.cell.of(sweep.spec.scenario)
        record = bench_record(scenario, result.metrics, "predicted", result.num_gpu_blocks) | {"run_number": 0}
        if len(sweep.spec.policies) > 1:
            record["policy"] = result.cell.policy
        home = folder / _cell_folder(result.cell, with_policy=len(sweep.spec.policies) > 1)
        write_whole(home / "run=0.json", json.dumps(record, indent=4) + "\n")
        write_whole(home / "summary.json", json.dumps([record], indent=4) + "\n")
        records.append(record)
    if records:
        write_whole(folder / "summary.csv", _csv(records))
    return len(records)


def _cell_folder(cell: Cell, *, with_policy: bool) -> str:
    name = f"SERVE--max_num_seqs={cell.max_num_seqs}-max_num_batched_tokens={cell.max_num_batched_tokens}"
    return f"{name}-policy={cell.policy.replace(':', '-').replace('/', '_')}" if with_policy else name


def _rate(scenario: Scenario) -> float | str:
    """Requests a second of the trace as it is replayed; all at once is infinite."""
    trace = scenario.trace.load()
    return (len(trace) - 1) / trace.span_s if trace.span_s > 0 else "inf"


def _csv(records: Sequence[Mapping[str, Any]]) -> str:
    """As a data frame writes itself: an index first."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["", *columns])
    for number, record in enumerate(records):
        writer.writerow([number, *("" if record.get(name) is None else record[name] for name in columns)])
    return text.getvalue()

"""The sweep of a ``gpu_check.py`` results file, predicted from its calibration alone and laid beside its step logs.

    python benchmarks/gpu_predict.py gpu_check.json

Needs no GPU, torch or transformers: numpy, scipy and simpy. Prints a row a cell and one JSON line. A committed results
file is so a fidelity gate that any machine can run (``tests/test_gpu_check.py``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.sim.cost.features import Features
from batchtwin.sim.cost.fit import fit, fit_host, held_out_predictions, summarize
from batchtwin.sim.cost.models import Fitted, HostTerm
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.world import simulate
from batchtwin.traces import load_trace

POLICY = "vllm_v1"
COMPARED = ("num_tokens", "num_seqs", "num_decodes", "num_decode_kv_tokens", "num_prefill_tokens", "num_samples")


def predicted(sections: dict[str, Any]) -> dict[str, Any]:
    """Held-out error of the law, and each cell: error of the throughput and of the time per step, batches equal."""
    calibration, sweep = sections.get("calibration", {}), sections.get("sweep", {})
    cells = [cell for cell in sweep.get("cells", ()) if "steps" in cell]
    if "features" not in calibration or not cells:
        return {"skipped": "there is no calibration or no measured cell to predict"}
    features = Features(*(np.array(calibration["features"][name]) for name in Features._fields))
    medians_s = np.array([np.median(times) for times in calibration["times_s"]])
    sizes = tuple(calibration["capture_sizes"])
    law = fit(features, medians_s, capture_sizes=sizes)
    held_out = summarize(held_out_predictions(features, medians_s, capture_sizes=sizes), medians_s)
    host = _host(cells)
    rows = [_compare(cell, sweep["trace"], law, host) for cell in cells]
    errors = [abs(row["throughput_error_percent"]) for row in rows]
    equal = all(row["batches_equal"] for row in rows)
    return {
        "held_out_median_percent": held_out.median_percent,
        "host_fixed_us": 1e6 * host.fixed_s,
        "cells": rows,
        "median_error_percent": float(np.median(errors)),
        "worst_error_percent": float(np.max(errors)),
        "batches_equal": equal,
        "summary": f"{len(rows)} cells, throughput within {np.median(errors):.1f} % (median), {np.max(errors):.1f} % "
        f"(worst); batches {'equal' if equal else 'DIFFERENT'}; law {held_out.median_percent:.1f} % held out",
    }


def _host(cells: list[dict[str, Any]]) -> HostTerm:
    """From every other cell: the host's share is not part of the designed batches."""
    seqs = np.concatenate([cell["steps"]["num_seqs"] for cell in cells[::2]])
    return fit_host(seqs.astype(np.float64), np.concatenate([cell["steps"]["host_s"] for cell in cells[::2]]))


def _compare(cell: dict[str, Any], spec: list[Any], law: Fitted, host: HostTerm) -> dict[str, Any]:
    config = SchedulerConfig(
        max_num_seqs=cell["max_num_seqs"],
        max_num_batched_tokens=cell["max_num_batched_tokens"],
        max_model_len=cell["max_model_len"],
        num_gpu_blocks=cell["num_gpu_blocks"],
        block_size=cell["block_size"],
    )
    source, prompt_scale, output_scale = spec
    half = cell["max_model_len"] // 2
    trace = load_trace(source, seed=0).scale_lengths(prompt_scale, output_scale, half, half - 1).offline()
    records = simulate(trace, config, POLICY, [CostModelBackend(law, host)])
    steps, measured = records.iterations, cell["steps"]
    rate = float(records.requests["num_output_tokens"].sum()) / float(steps["end_s"].max())
    equal = all(np.array_equal(steps[name], measured[name]) for name in COMPARED)
    found = {
        "max_num_seqs": cell["max_num_seqs"],
        "max_num_batched_tokens": cell["max_num_batched_tokens"],
        "measured_tok_s": cell["output_tok_s"],
        "predicted_tok_s": rate,
        "throughput_error_percent": 100 * (rate / cell["output_tok_s"] - 1),
        "batches_equal": equal,
    }
    if equal:
        error = np.abs(steps["device_s"] / np.array(measured["device_s"]) - 1)
        found["step_error_median_percent"] = 100 * float(np.median(error))
    return found


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: gpu_predict.py RESULTS.json")
    try:
        sections = json.loads(Path(sys.argv[1]).read_text())["sections"]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{sys.argv[1]} is not a results file of gpu_check.py ({error}).")
    result = predicted(sections)
    for row in result.get("cells", ()):
        print(
            f"{row['max_num_seqs']:5} × {row['max_num_batched_tokens']:5}: measured {row['measured_tok_s']:9,.0f}, "
            f"predicted {row['predicted_tok_s']:10,.0f} ({row['throughput_error_percent']:+.1f} %)"
        )
    print(result.get("summary") or result.get("skipped"))
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""A replay's every byte as one word. Run as a program it predicts a scenario and prints the word."""

from __future__ import annotations

import hashlib
import json
import sys

from profiles import toy_profile

from batchtwin.experiments.replay import predict
from batchtwin.experiments.scenario import Scenario, TraceSpec
from batchtwin.sim.records import Records

BUSY = Scenario(
    trace=TraceSpec(source="azure-conv-like:60", prompt_scale=0.05, output_scale=0.3, rate_scale=4.0),
    max_num_seqs=12,
    max_num_batched_tokens=96,
    max_model_len=1024,
    num_gpu_blocks=60,
)
"""Small, busy, and short of KV blocks."""


def digest(records: Records) -> str:
    """SHA-256 over all columns, names and types included."""
    sha = hashlib.sha256()
    for part in (records.requests, records.iterations, {"gaps": records.gaps}):
        for name, values in part.items():
            sha.update(f"{name} {values.dtype} {values.shape}".encode())
            sha.update(values.tobytes())
    return sha.hexdigest()


if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    run = predict(BUSY.with_(**fields), toy_profile())
    print(run.metrics["num_preemptions"], digest(run.records), toy_profile().hash())

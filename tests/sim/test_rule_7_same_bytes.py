"""Rule 7 of the design: the same seed gives the same bytes, in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import records_digest
from hypothesis import HealthCheck, given, settings
from profiles import toy_profile
from records_digest import BUSY, digest
from replays import Noisy, Workload, play, workloads

from batchtwin.experiments.replay import predict
from batchtwin.sim.cost.models import Constant


def _in_another_process(fields: dict[str, Any], hash_seed: str) -> list[str]:
    script = Path(records_digest.__file__)
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(fields)], capture_output=True, text=True, env=env, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "fields", [{}, {"num_clients": 8, "think_s": 0.01, "policy": "prefill_first", "max_num_batched_tokens": 1024}]
)
def test_rule_7_two_processes_predict_the_same_bytes(fields: dict[str, Any]) -> None:
    run = predict(BUSY.with_(**fields), toy_profile())
    assert run.metrics["num_preemptions"] > 0, "else the scenario tests little"
    here = [str(run.metrics["num_preemptions"]), digest(run.records), toy_profile().hash()]
    assert _in_another_process(fields, "1") == here
    assert _in_another_process(fields, "2") == here


def test_rule_7_another_seed_gives_other_bytes() -> None:
    other = BUSY.with_(trace={**BUSY.trace.model_dump(), "seed": 1})
    assert digest(predict(other, toy_profile()).records) != digest(predict(BUSY, toy_profile()).records)


@given(workloads() | workloads(closed=True))
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_rule_7_a_workload_replayed_again_gives_the_same_bytes(workload: Workload) -> None:
    def once() -> str:
        return digest(play(workload, Noisy(Constant(1e-3), seed=3)).records)

    assert once() == once()

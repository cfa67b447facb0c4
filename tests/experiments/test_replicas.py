"""Scenarios with several replicas: predicted, tabulated, kept on disk, refused where they cannot be."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from profiles import toy_profile
from records_digest import BUSY, digest
from typer.testing import CliRunner

from batchtwin.cli import app
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.replay import predict, replay
from batchtwin.experiments.replicas import replica_metrics
from batchtwin.experiments.run import load_run
from batchtwin.experiments.scenario import Scenario, make_scenario
from batchtwin.experiments.sweep import sweep
from batchtwin.experiments.world import run_scenario
from batchtwin.sim.cost_backend import CostModelBackend

PROFILE = toy_profile()
ROUTERS = ("round_robin", "least_outstanding", "prefix_affinity")


def _three(router: str = "least_outstanding") -> Scenario:
    return BUSY.with_(num_replicas=3, router=router, slo={"ttft_ms": 100.0})


@pytest.mark.parametrize("router", ROUTERS)
def test_a_scenario_with_replicas_serves_everybody_and_gives_the_same_bytes_again(router: str) -> None:
    run = predict(_three(router), PROFILE)
    assert run.metrics["completed"] == run.metrics["num_requests"] == 60
    assert set(run.records.requests["replica"]) == {0, 1, 2}
    assert digest(run.records) == digest(predict(_three(router), PROFILE).records)


def test_more_replicas_mean_a_lower_load_and_earlier_first_tokens() -> None:
    one, three = predict(BUSY, PROFILE).metrics, predict(_three(), PROFILE).metrics
    assert three["load_rho"] < one["load_rho"]
    assert three["mean_ttft_ms"] < one["mean_ttft_ms"]


def test_the_router_is_moot_with_one_replica() -> None:
    digests = {digest(predict(BUSY.with_(router=router), PROFILE).records) for router in ROUTERS}
    assert len(digests) == 1


def test_rows_of_the_replicas_add_up_to_the_run() -> None:
    run = predict(_three(), PROFILE)
    rows = replica_metrics(run)
    assert [row["replica"] for row in rows] == [0, 1, 2]
    for name in ("completed", "total_output_tokens", "num_iterations", "num_preemptions", "recomputed_tokens"):
        assert sum(row[name] for row in rows) == run.metrics[name], name
    for name in ("output_throughput", "request_throughput", "total_token_throughput", "request_goodput"):
        assert sum(row[name] for row in rows) == pytest.approx(run.metrics[name]), name
    served = [row["completed"] for row in rows]
    mean_ms = sum(n * row["mean_ttft_ms"] for n, row in zip(served, rows, strict=True)) / sum(served)
    assert mean_ms == pytest.approx(run.metrics["mean_ttft_ms"])
    assert max(row["peak_kv_usage"] for row in rows) == run.metrics["peak_kv_usage"]
    assert all(0 < row["busy_share"] <= 1 for row in rows)


def test_a_replica_that_got_nothing_has_no_rate_and_no_times() -> None:
    """60 requests, one after the other to 100 replicas."""
    rows = replica_metrics(predict(BUSY.with_(num_replicas=100), PROFILE))
    assert [row["completed"] for row in rows] == [1] * 60 + [0] * 40
    idle = rows[-1]
    assert (idle["output_throughput"], idle["busy_share"], idle["num_iterations"]) == (0.0, 0.0, 0)
    assert math.isnan(idle["mean_ttft_ms"])


def test_a_run_with_replicas_survives_the_disk(tmp_path: Path) -> None:
    run = predict(_three(), PROFILE)
    run.save(tmp_path / "run")
    again = load_run(tmp_path / "run")
    assert again.records.num_replicas == 3
    assert digest(again.records) == digest(run.records)
    assert again.metrics == run.metrics


def test_replicas_are_predicted_only(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="A device runs one replica, but num_replicas is 3"):
        replay(_three(), measured=True)
    with pytest.raises(ExperimentError, match="A device runs one replica"):
        sweep(tmp_path / "s", _three(), PROFILE, max_num_seqs=[4], max_num_batched_tokens=[64], measure=1)
    assert not (tmp_path / "s").exists()
    with pytest.raises(ExperimentError, match="3 replicas, but there are backends for 1"):
        run_scenario(_three(), 60, CostModelBackend(PROFILE.cost_model))


@pytest.mark.parametrize(
    ("field", "value"), [("num_replicas", 0), ("router", "random"), ("router_min_prefix_share", 1.5)]
)
def test_what_is_no_number_of_replicas_or_no_router_is_refused(field: str, value: object) -> None:
    with pytest.raises(ExperimentError, match=f"^{field} is "):
        make_scenario(**{field: value})


def test_replay_prints_a_row_for_every_replica(tmp_path: Path) -> None:
    PROFILE.save(tmp_path / "profile.json")
    words = ["replay", "-p", str(tmp_path / "profile.json"), "-t", "azure-conv-like:30", "--prompt-scale", "0.1"]
    alone = CliRunner().invoke(app, words)
    assert alone.exit_code == 0, alone.output
    assert "Replica" not in alone.output
    several = CliRunner().invoke(app, [*words, "--replicas", "3", "--router", "round_robin"])
    assert several.exit_code == 0, several.output
    assert "3 replicas, round robin" in several.output
    rows = [line.split() for line in several.output.splitlines()]
    assert [row[:2] for row in rows if row and row[0] in ("0", "1", "2")] == [["0", "10"], ["1", "10"], ["2", "10"]]

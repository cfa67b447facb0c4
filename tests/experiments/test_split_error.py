"""Where an error comes from: measured − predicted falls exactly into rest, cost and schedule."""

from __future__ import annotations

import math
from typing import Any

import pytest
from profiles import toy_profile
from sweeps import measured_stand_in, tiny_scenario

from batchtwin.experiments.compare import split_error
from batchtwin.experiments.replay import predict
from batchtwin.experiments.run import Run
from batchtwin.experiments.scenario import Scenario
from batchtwin.experiments.world import run_scenario
from batchtwin.sim.cost_backend import CostModelBackend

PROFILE = toy_profile()
TIMED = ("output_throughput", "duration", "mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "mean_e2el_ms")
SCENARIOS: dict[str, dict[str, Any]] = {
    "open loop": {},
    "offline": {"trace": {"offline": True}},
    "closed loop": {"num_clients": 3, "think_s": 0.002},
    "short of blocks": {"num_gpu_blocks": 14, "trace": {"output_scale": 0.3, "max_output_tokens": 60}},
    "prefill first": {"policy": "prefill_first"},
    "static batch": {"policy": "static_batch"},
    "two batches in flight": {"async_scheduling": True},
}


def _split(run: Run, scenario: Scenario) -> dict[str, dict[str, float]]:
    predicted = predict(scenario, PROFILE).metrics
    return split_error(run, predicted, PROFILE.cost_model, PROFILE.host)


@pytest.mark.parametrize("fields", SCENARIOS.values(), ids=SCENARIOS.keys())
@pytest.mark.parametrize("gap_s", [0.0, 2e-3], ids=["busy", "with gaps"])
def test_the_three_parts_sum_to_measured_minus_predicted(fields: dict[str, Any], gap_s: float) -> None:
    scenario = tiny_scenario(**fields)
    parts = _split(measured_stand_in(scenario, PROFILE, gap_s=gap_s), scenario)
    assert set(TIMED) <= set(parts)
    for name, part in parts.items():
        error = part["measured"] - part["predicted"]
        if math.isfinite(error):
            scale = max(abs(part["measured"]), abs(part["predicted"]), 1e-12)
            assert abs(part["rest"] + part["cost"] + part["schedule"] - error) <= 1e-9 * scale, name


def test_the_stand_in_for_a_measurement_differs_from_the_prediction() -> None:
    """Else all parts would be 0 and the tests here would show nothing."""
    parts = _split(measured_stand_in(tiny_scenario(), PROFILE), tiny_scenario())
    for name in TIMED:
        assert abs(parts[name]["cost"]) > 0.01 * parts[name]["predicted"], name
    assert any(parts[name]["schedule"] != 0 for name in TIMED)


@pytest.mark.parametrize(
    "fields",
    [{"policy": "vllm_v1"}, {"policy": "prefill_first"}, {"policy": "static_batch"}, {"async_scheduling": True}],
)
def test_offline_the_schedule_part_is_exactly_nothing(fields: dict[str, Any]) -> None:
    """Timing cannot influence decisions there, so the batches are equal, and equal batches add up to equal bits."""
    scenario = tiny_scenario(**fields, trace={"offline": True})
    for name, part in _split(measured_stand_in(scenario, PROFILE), scenario).items():
        assert part["schedule"] == 0 or math.isnan(part["schedule"]), name
        assert not math.isnan(part["schedule"]) or not math.isfinite(part["predicted"]), name


@pytest.mark.parametrize("fields", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_with_an_exact_cost_model_nothing_is_the_cost_models_fault(fields: dict[str, Any]) -> None:
    scenario = tiny_scenario(**fields)
    blocks = scenario.num_gpu_blocks or 0
    records = run_scenario(scenario, blocks, CostModelBackend(PROFILE.cost_model, PROFILE.host))
    run = Run(scenario, "measured", records, blocks, {})
    for name, part in _split(run, scenario).items():
        if math.isfinite(part["predicted"]):
            assert part["cost"] == 0, name
            assert part["measured"] == part["predicted"], name


def test_gaps_between_steps_are_rest_and_nothing_else_is() -> None:
    """Offline, one request of n tokens: n steps, each followed by 2 ms; the last token comes n · 2 ms later."""
    scenario = tiny_scenario(trace={"offline": True, "num_requests": 1})
    part = _split(measured_stand_in(scenario, PROFILE, gap_s=2e-3), scenario)
    num_steps = part["num_iterations"]["measured"]
    assert num_steps > 1
    assert part["mean_e2el_ms"]["rest"] == pytest.approx(2.0 * num_steps)
    assert part["mean_ttft_ms"]["rest"] == pytest.approx(2.0)
    without = _split(measured_stand_in(scenario, PROFILE), scenario)
    assert without["mean_e2el_ms"]["rest"] == 0

"""Load ρ: what is offered over what the setting can take."""

from __future__ import annotations

from ..sim.cost.profile import Profile
from .replay import predict
from .scenario import Scenario

AT_ONCE = {
    "offline": True,
    "request_rate": None,
    "burstiness": 1.0,
    "ramp_up_strategy": None,
    "ramp_up_start_rps": None,
    "ramp_up_end_rps": None,
}


def offered_load(scenario: Scenario, profile: Profile) -> dict[str, float]:
    """``capacity_request_throughput``: requests/s at which the same requests are served if all are due at once (through
    the client's gate, if there is one), predicted; ``offered_rho``: the rate at which they are due (one over their
    mean gap) as a multiple of it. Above 1 no order of serving them keeps the queue from growing.

    The drain of a finite trace counts, so a short one has its capacity put too low and its ρ too high.
    """
    at_once = scenario.model_copy(update={"trace": scenario.trace.model_copy(update=AT_ONCE)})
    capacity = predict(at_once, profile).metrics["request_throughput"]
    due = scenario.trace.load()
    rate_per_s = (len(due) - 1) / due.span_s if due.span_s > 0 else float("inf")
    return {"capacity_request_throughput": capacity, "offered_rho": rate_per_s / capacity}

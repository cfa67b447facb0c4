"""How many requests a second a setting can take within the SLOs, and what that says over a grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from ..scheduler.errors import BatchTwinError
from ..sim.cost.profile import Profile
from .bracket import HIGHEST, LOWEST, Bracket, Tried, search
from .cells import DIED, in_words
from .errors import ExperimentError
from .grid import Cell, cells
from .pool import Backend, Job, open_pool
from .recommend import SLO_METRIC, SLO_WORD
from .replay import check_profile, predict
from .scenario import Scenario

TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest request rate at which a scenario meets its SLOs, with every rate that was tried."""

    rate_per_s: float
    """Requests a second; 0 if even the lowest rate tried misses."""
    trace_rate_per_s: float
    """The trace's own: one over its mean gap. ``rate_scale`` is a multiple of it."""
    slo: dict[str, float]
    attainment: float | None
    bracket: Bracket

    def rate_of(self, tried: Tried) -> float:
        """Requests a second."""
        return tried.rate_scale * self.trace_rate_per_s

    @property
    def sentence(self) -> str:
        """The answer in words: what decided it, what is missed just above, and whether the evidence is monotone."""
        low, high = self.bracket.highest_met, self.bracket.lowest_missed
        goal = _goal(self.slo, self.attainment)
        if high is None:
            return f"Even at {self.rate_per_s:.4g} requests/s, the highest rate tried, {goal} is met: a lower bound."
        if low is None:
            rate = f"Even at {self.rate_of(high):.4g} requests/s, the lowest rate tried"
            return f"{rate}, {goal} is missed ({high.missed}): the load is not what decides."
        text = f"Up to {self.rate_per_s:.4g} requests/s meet {goal}; {self.rate_of(high):.4g} miss it ({high.missed})."
        return text + "".join(self._contradiction(*pair) for pair in self.bracket.contradictions[:1])

    def _contradiction(self, missed: Tried, met: Tried) -> str:
        count = len(self.bracket.contradictions)
        return (
            f" Not monotone: {self.rate_of(missed):.4g} requests/s miss it ({missed.missed}) although "
            f"{self.rate_of(met):.4g} meet it ({count} such rate{'s' if count > 1 else ''})."
        )


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One cell's capacity, or why it has none."""

    cell: Cell
    capacity: Capacity | None
    reason: str


def capacity(
    scenario: Scenario,
    profile: Profile,
    *,
    slo: Mapping[str, float] | None = None,
    attainment: float | None = None,
    tolerance: float = TOLERANCE,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
) -> Capacity:
    """The highest rate at which the P99s meet ``slo`` (ms; the scenario's if not given) or, with ``attainment``, at
    which that share of the requests meets every limit. Rates are ``trace.rate_scale`` times the trace's own, between
    ``lowest`` and ``highest``; the answer is within ``tolerance`` (a share) below the true one if it is monotone.

    A finite trace is what it is: a queue that grows for as long as requests arrive is seen by as many of them as there
    are. Raises ``ExperimentError`` if there is no SLO, or the arrivals have no rate.
    """
    limits = dict(scenario.slo if slo is None else slo)
    _check(scenario, limits, attainment, tolerance)
    check_profile(profile, scenario)
    scenario = scenario.with_(slo=limits)

    def attempt(rate_scale: float) -> Tried:
        metrics = predict(_at(scenario, rate_scale), profile).metrics
        missed = _missed(metrics, limits, attainment)
        return Tried(rate_scale, not missed, metrics, missed)

    trace = _at(scenario, 1.0).trace.load()
    if len(trace) < 2 or trace.span_s == 0:
        raise ExperimentError(
            "The trace has no rate (all requests arrive at once): give one whose arrivals are spread."
        )
    rate_per_s = (len(trace) - 1) / trace.span_s
    found = search(attempt, tolerance=tolerance, lowest=lowest, highest=highest)
    met = found.highest_met.rate_scale if found.highest_met else 0.0
    return Capacity(met * rate_per_s, rate_per_s, limits, attainment, found)


def frontier(
    scenario: Scenario,
    profile: Profile,
    *,
    max_num_seqs: Sequence[int],
    max_num_batched_tokens: Sequence[int],
    policies: Sequence[str] | None = None,
    slo: Mapping[str, float] | None = None,
    attainment: float | None = None,
    tolerance: float = TOLERANCE,
    workers: int = 1,
    backend: Backend = "loky",
) -> list[FrontierPoint]:
    """The capacity of every cell of a grid, in grid order. Arguments as those of ``capacity``."""
    _check(scenario, dict(scenario.slo if slo is None else slo), attainment, tolerance)
    grid = cells(policies or (scenario.policy,), max_num_seqs, max_num_batched_tokens)
    asked = (scenario, profile, slo, attainment, tolerance)
    jobs: Iterator[Job[FrontierPoint]] = ((_point, (cell, *asked)) for cell in grid)
    with open_pool(backend, workers) as pool, closing(pool.results(jobs)) as points:
        found = {point.cell: point for point in points}
    return [found.get(cell) or FrontierPoint(cell, None, f"Failed: {DIED}.") for cell in grid]


def _point(
    cell: Cell,
    scenario: Scenario,
    profile: Profile,
    slo: Mapping[str, float] | None,
    attainment: float | None,
    tolerance: float,
) -> FrontierPoint:
    try:
        found = capacity(cell.of(scenario), profile, slo=slo, attainment=attainment, tolerance=tolerance)
    except BatchTwinError as error:
        return FrontierPoint(cell, None, str(error))
    except Exception as error:  # noqa: BLE001  (reported as the cell's own)
        return FrontierPoint(cell, None, f"Failed: {in_words(error)}.")
    return FrontierPoint(cell, found, "")


def _at(scenario: Scenario, rate_scale: float) -> Scenario:
    return scenario.model_copy(update={"trace": scenario.trace.model_copy(update={"rate_scale": rate_scale})})


def _check(scenario: Scenario, limits: Mapping[str, float], attainment: float | None, tolerance: float) -> None:
    if not limits:
        raise ExperimentError("A capacity needs an SLO: give one, such as ttft_ms=500.")
    if attainment is not None and not 0 < attainment <= 1:
        raise ExperimentError(f"attainment is {attainment:g}, but it is a share above 0 and up to 1.")
    if not 0 < tolerance < 1:
        raise ExperimentError(f"tolerance is {tolerance:g}, but it is a share between 0 and 1.")
    if scenario.concurrency is not None or scenario.trace.offline:
        raise ExperimentError(
            "A capacity is a rate of arrivals: with a closed loop of clients, a client's own gate, or all requests at "
            "once, there is none."
        )


def _missed(metrics: Mapping[str, float], limits: Mapping[str, float], attainment: float | None) -> str:
    """In words; what is undefined (a TPOT where all outputs are one token) misses nothing."""
    if attainment is not None:
        share = metrics["request_goodput"] / metrics["request_throughput"]
        return "" if share >= attainment else f"{share:.2%} of the requests meet it"
    return ", ".join(
        f"P99 {SLO_WORD[name]} {metrics[SLO_METRIC[name]]:,.4g} ms"
        for name, limit in limits.items()
        if metrics[SLO_METRIC[name]] > limit
    )


def _goal(slo: Mapping[str, float], attainment: float | None) -> str:
    head = "P99 " if attainment is None else ""
    goal = " and ".join(f"{head}{SLO_WORD[name]} ≤ {limit:g} ms" for name, limit in slo.items())
    return goal if attainment is None else f"{goal} for {attainment:.4g} of the requests"

"""The capacity search: against brute force, with hand-made answers, and with evidence that contradicts itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import toy_profile
from sweeps import tiny_scenario

from batchtwin.experiments.bracket import Bracket, Tried, search
from batchtwin.experiments.capacity import capacity, frontier
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.grid import Cell
from batchtwin.experiments.replay import predict
from batchtwin.experiments.scenario import make_scenario
from batchtwin.sim.cost.profile import ProfileError

PROFILE = toy_profile()
SLO = {"ttft_ms": 60.0}


def attempt(meets: Callable[[float], bool], log: list[float] | None = None) -> Callable[[float], Tried]:
    def tried(rate: float) -> Tried:
        if log is not None:
            log.append(rate)
        return Tried(rate, meets(rate), {}, "" if meets(rate) else "too slow")

    return tried


@settings(deadline=None)
@given(st.floats(2.0**-9, 2.0**9), st.sampled_from([0.005, 0.02, 0.1]))
def test_a_monotone_limit_is_found_from_below_within_the_tolerance(limit: float, tolerance: float) -> None:
    log: list[float] = []
    found = search(attempt(lambda rate: rate <= limit, log), tolerance=tolerance)
    assert found.decided_by == "bracket"
    assert found.highest_met.rate_scale <= limit < found.lowest_missed.rate_scale
    assert found.lowest_missed.rate_scale <= found.highest_met.rate_scale * (1 + tolerance) * (1 + 1e-12)
    assert found.contradictions == ()
    assert sorted(log) == [tried.rate_scale for tried in found.tried], "every attempt is evidence, and made once"
    assert len(log) <= 10 + math.ceil(math.log2(math.log(2) / math.log1p(tolerance))) + 2 + 4


def test_the_lowest_rate_tried_decides_if_it_misses() -> None:
    found = search(attempt(lambda rate: False), tolerance=0.1, lowest=0.25)
    assert [tried.rate_scale for tried in found.tried] == [0.25, 0.5, 1.0]
    assert (found.decided_by, found.highest_met, found.lowest_missed.rate_scale) == ("lowest", None, 0.25)


def test_the_highest_rate_tried_decides_if_it_meets() -> None:
    found = search(attempt(lambda rate: True), tolerance=0.1, highest=6.0)
    assert [tried.rate_scale for tried in found.tried] == [1.0, 2.0, 4.0, 6.0]
    assert (found.decided_by, found.highest_met.rate_scale, found.lowest_missed) == ("highest", 6.0, None)


@pytest.mark.parametrize("bounds", [(2.0, 8.0), (0.1, 0.5)])
def test_no_rate_beyond_the_bounds_is_tried(bounds: tuple[float, float]) -> None:
    log: list[float] = []
    search(attempt(lambda rate: rate <= 3.0, log), tolerance=0.01, lowest=bounds[0], highest=bounds[1])
    assert all(bounds[0] <= rate <= bounds[1] for rate in log)


def test_evidence_that_is_not_monotone_is_reported() -> None:
    """Meets up to 5 but for a gap below: bisection alone never sees it, the checks at 0.7 of the answer do."""
    found = search(attempt(lambda rate: rate <= 5 and not 3.3 < rate < 3.7), tolerance=0.01)
    assert found.highest_met.rate_scale == pytest.approx(5, rel=0.01)
    ((missed, met),) = found.contradictions
    assert missed.rate_scale == pytest.approx(3.5, rel=0.02)
    assert met.rate_scale == found.highest_met.rate_scale


def test_a_higher_rate_that_meets_again_is_reported() -> None:
    found = search(attempt(lambda rate: rate <= 5 or 5.4 < rate < 5.6), tolerance=0.01)
    assert len(found.contradictions) > 1
    assert all(met.rate_scale == pytest.approx(5.5, rel=0.02) for _, met in found.contradictions)


def p99_met(rate_scale: float, limits: dict[str, float], **fields: Any) -> bool:
    """One rate, the slow way round: a whole run, and its P99s."""
    scenario = tiny_scenario(slo=limits, **fields, trace={"rate_scale": rate_scale})
    found = predict(scenario, PROFILE).metrics
    return all(found[f"p99_{name}"] <= limit for name, limit in limits.items())


@pytest.mark.parametrize("limits", [{"ttft_ms": 60.0}, {"ttft_ms": 50.0, "tpot_ms": 4.5}, {"e2el_ms": 55.0}])
def test_the_capacity_is_that_of_a_brute_force_search(limits: dict[str, float]) -> None:
    """Rates three per cent apart from a quarter of the answer to four times it: whatever the search says lies where
    the brute force changes its mind."""
    found = capacity(tiny_scenario(), PROFILE, slo=limits)
    answer = found.bracket.highest_met.rate_scale
    assert found.bracket.decided_by == "bracket"
    rates = [answer / 4 * 1.03**step for step in range(95)]
    met = [p99_met(rate, limits) for rate in rates]
    changes = [(low, high) for (low, was), (high, now) in pairwise(zip(rates, met, strict=True)) if was and not now]
    assert any(low / 1.02 <= answer <= high for low, high in changes)
    assert met[0]
    assert not met[-1]


def test_a_server_that_takes_one_request_at_a_time_has_the_capacity_of_its_service_time(tmp_path: Path) -> None:
    """By hand: a step takes 10 ms whatever is in it, so 5 prompt and 10 output tokens take 10 steps, 100 ms. With
    arrivals a gap g < 100 ms apart the request number i waits i (100 ms − g) before its first step. The P99 of 50 such
    values is that of i = 0.99 · 49 = 48.51 (numpy's linear rule), and 10 + 48.51 ms are met down to g = 99 ms."""
    rows = "".join(f"{row / 10},5,10\n" for row in range(50))
    (tmp_path / "even.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    coefficients = PROFILE.law.model_dump()
    nothing = {name: 0.0 for name in coefficients if name.startswith("per_")}
    law = PROFILE.law.model_copy(update={**nothing, "fixed_s": 0.01, "token_slopes_s": (0.0,)})
    profile = PROFILE.model_copy(update={"law": law, "host_fixed_s": 0.0, "host_per_seq_s": 0.0})
    scenario = make_scenario(trace={"source": str(tmp_path / "even.csv")}, max_num_seqs=1, num_gpu_blocks=200)
    found = capacity(scenario, profile, slo={"ttft_ms": 10 + 48.51}, tolerance=0.001)
    assert found.trace_rate_per_s == pytest.approx(10.0)
    assert 1 / 0.099 / 1.001 <= found.rate_per_s <= 1 / 0.099


def test_attainment_is_the_share_of_requests_that_meet_every_limit() -> None:
    """Twelve requests: eleven may be asked for, and then one may be late."""
    limits = {"ttft_ms": 40.0, "e2el_ms": 300.0}
    strict = capacity(tiny_scenario(), PROFILE, slo=limits, attainment=1.0)
    lenient = capacity(tiny_scenario(), PROFILE, slo=limits, attainment=11 / 12)
    assert lenient.rate_per_s > strict.rate_per_s
    for found, share in ((strict, 1.0), (lenient, 11 / 12)):
        for tried in found.bracket.tried:
            got = tried.metrics["request_goodput"] / tried.metrics["request_throughput"]
            assert tried.meets == (got >= share)


def test_the_answer_in_words_says_what_decided_it() -> None:
    found = capacity(tiny_scenario(), PROFILE, slo=SLO)
    assert found.sentence.startswith(f"Up to {found.rate_per_s:.4g} requests/s meet P99 TTFT ≤ 60 ms; ")
    impossible = capacity(tiny_scenario(), PROFILE, slo={"ttft_ms": 0.001})
    assert impossible.rate_per_s == 0
    assert "the lowest rate tried, P99 TTFT ≤ 0.001 ms is missed" in impossible.sentence
    easy = capacity(tiny_scenario(), PROFILE, slo={"ttft_ms": 1e9})
    assert easy.sentence.endswith("the highest rate tried, P99 TTFT ≤ 1e+09 ms is met: a lower bound.")


def test_contradicting_evidence_is_in_the_sentence() -> None:
    found = capacity(tiny_scenario(), PROFILE, slo=SLO)
    odd = Tried(found.bracket.highest_met.rate_scale / 2, False, {}, "P99 TTFT 61 ms")
    tried = tuple(sorted((*found.bracket.tried, odd), key=lambda one: one.rate_scale))
    bracket = Bracket(found.bracket.highest_met, found.bracket.lowest_missed, "bracket", tried)
    told = type(found)(found.rate_per_s, found.trace_rate_per_s, found.slo, None, bracket).sentence
    assert f"Not monotone: {found.rate_per_s / 2:.4g} requests/s miss it (P99 TTFT 61 ms) although" in told


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "no SLO": ({}, {}, ExperimentError, "A capacity needs an SLO"),
    "an unknown SLO": ({}, {"slo": {"itl_ms": 5.0}}, ExperimentError, "no SLO 'itl_ms'"),
    "a share above 1": ({}, {"slo": SLO, "attainment": 99.0}, ExperimentError, "attainment is 99"),
    "no tolerance": ({}, {"slo": SLO, "tolerance": 0.0}, ExperimentError, "tolerance is 0"),
    "a closed loop": ({"num_clients": 2}, {"slo": SLO}, ExperimentError, "closed loop"),
    "no arrivals": ({"trace": {"offline": True}}, {"slo": SLO}, ExperimentError, "all requests at once"),
    "one request": ({"trace": {"num_requests": 1}}, {"slo": SLO}, ExperimentError, "The trace has no rate"),
    "another model": ({"model": "other"}, {"slo": SLO}, ProfileError, "'tiny-llama'.*'other'"),
}


@pytest.mark.parametrize(("fields", "options", "error", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_has_no_capacity_is_refused(
    fields: dict[str, Any], options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        capacity(tiny_scenario(**fields), PROFILE, **options)


def test_a_frontier_is_each_cells_capacity_whatever_the_number_of_workers() -> None:
    """64 sequences are more than 32 tokens a step: that cell has a reason instead."""
    options: dict[str, Any] = {"max_num_seqs": [1, 4, 64], "max_num_batched_tokens": [32], "slo": SLO, "tolerance": 0.1}
    points = frontier(tiny_scenario(), PROFILE, **options)
    assert points == frontier(tiny_scenario(), PROFILE, **options, workers=2)
    assert [point.cell for point in points] == [Cell("vllm_v1", seqs, 32) for seqs in (1, 4, 64)]
    alone = capacity(tiny_scenario(max_num_seqs=4, max_num_batched_tokens=32), PROFILE, slo=SLO, tolerance=0.1)
    assert points[1].capacity == alone
    assert points[0].capacity.rate_per_s < points[1].capacity.rate_per_s
    assert points[2].capacity is None
    assert "less than max_num_seqs (64)" in points[2].reason

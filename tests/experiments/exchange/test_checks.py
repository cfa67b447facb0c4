"""Rows that cannot be true, each wrong in one way; figures by hand."""

from __future__ import annotations

from typing import Any

import pytest
from bench_files import detailed, summary

from batchtwin.experiments.exchange.bench_serve import read_bench_record
from batchtwin.experiments.exchange.checks import check_row
from batchtwin.experiments.exchange.measured_row import Flag

IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "tokens that are requests": (summary(output_throughput=4.0), "output_throughput is 4.00, but its total over 1.0 s"),
    "prompt tokens counted too": (summary(output_throughput=110.0), "is 10.00; it counts prompt tokens too"),
    "a duration in ms": (summary(duration=1000.0), "the duration looks like ms"),
    "total": (summary(total_token_throughput=100.0), "total_token_throughput is 100.00"),
    "more done than asked": (summary(num_prompts=3), "4 of 3 requests completed"),
    "nothing done": (summary(completed=0, request_throughput=0.0), "no request completed"),
    "negative": (summary(mean_ttft_ms=-1.0), "mean_ttft_ms is -1, below 0"),
    "percentiles that fall": (summary(median_ttft_ms=500.0), "median_ttft_ms (500.0) is above p99_ttft_ms (400.0)"),
    "ended before it began": (summary(mean_e2el_ms=200.0), "mean_ttft_ms (300.0) is above mean_e2el_ms (200.0)"),
    "slower than the run": (summary(p99_e2el_ms=1100.0), "p99_e2el_ms is 1.1 s, longer than the run of 1.0 s"),
    "tokens for nobody": (summary(total_output_tokens=3, output_throughput=3.0), "less than one each"),
    "a list that adds up to another total": (
        detailed(total_input_tokens=120, total_token_throughput=130.0),
        "total_input_tokens is 120, but its list adds up to 100",
    ),
    "lists in ms": (
        detailed(ttfts=[300.0, 400.0, 600.0, 700.0]),
        "ttfts, which are in seconds, have a mean of 500,000.0",
    ),
    "lists of two lengths": (detailed(output_lens=[3, 3, 4]), "it lists 4 prompts and 3 outputs"),
    "more in flight than clients": (
        summary(mean_e2el_ms=650.0),
        "3 requests were in flight on average (rate × mean latency), but max_concurrency is 2",
    ),
}


@pytest.mark.parametrize(("record", "reason"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_a_row_that_cannot_be_true_is_told_why(record: dict[str, Any], reason: str) -> None:
    flags = check_row(read_bench_record(record, "x.json"))
    assert any(flag.impossible and reason in flag.text for flag in flags), flags


def cookbook(clients: int, tokens_per_s: float, **changes: Any) -> tuple[Flag, ...]:
    """A published row: 2,048/512 tokens a request, a rate of tokens and a P99 of 15.4 s, nothing else."""
    n = 10_000
    record = {
        "completed": None,
        "request_throughput": None,
        "request_rate": "inf",
        "num_prompts": n,
        "max_concurrency": clients,
        "total_input_tokens": 2048 * n,
        "total_output_tokens": 512 * n,
        "output_throughput": tokens_per_s,
        "p99_e2el_ms": 15_400.0,
        **changes,
    }
    return check_row(read_bench_record(record, "cookbook"))


def test_a_thousand_clients_as_fast_as_a_hundred_at_the_same_p99_cannot_be() -> None:
    """11,218 / 512 = 21.91 requests/s: a thousand in flight need 45.6 s each, and 21.91 · 15.4 = 337."""
    (flag,) = cookbook(1000, 11_218.0)
    assert flag.impossible
    assert "need a mean latency of 45.6 s, but the P99 is 15.4 s, so at most 337 were in flight" in flag.text
    assert "read as total tokens, at most 67 in flight" in flag.text, "11,218 · 15.4 / 2,560 = 67.5"


def test_a_mean_far_below_the_p99_makes_one_ask_what_was_counted() -> None:
    (flag,) = cookbook(100, 11_198.0)
    assert not flag.impossible
    assert "mean latency of at most 4.6 s beside a P99 of 15.4 s: are these output tokens" in flag.text
    assert cookbook(100, 11_198.0 / 2) == (), "at half the rate the mean is 9.1 s, which is plausible"


def test_a_closed_loop_that_was_never_full_is_asked_about() -> None:
    """Eight clients, but rate 4/s · 0.1 s: 0.4 in flight. A loop of less than two rounds is not asked."""
    times = {"mean_ttft_ms": 50.0, "median_ttft_ms": 50.0, "p99_ttft_ms": 60.0, "mean_e2el_ms": 100.0}
    long = summary(num_prompts=40, completed=40, duration=10.0, output_throughput=1.0, total_token_throughput=11.0)
    (flag,) = check_row(
        read_bench_record(long | times | {"total_output_tokens": 40} | RATES | {"max_concurrency": 8}, "x")
    )
    assert not flag.impossible
    assert "only 0 requests were in flight on average, though 8 clients never paused" in flag.text
    short = summary(max_concurrency=3) | times
    assert check_row(read_bench_record(short, "x")) == ()


RATES = {"total_input_tokens": 400, "output_throughput": 4.0, "total_token_throughput": 44.0}


def test_more_clients_than_slots_is_said_and_taken() -> None:
    (flag,) = check_row(read_bench_record(summary(max_num_seqs=1), "x"))
    assert flag == Flag(False, "2 clients share 1 slots (max_num_seqs), so its TTFT and E2E measure queueing")

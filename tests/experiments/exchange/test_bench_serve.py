"""Results of ``vllm bench serve`` in the shape in which vLLM 0.33.0 writes them."""

from __future__ import annotations

from bench_files import detailed, summary

from batchtwin.experiments.exchange.bench_serve import is_bench_record, read_bench_record
from batchtwin.experiments.exchange.checks import check_row
from batchtwin.experiments.exchange.measured_row import INFINITE


def test_a_summary_is_read_as_it_stands_and_nothing_is_added() -> None:
    record = summary()
    row = read_bench_record(record, "x.json")
    assert row.flags == check_row(row) == ()
    for name in ("duration", "output_throughput", "mean_ttft_ms", "p99_itl_ms", "std_tpot_ms"):
        assert row.metrics[name] == record[name]
    assert row.metrics["num_requests"] == 4
    assert "mean_e2el_ms" not in row.metrics, "not printed, so not known"
    assert "num_preemptions" not in row.metrics
    assert row.workload.request_rate == INFINITE
    assert (row.workload.max_concurrency, row.workload.num_prompts) == (2, 4)
    assert (row.max_num_seqs, row.max_num_batched_tokens, row.model) == (16, 512, "meta-llama/Llama-3.1-8B")
    assert row.settings == {"tensor_parallel_size": "2"}


def test_lists_give_the_requests_and_the_metrics_that_are_not_printed() -> None:
    """Latencies by hand: TTFT + gaps = 0.5, 0.6, 0.7, 0.8 s. Requests in the order in which they were due."""
    row = read_bench_record(detailed(), "x.json")
    assert check_row(row) == ()
    assert row.metrics["mean_e2el_ms"] == 650.0
    assert row.metrics["median_e2el_ms"] == 650.0
    assert row.workload.requests is not None
    assert [(prompt, output) for _, prompt, output in row.workload.requests] == [(10, 3), (20, 3), (30, 2), (40, 2)]
    assert [round(start, 6) for start, _, _ in row.workload.requests] == [0.0, 0.0, 0.1, 0.2]


def test_a_client_gate_is_taken_off_the_start() -> None:
    row = read_bench_record(detailed() | {"queue_times": [0.0, 0.0, 0.1, 0.2]}, "x.json")
    assert row.workload.requests is not None
    assert {start for start, _, _ in row.workload.requests} == {0.0}


def test_requests_that_failed_are_left_out_and_said() -> None:
    record = detailed()
    record |= {"failed": 1, "completed": 3, "input_lens": [10, 20, 30, 40], "output_lens": [3, 3, 2, 0]}
    record |= {"total_input_tokens": 60, "total_output_tokens": 8, "ttfts": [0.3, 0.4, 0.5, 0.0]}
    record |= {"request_throughput": 3.0, "output_throughput": 8.0, "total_token_throughput": 68.0}
    record |= {"mean_ttft_ms": 400.0, "median_ttft_ms": 400.0, "p99_ttft_ms": 498.0}
    row = read_bench_record(record, "x.json")
    assert row.workload.requests is not None
    assert len(row.workload.requests) == 3
    assert [flag.text for flag in check_row(row)] == ["1 requests failed, and are not in its figures"]


def test_older_and_stranger_files_are_read_tolerantly() -> None:
    old = {name: summary()[name] for name in ("duration", "completed", "request_throughput")}
    row = read_bench_record(old | {"request_goodput:": 1.5, "request_rate": 4.0, "max-num-seqs": "64"}, "x.json")
    assert row.flags == ()
    assert row.metrics["request_goodput"] == 1.5
    assert (row.workload.request_rate, row.max_num_seqs, row.max_num_batched_tokens) == (4.0, 64, None)


def test_null_and_nan_are_missing_and_words_for_numbers_are_flagged() -> None:
    row = read_bench_record(
        summary() | {"mean_ttft_ms": None, "p99_ttft_ms": float("nan"), "duration": "fast", "max_num_seqs": -3}, "x"
    )
    assert not {"mean_ttft_ms", "p99_ttft_ms", "duration"} & set(row.metrics)
    assert row.max_num_seqs is None
    assert [flag.text for flag in row.flags] == [
        "duration is 'fast', which is no number",
        "max_num_seqs is -3, which is no whole number of at least 0",
    ]


def test_a_ramp_is_said() -> None:
    row = read_bench_record(summary() | {"ramp_up_strategy": "linear"}, "x.json")
    assert "ramps up" in row.flags[0].text


def test_other_json_is_no_result() -> None:
    assert is_bench_record(summary())
    for other in ({}, [], 3, None, {"completed": 3}, {"case": "x", "requests": []}):
        assert not is_bench_record(other)

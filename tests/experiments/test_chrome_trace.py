"""The exported trace, against Google's Trace Event Format and against the run's own columns."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiles import toy_profile
from sweeps import tiny_scenario

from batchtwin.experiments.chrome_trace import export_trace
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.replay import predict
from batchtwin.experiments.run import Run

CASES = {
    "preempting": {"num_gpu_blocks": 18, "max_num_seqs": 8, "trace": {"rate_scale": 4000.0, "output_scale": 0.3}},
    "asynchronous": {"async_scheduling": True, "trace": {"rate_scale": 2000.0}},
    "two replicas": {"num_replicas": 2, "trace": {"rate_scale": 500.0}},
}


@pytest.fixture(scope="module", params=CASES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    run = predict(tiny_scenario(**CASES[request.param]), toy_profile())
    path = tmp_path_factory.mktemp("traces") / "trace.json"
    count = export_trace(run, path)
    document = json.loads(path.read_text())
    assert count == len(document["traceEvents"])
    return run, document


def _of(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_every_event_has_what_its_phase_demands(exported: tuple[Run, dict[str, Any]]) -> None:
    _, document = exported
    assert document["displayTimeUnit"] in ("ms", "ns")
    demanded = {"M": {"args"}, "X": {"ts", "dur"}, "C": {"ts", "args"}, "i": {"ts", "s"}, "b": {"id", "cat", "ts"}}
    demanded["e"] = demanded["b"]
    for event in document["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} | demanded[event["ph"]] <= event.keys()
        assert all(np.isfinite(event.get(name, 0)) and event.get(name, 0) >= 0 for name in ("ts", "dur"))
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())


def test_complete_events_of_a_thread_never_overlap(exported: tuple[Run, dict[str, Any]]) -> None:
    """Two that overlap without one holding the other cannot be drawn."""
    threads = defaultdict(list)
    for event in _of(exported[1], "X"):
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        for (_, end), (begin, _) in pairwise(sorted(spans)):
            assert begin >= end - 1e-3  # a nanosecond of rounding


def test_iterations_are_those_of_the_run(exported: tuple[Run, dict[str, Any]]) -> None:
    run, document = exported
    columns = run.records.iterations
    events = _of(document, "X")
    assert len(events) == len(columns["end_s"])
    np.testing.assert_allclose([e["ts"] + e["dur"] for e in events], 1e6 * columns["end_s"], atol=2e-3)
    assert [e["args"]["num_tokens"] for e in events] == columns["num_tokens"].tolist()
    assert [e["pid"] for e in events] == columns["replica"].tolist()
    names = ("none", "max_num_seqs", "max_num_batched_tokens", "kv_blocks")
    assert [e["args"]["bound"] for e in events] == [names[bound] for bound in columns["bound"]]


def test_preemptions_are_instants(exported: tuple[Run, dict[str, Any]]) -> None:
    run, document = exported
    marked = sum(int(event["name"].removeprefix("preempts ")) for event in _of(document, "i"))
    assert marked == run.metrics["num_preemptions"]
    if run.num_gpu_blocks == CASES["preempting"]["num_gpu_blocks"]:
        assert marked > 0


def test_async_spans_open_and_close_in_order(exported: tuple[Run, dict[str, Any]]) -> None:
    """Nested spans of one id are a stack: what was opened last is closed first."""
    run, document = exported
    stacks: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    closed = 0
    for event in document["traceEvents"]:
        stack = stacks[event["pid"], event.get("id", "")]
        if event["ph"] == "b":
            stack.append(event)
        elif event["ph"] == "e":
            opened = stack.pop()
            assert opened["name"] == event["name"]
            assert opened["ts"] <= event["ts"]
            closed += 1
    assert not any(stacks.values())
    assert closed == 4 * run.metrics["completed"]


def test_a_request_is_queued_then_prefilled_then_decodes(exported: tuple[Run, dict[str, Any]]) -> None:
    run, document = exported
    mine = [event for event in _of(document, "e") if event["id"] == "0"]
    ends = {event["name"]: event["ts"] for event in mine}
    arrival_us = 1e6 * run.records.requests["arrival_s"][0]
    ttft_us, e2el_us = ends["prefill"] - arrival_us, ends["decode"] - arrival_us
    columns, end_s = run.records.requests, run.records.iterations["end_s"]
    assert ttft_us == pytest.approx(1e6 * end_s[columns["first_token_at"][0]] - arrival_us, abs=2e-3)
    assert e2el_us == pytest.approx(1e6 * end_s[columns["last_token_at"][0]] - arrival_us, abs=2e-3)
    assert ends["request 0"] == ends["decode"] >= ends["prefill"] >= ends["queued"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExperimentError, match="cannot be written"):
        export_trace(predict(tiny_scenario(), toy_profile()), tmp_path / "file" / "trace.json")

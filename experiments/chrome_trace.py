"""A run as a Chrome trace, for Perfetto (https://ui.perfetto.dev), ``chrome://tracing`` and speedscope.

The format is the JSON object form of Google's Trace Event Format: one process a replica; its iterations are complete
events (``X``), preemptions instant ones (``i``), running, waiting and KV usage counters (``C``), and every request
has nested async spans (``b``, ``e``): queued, prefill, decode. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..scheduler.batch import Bound
from ..sim.records import Columns, FloatArray
from .run import Run, writing

Event = dict[str, Any]
_US = 1e6
_ITERATIONS = 1
"""The thread that the iterations stand on."""
BOUND_NAMES = {bound: bound.name.lower() for bound in Bound}
_ARGS = (
    "num_tokens",
    "num_seqs",
    "num_decodes",
    "num_prefills",
    "num_prefill_tokens",
    "num_running",
    "num_waiting",
    "num_preempted",
    "num_free_blocks",
)


def export_trace(run: Run, path: str | Path) -> int:
    """Write ``run`` as a Chrome trace and return the number of its events. Raises ``ExperimentError`` if the disk
    fails.
    """
    path = Path(path)
    count = 0
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".part")
        with scratch.open("w", encoding="utf-8") as file:
            for part in trace_json(run):
                count += file.write(part) > 0
        scratch.replace(path)
    return count - 2


def trace_json(run: Run) -> Iterator[str]:
    """The trace's text in parts: its head, one part an event, its end."""
    head = {"displayTimeUnit": "ms", "otherData": {"kind": run.kind, **_about(run)}}
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    separator = ""
    for event in trace_events(run):
        yield separator + json.dumps(event, separators=(",", ":"))
        separator = ",\n"
    yield "\n]}\n"


def trace_events(run: Run) -> Iterator[Event]:
    """Every event, metadata first."""
    for replica in range(run.records.num_replicas):
        yield _name("process_name", replica, f"replica {replica} ({run.kind})")
        yield _name("thread_name", replica, "iterations")
    yield from _iterations(run)
    yield from _requests(run)


def occupied_from_s(iterations: Columns) -> FloatArray:
    """[iterations] When each iteration had the server to itself: it was launched, and the one before had ended. With
    asynchronous scheduling the two overlap.
    """
    start_s, end_s, replica = iterations["start_s"], iterations["end_s"], iterations["replica"]
    begun = start_s.copy()
    same = replica[1:] == replica[:-1]
    begun[1:] = np.where(same, np.maximum(start_s[1:], end_s[:-1]), start_s[1:])
    return begun


def _about(run: Run) -> dict[str, Any]:
    s = run.scenario
    knobs = {name: getattr(s, name) for name in ("model", "device", "policy", "max_num_seqs", "max_num_batched_tokens")}
    return knobs | {"num_gpu_blocks": run.num_gpu_blocks, "block_size": s.block_size, "scenario": s.digest()}


def _name(what: str, replica: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": replica, "tid": _ITERATIONS, "args": {"name": name}}


def _iterations(run: Run) -> Iterator[Event]:
    columns = run.records.iterations
    begun_us, end_us = (np.round(_US * times, 3) for times in (occupied_from_s(columns), columns["end_s"]))
    names = (*_ARGS, "bound", "replica", "host_s", "device_s")
    rows = zip(begun_us.tolist(), end_us.tolist(), *(columns[name].tolist() for name in names), strict=True)
    usable = run.num_gpu_blocks - 1
    for at, (begin, end, *values) in enumerate(rows):
        row = dict(zip(names, values, strict=True))
        pid = row.pop("replica")
        args = {name: row[name] for name in _ARGS} | {
            "bound": BOUND_NAMES[Bound(row["bound"])],
            "host_ms": round(1e3 * row["host_s"], 6),
            "device_ms": round(1e3 * row["device_s"], 6),
        }
        place = {"pid": pid, "tid": _ITERATIONS}
        what = {"name": _kind(row), "cat": "iteration", "ph": "X"}
        yield {**what, "ts": begin, "dur": round(end - begin, 3), **place, "args": {"iteration": at, **args}}
        yield _counter("requests", begin, pid, running=row["num_running"], waiting=row["num_waiting"])
        yield _counter("KV cache usage (%)", begin, pid, usage=round(100 * (1 - row["num_free_blocks"] / usable), 3))
        if row["num_preempted"]:
            name = {"name": f"preempts {row['num_preempted']}", "cat": "preemption", "ph": "i", "s": "p"}
            yield {**name, "ts": begin, **place}


def _kind(row: dict[str, Any]) -> str:
    if not row["num_prefills"]:
        return "decode"
    return "mixed" if row["num_decodes"] else "prefill"


def _counter(name: str, at_us: float, replica: int, **values: float) -> Event:
    return {"name": name, "ph": "C", "ts": at_us, "pid": replica, "tid": _ITERATIONS, "args": values}


def _requests(run: Run) -> Iterator[Event]:
    columns, iterations = run.records.requests, run.records.iterations
    begun_us, end_us = _US * iterations["start_s"], _US * iterations["end_s"]
    finished = np.flatnonzero(columns["last_token_at"] >= 0)
    for row in finished.tolist():
        marks = [
            _US * columns["arrival_s"][row],
            begun_us[columns["scheduled_at"][row]],
            end_us[columns["first_token_at"][row]],
            end_us[columns["last_token_at"][row]],
        ]
        names = ("num_prompt_tokens", "num_output_tokens", "num_preemptions")
        args = {name: int(columns[name][row]) for name in names}
        pid = int(columns["replica"][row])
        yield _edge("b", f"request {row}", row, pid, marks[0]) | {"args": args}
        for phase, begin, end in zip(("queued", "prefill", "decode"), marks, marks[1:], strict=False):
            yield _edge("b", phase, row, pid, begin)
            yield _edge("e", phase, row, pid, end)
        yield _edge("e", f"request {row}", row, pid, marks[3])  # last, so that spans ending together close inwards out


def _edge(phase: str, name: str, row: int, replica: int, at_us: float) -> Event:
    """One end of a span of request ``row``."""
    about = {"name": name, "cat": "request", "ph": phase, "id": str(row)}
    return {**about, "ts": round(float(at_us), 3), "pid": replica, "tid": _ITERATIONS}

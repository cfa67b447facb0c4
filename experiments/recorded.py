"""Runs that a real server did, in LLMServingSim's layout: requests, a series over time, the engine's arguments."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sim.cost.tables.csv_table import TableError, read_csv
from .errors import ExperimentError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ALIASES = {
    "prompt_tokens": ("input_toks", "input_tokens", "prompt_tokens", "num_prompt_tokens", "input_len"),
    "output_tokens": ("output_toks", "output_tokens", "num_output_tokens", "generated_tokens", "output_len"),
    "sent_s": ("arrival_time", "arrival_ts", "arrived_at"),
    "queued_s": ("queued_ts", "queued_time"),
    "scheduled_s": ("scheduled_ts", "first_scheduled_ts"),
    "first_token_s": ("first_token_ts",),
    "last_token_s": ("last_token_ts", "finished_ts", "end_ts"),
}
NEEDED = ("prompt_tokens", "output_tokens", "first_token_s", "last_token_s")
MAX_OFFSET_SPREAD_S = 10.0


@dataclass(frozen=True, slots=True)
class Series:
    """What the server said about itself over time, [T] each; ``t_s`` counts from the first request sent."""

    t_s: FloatArray
    running: FloatArray
    waiting: FloatArray
    output_tokens_per_s: FloatArray
    kv_usage: FloatArray | None
    """0 to 1; None where the counter was not filled."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Requests in order of arrival, [N] each; seconds count from the first request sent."""

    folder: Path
    prompt_tokens: IntArray
    output_tokens: IntArray
    sent_s: FloatArray
    """When its client sent it, on the engine's clock."""
    queued_s: FloatArray
    """When the engine's loop saw it."""
    scheduled_s: FloatArray | None
    first_token_s: FloatArray
    last_token_s: FloatArray
    series: Series | None
    meta: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def is_recorded_run(path: Path) -> bool:
    """Whether ``path`` is a folder that holds one."""
    return (path / "requests.jsonl").is_file()


def read_recorded_run(folder: Path) -> RecordedRun:
    """Read a run. Rows that cannot be true are left out and counted in ``notes``. Raises ``ExperimentError`` if there
    are no requests, no times, or the file is something else.
    """
    notes: list[str] = []
    columns = _columns(folder / "requests.jsonl", notes)
    meta = _meta(folder / "meta.json", notes)
    sent, zero = _on_one_clock(columns, notes)
    order = np.argsort(sent, kind="stable")
    engine = {name: columns[name] - zero for name in ("queued_s", "first_token_s", "last_token_s")}
    scheduled = columns.get("scheduled_s")
    return RecordedRun(
        folder=folder,
        prompt_tokens=columns["prompt_tokens"][order].astype(np.int64),
        output_tokens=columns["output_tokens"][order].astype(np.int64),
        sent_s=sent[order],
        queued_s=engine["queued_s"][order],
        scheduled_s=None if scheduled is None else (scheduled - zero)[order],
        first_token_s=engine["first_token_s"][order],
        last_token_s=engine["last_token_s"][order],
        series=_series(folder / "timeseries.csv", _series_start_s(meta, columns), notes),
        meta=meta,
        notes=notes,
    )


def engine_argument(meta: dict[str, Any], *names: str) -> Any:
    """The first of ``names`` that ``meta`` holds, at its top or in any mapping below it; None if it has none."""
    for name in names:
        found = _find(meta, name)
        if found is not None:
            return found
    return None


def _find(part: Any, name: str) -> Any:
    if not isinstance(part, dict):
        return None
    if part.get(name) is not None and not isinstance(part[name], dict):
        return part[name]
    return next((found for value in part.values() if (found := _find(value, name)) is not None), None)


def _columns(path: Path, notes: list[str]) -> dict[str, FloatArray]:
    rows = _json_lines(path)
    names: dict[str, str] = {}
    for ours, aliases in ALIASES.items():
        found = next((alias for alias in aliases if any(alias in row for row in rows)), None)
        if found is None and ours in NEEDED:
            raise ExperimentError(f"{path} has no {aliases[0]}: a recorded run needs lengths and token times.")
        if found is not None:
            names[ours] = found
    if "queued_s" not in names and "sent_s" not in names:
        raise ExperimentError(f"{path} has neither queued_ts nor arrival_time: nobody knows when requests came.")
    if "queued_s" not in names:
        notes.append("no queued_ts: arrival_time counts as the time at which the engine saw a request")
    table = {ours: np.array([_number(row.get(name)) for row in rows]) for ours, name in names.items()}
    table.setdefault("queued_s", table.get("sent_s", np.array([])))
    good = np.isfinite(np.column_stack(list(table.values()))).all(axis=1)
    good &= (table["prompt_tokens"] >= 1) & (table["output_tokens"] >= 1)
    good &= (table["queued_s"] <= table["first_token_s"]) & (table["first_token_s"] <= table["last_token_s"])
    if not good.any():
        raise ExperimentError(f"{path} has no request whose lengths and times can be true.")
    if not good.all():
        bad = (~good).nonzero()[0]
        notes.append(
            f"{len(bad)} of {len(good)} requests left out (the first in line {bad[0] + 1}): a length below 1, a time "
            f"missing, or a first token before the request"
        )
    return {name: values[good] for name, values in table.items()}


def _json_lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ExperimentError(f"{path} cannot be read ({error.strerror or error}): is it a recorded run?") from error
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{path} is not text: is it a recorded run?") from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ExperimentError(f"{path}, line {number} is not JSON: one object a line is needed.") from error
        if not isinstance(row, dict):
            raise ExperimentError(f"{path}, line {number} is no object: one object a line is needed.")
        rows.append(row)
    if not rows:
        raise ExperimentError(f"{path} holds no requests.")
    return rows


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return float("nan")
    try:
        return float(value)
    except (ValueError, OverflowError):
        return float("nan")


def _on_one_clock(columns: dict[str, FloatArray], notes: list[str]) -> tuple[FloatArray, float]:
    """When each request was sent, counted from the first, and what to take from the engine's times.

    The client's clock has another zero: the request that reached the engine's loop fastest tells the difference.
    """
    queued = columns["queued_s"]
    if "sent_s" not in columns:
        notes.append("no arrival_time: queued_ts counts as the time at which a request was sent")
        return queued - queued.min(), float(queued.min())
    delay = queued - columns["sent_s"]
    if float(np.ptp(delay)) > MAX_OFFSET_SPREAD_S:
        notes.append(
            f"arrival_time and queued_ts differ by amounts {np.ptp(delay):.1f} s apart: the arrivals are queued_ts"
        )
        return queued - queued.min(), float(queued.min())
    sent = columns["sent_s"] + delay.min()
    return sent - sent.min(), float(sent.min())


def _meta(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        notes.append(f"no {path.name}: the engine's arguments are those given by --set, else defaults")
        return {}
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExperimentError(f"{path} is not JSON ({str(error)[:80]}).") from error
    if not isinstance(read, dict):
        raise ExperimentError(f"{path} holds no fields: the engine's arguments are expected there.")
    return read


def _series_start_s(meta: dict[str, Any], columns: dict[str, FloatArray]) -> float:
    """Where the series' zero lies, in seconds from the first request sent: the start that the run states."""
    started = meta.get("started_at")
    if not isinstance(started, str) or "sent_s" not in columns:
        return 0.0
    try:
        start_s = datetime.fromisoformat(started).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
    offset = start_s - float(columns["sent_s"].min())
    return offset if abs(offset) < 60 else 0.0


def _series(path: Path, start_s: float, notes: list[str]) -> Series | None:
    if not path.is_file():
        notes.append(f"no {path.name}: running and waiting over time are predicted only")
        return None
    try:
        table = read_csv(path, ("t", "running", "waiting"))
        columns = {name: table.numbers(name, default=0.0) for name in ("t", "running", "waiting", "gen_throughput")}
        usage = table.numbers("kv_cache_pct", default=0.0) / 100
    except TableError as error:
        notes.append(f"the series over time is left out: {error}")
        return None
    filled = bool(usage.max() > 0)
    if not filled:
        notes.append("the run's KV usage was not recorded (its column is 0 throughout)")
    return Series(
        columns["t"] + start_s,
        columns["running"],
        columns["waiting"],
        columns["gen_throughput"],
        usage if filled else None,
    )

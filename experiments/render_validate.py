"""A validation as text for a terminal, and as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from .provenance import provenance
from .render import uncut
from .run import write_whole
from .svg import MEASURED, PREDICTED, Axis, Curve, document, panel
from .validate import Row, Timeline, Validation

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 66
NULL_METRICS = ("TTFT mean", "TPOT mean", "E2E mean", "Output throughput")


def print_validation(done: Validation, output: Path | None = None) -> None:
    """What was predicted, what was recorded, and how each input was known."""
    console = Console()
    profile = done.profile
    console.print(
        f"[bold]{profile.model.name}[/] on {profile.device.name}, tensor parallel {profile.tensor_parallel}, "
        f"{profile.layout} tables (hash {profile.hash()}): {len(done.recorded.output_tokens)} recorded requests of "
        f"{done.run.folder}. Nothing was fitted to the run."
    )
    console.print(uncut(_known_table(done)))
    for note in (*profile.notes, *done.notes, done.extrapolated):
        console.print(f"  • {note}", highlight=False)
    console.print(uncut(_error_table(done)))
    console.print(uncut(_null_table(done)))
    console.print(
        f"Predicted only: P99 ITL {done.p99_itl_ms:.1f} ms (the run has no token times), {done.num_preemptions} "
        f"preemptions, at most {done.peak_blocks:,} KV blocks in use."
    )
    if done.timeline is not None:
        _print_timeline(console, done.timeline)
    if output is not None:
        console.print(f"Wrote {output}/: validation.json, errors.csv, requests.csv, timeline.csv, timeline.svg")


def write_validation(done: Validation, folder: Path) -> None:
    """The same as JSON, CSV and a figure. Raises ``ExperimentError`` if the disk fails."""
    write_whole(folder / "validation.json", json.dumps(as_json(done), indent=2) + "\n")
    rows = [(row.metric, row.unit, row.predicted, row.recorded, row.error_percent) for row in done.rows]
    write_whole(folder / "errors.csv", _csv(("metric", "unit", "predicted", "recorded", "error_percent"), rows))
    ours, theirs = done.predicted, done.recorded
    columns = {
        "prompt_tokens": done.run.prompt_tokens,
        "output_tokens": done.run.output_tokens,
        "sent_s": done.run.sent_s,
        "predicted_ttft_ms": ours.ttft_ms,
        "recorded_ttft_ms": theirs.ttft_ms,
        "predicted_e2el_ms": ours.e2el_ms,
        "recorded_e2el_ms": theirs.e2el_ms,
    }
    write_whole(folder / "requests.csv", _columns_csv(columns))
    if done.timeline is not None:
        series = {name: getattr(done.timeline, name) for name in done.timeline.__slots__}
        write_whole(folder / "timeline.csv", _columns_csv(series))
        write_whole(folder / "timeline.svg", timeline_svg(done.timeline))


def as_json(done: Validation) -> dict[str, Any]:
    """Everything that is printed."""
    return {
        "run": str(done.run.folder),
        "profile": {
            "folder": done.profile.source,
            "layout": done.profile.layout,
            "hash": done.profile.hash(),
            "model": done.profile.model.name,
            "device": done.profile.device.name,
            "tensor_parallel_size": done.profile.tensor_parallel,
        },
        "fields": [{"name": known.name, "value": known.value, "origin": known.origin} for known in done.known],
        "notes": [*done.profile.notes, *done.notes, done.extrapolated],
        "errors": [_row_json(row) for row in done.rows],
        "nulls": {name: [_row_json(row) for row in rows] for name, rows in done.nulls.items()},
        "timeline_mean_absolute_error": None if done.timeline is None else timeline_errors(done.timeline),
        "predicted_p99_itl_ms": done.p99_itl_ms,
        "predicted_num_preemptions": done.num_preemptions,
        "predicted_peak_blocks": done.peak_blocks,
        "provenance": provenance("simpy", "numpy"),
    }


def timeline_errors(timeline: Timeline) -> dict[str, float]:
    """Mean absolute difference of running and waiting requests over time."""
    return {
        "running": float(np.abs(timeline.predicted_running - timeline.recorded_running).mean()),
        "waiting": float(np.abs(timeline.predicted_waiting - timeline.recorded_waiting).mean()),
    }


def timeline_svg(timeline: Timeline) -> str:
    """Running and waiting over time, predicted over recorded."""
    t_s = timeline.t_s.tolist()
    panels = []
    for name, ours, theirs in (
        ("running", timeline.predicted_running, timeline.recorded_running),
        ("waiting", timeline.predicted_waiting, timeline.recorded_waiting),
    ):
        curves = [
            Curve("recorded", t_s, theirs.tolist(), MEASURED),
            Curve("predicted", t_s, ours.tolist(), PREDICTED),
        ]
        panels.append(panel(f"Requests {name}", curves, Axis("s since the first request"), Axis("requests")))
    return document(panels, columns=2)


def sparkline(values: NDArray[np.float64], high: float) -> str:
    """``values`` as bars of eighths of ``high``, in at most ``COLUMNS`` columns."""
    groups = np.array_split(values, min(COLUMNS, len(values))) if len(values) else []
    top = len(BARS) - 1
    shares = [float(group.mean()) / high if high > 0 else 0.0 for group in groups]
    return "".join(BARS[min(top, max(0, round(share * top)))] for share in shares)


def _print_timeline(console: Console, timeline: Timeline) -> None:
    errors = timeline_errors(timeline)
    for name, ours, theirs in (
        ("running", timeline.predicted_running, timeline.recorded_running),
        ("waiting", timeline.predicted_waiting, timeline.recorded_waiting),
    ):
        high = max(float(ours.max(initial=0)), float(theirs.max(initial=0)))
        console.print(f"{name} (0 to {high:.0f}), {errors[name]:.1f} requests apart on average over time")
        console.print(f"  predicted [{PREDICTED}]{sparkline(ours, high)}[/]", highlight=False)
        console.print(f"  recorded  [{MEASURED}]{sparkline(theirs, high)}[/]", highlight=False)


def _known_table(done: Validation) -> Table:
    table = Table("field", "value", "known from", title="What was predicted", title_justify="left")
    table.columns[0].no_wrap = True  # names of fields stay whole
    for known in done.known:
        table.add_row(known.name, str(known.value), known.origin)
    return table


def _error_table(done: Validation) -> Table:
    table = Table(title="Predicted against recorded", title_justify="left")
    table.add_column("metric")
    for name in ("predicted", "recorded", "error"):
        table.add_column(name, justify="right")
    for row in done.rows:
        table.add_row(
            f"{row.metric} ({row.unit})", f"{row.predicted:,.1f}", f"{row.recorded:,.1f}", f"{row.error_percent:+.1f} %"
        )
    return table


def _null_table(done: Validation) -> Table:
    table = Table(title="Errors of null baselines on the same run", title_justify="left")
    table.add_column("cost model")
    for metric in NULL_METRICS:
        table.add_column(metric, justify="right")
    for name, rows in ((done.profile.cost_model.name, done.rows), *done.nulls.items()):
        by_name = {row.metric: row for row in rows}
        table.add_row(name, *(f"{by_name[m].error_percent:+.1f} %" if m in by_name else "–" for m in NULL_METRICS))
    return table


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "metric": row.metric,
        "unit": row.unit,
        "predicted": row.predicted,
        "recorded": row.recorded,
        "error_percent": row.error_percent,
    }


def _columns_csv(columns: dict[str, NDArray[Any]]) -> str:
    return _csv(tuple(columns), zip(*(values.tolist() for values in columns.values()), strict=True))


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()

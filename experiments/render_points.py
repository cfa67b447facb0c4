"""Published points beside their predictions, as text and as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .point_checks import Shape, shapes
from .points import Point
from .provenance import provenance
from .render import make_table, uncut
from .run import write_whole
from .validate_points import METRICS, THROUGHPUTS, PointsValidation, Predicted

SHOWN = (*THROUGHPUTS, "mean_ttft_ms", "p95_ttft_ms", "mean_tpot_ms")


def print_points(done: PointsValidation, output: Path | None = None) -> None:
    """What each column was taken for, each point's errors, the medians, the shapes."""
    console = Console()
    console.print(f"[bold]{done.points.path}[/]: {len(done.points.points)} points")
    console.print(_columns_line(done), highlight=False)
    for reason in done.points.dropped:
        console.print(f"  dropped {reason}", highlight=False)
    console.print(_point_table(done))
    _print_assumptions(console, done)
    for name, (size, bias, count) in done.median_errors().items():
        console.print(f"{name}: median error {size:.1f} % (bias {bias:+.1f} %) over {count} points")
    found = shapes(done.predicted)
    if found:
        console.print(_shape_table(found))
    if output is not None:
        console.print(f"Wrote {output}/: points.json, points.csv")


def write_points(done: PointsValidation, folder: Path) -> None:
    """The same as JSON and CSV. Raises ``ExperimentError`` if the disk fails."""
    body = {
        "file": str(done.points.path),
        "columns": done.points.columns,
        "dropped": done.points.dropped,
        "median_errors_percent": {
            name: {"median": size, "bias": bias, "points": count}
            for name, (size, bias, count) in done.median_errors().items()
        },
        "shapes": [
            {
                "group": s.group,
                "check": s.check,
                "predicted": s.predicted,
                "published": s.published,
                "agrees": s.agrees,
            }
            for s in shapes(done.predicted)
        ],
        "points": [_point_json(point) for point in done.predicted],
        "provenance": provenance("simpy", "numpy"),
    }
    write_whole(folder / "points.json", json.dumps(body, indent=2) + "\n")
    write_whole(folder / "points.csv", _points_csv(done))


def _point_json(point: Predicted) -> dict[str, Any]:
    p = point.point
    return {
        "line": p.line,
        "model": p.model,
        "gpu": p.gpu,
        "failed": point.failed,
        "flagged": point.flagged,
        "assumed": list(point.assumed),
        "extrapolated_share": point.extrapolated_share,
        "published": {name: getattr(p, name) for name in METRICS if getattr(p, name) is not None},
        "predicted": point.metrics,
        "errors_percent": point.errors_percent(),
    }


def _points_csv(done: PointsValidation) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("line", "metric", "published", "predicted", "error_percent", "flagged"))
    for point in done.predicted:
        for name, error in point.errors_percent().items():
            assert point.metrics is not None
            row = (point.point.line, name, getattr(point.point, name), point.metrics[METRICS[name]], error)
            writer.writerow((*row, point.flagged))
    return text.getvalue()


def _columns_line(done: PointsValidation) -> str:
    taken = [f"{name} → {what}" for name, what in done.points.columns.items() if name != what]
    same = [name for name, what in done.points.columns.items() if name == what]
    return f"  columns: {', '.join(same)}" + (f"; {', '.join(taken)}" if taken else "")


def _point_table(done: PointsValidation) -> Table:
    shown = [name for name in SHOWN if any(getattr(p.point, name) is not None for p in done.predicted)]
    heads = [name.replace("_", " ") for name in shown]
    table = make_table(
        "line", "model", "gpu", "knobs", "load", *heads, "preempts", title="Predicted / published (error)"
    )
    table.title_justify = "left"
    for column in table.columns[1:5]:
        column.justify = "left"
    for point in done.predicted:
        preempted = "–" if point.metrics is None else f"{point.metrics['num_preemptions']:.0f}"
        table.add_row(*_head(point.point), *(_cell(point, name) for name in shown), preempted)
    return table


def _head(point: Point) -> tuple[str, ...]:
    knobs = f"{point.max_num_seqs or '–'} × {point.max_num_batched_tokens or '–'}"
    load = "at once"
    if point.concurrency is not None:
        load = f"{point.concurrency} clients"
    elif point.request_rate is not None:
        load = f"{point.request_rate:g} req/s"
    return str(point.line), (point.model or "–").rsplit("/", 1)[-1], point.gpu or "–", knobs, load


def _cell(point: Predicted, name: str) -> str:
    published = getattr(point.point, name)
    if point.metrics is None:
        return "–" if published is None else f"– / {_figure(published)}"
    predicted = point.metrics[METRICS[name]]
    if not published:
        return _figure(predicted)
    return f"{_figure(predicted)} / {_figure(published)} ({100 * (predicted / published - 1):+.0f} %)"


def _figure(value: float) -> str:
    """Four digits at least, and no power of ten to add up."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _print_assumptions(console: Console, done: PointsValidation) -> None:
    """Each assumption once, with the lines it holds for."""
    lines: dict[str, list[int]] = {}
    for point in done.predicted:
        said = [f"flagged: {point.flagged}"] if point.flagged else []
        said += [f"not predicted: {point.failed}"] if point.failed else []
        said += point.assumed
        if point.extrapolated_share > 0:
            said.append("some iterations lie beyond the tables and are extrapolated")
        for word in said:
            lines.setdefault(word, []).append(point.point.line)
    for word, where in lines.items():
        console.print(f"  • {_listed(where)}: {word}", highlight=False)


def _listed(lines: Sequence[int]) -> str:
    shown = ", ".join(str(line) for line in lines[:6])
    return f"line{'s' if len(lines) > 1 else ''} {shown}{' …' if len(lines) > 6 else ''}"


def _shape_table(found: Sequence[Shape]) -> Table:
    table = Table("points", "check", "predicted", "published", "agrees", title="Shapes", title_justify="left")
    for shape in found:
        agrees = "–" if shape.agrees is None else "yes" if shape.agrees else "no"
        table.add_row(shape.group, shape.check, shape.predicted, shape.published, agrees)
    return uncut(table)

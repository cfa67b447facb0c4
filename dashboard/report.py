"""A sweep as one HTML file that needs nothing else: to send, to keep beside a pull request, to read in ten years."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..experiments.compare import Comparison
from ..experiments.recommend import Recommendation
from ..experiments.run import write_whole
from ..experiments.sweep import Sweep
from . import frames, report_style
from .data import first_policy, heatmap_data, parity_data, policies
from .facts import Fact, facts, versions
from .figures import parity
from .heatmaps import LEGEND, What, heatmap
from .labels import label, number, percent
from .results import Results, read_results
from .theme import ICON
from .words import KNOB, cell_name

METRICS = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms")
NOT_MEASURED = (
    "Nothing of this sweep is measured: all of this is predicted. Run it again with --measure to measure some of its "
    "cells on the device."
)


def write_report(sweep: Sweep | Path, path: Path) -> None:
    """Write the report of a sweep (or of the sweep in a folder). The same results give the same bytes. Raises
    ``BatchTwinError`` if the results cannot be read or the file cannot be written.
    """
    write_whole(path, html_of(read_results(sweep)))


def html_of(results: Results) -> str:
    """The report as text."""
    name = results.sweep.folder.resolve().name
    return report_style.PAGE.substitute(
        title=escape(f"BatchTwin: {name}"),
        name=escape(name),
        icon=ICON,
        style=report_style.STYLE,
        script=report_style.SCRIPT,
        plotly=get_plotlyjs(),
        body="\n".join(f"<section>{part}</section>" for part in _parts(results)),
    )


def _parts(results: Results) -> Iterator[str]:
    yield _answer(results, results.recommendation)
    yield _heading("What this rests on") + _facts(facts(results))
    if results.cells:
        yield from _maps(results)
    if results.comparison is not None:
        yield _parities(results)
        yield from _tables(results, results.comparison)
    yield _heading("All cells") + _cells(results)
    yield _heading("Versions") + _facts(versions(results))


def _heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def _answer(results: Results, recommendation: Recommendation | None) -> str:
    notes = "".join(f'<p class="note">{escape(problem)}</p>' for problem in results.problems)
    if results.num_missing:
        total = len(results.sweep.spec.cells)
        notes += f'<p class="note">Not finished: {len(results.cells)} of {total} cells are predicted.</p>'
    if recommendation is None:
        return f"<h1>No recommendation</h1>{notes}"
    choice, _, rest = recommendation.sentence.partition(". ")
    command = escape(recommendation.serve_command)
    words = f"<h1>{_with_knobs(choice)}.</h1><p>{_with_knobs(rest)}</p>"
    return f"{words}{notes}<pre>{command}</pre>{_cards(results, recommendation)}"


def _with_knobs(text: str) -> str:
    return re.sub(KNOB, lambda found: f"<code>{found[0]}</code>", escape(text))


def _cards(results: Results, chosen: Recommendation) -> str:
    default = results.default(chosen.cell.policy)
    beside = default.metrics if default and default.cell != chosen.cell else {}
    cards = []
    for name in dict.fromkeys((results.sweep.spec.objective, *frames.KEY_METRICS)):
        scale = label(name).scale
        value = number(chosen.metrics.get(name, float("nan")) * scale)
        other = f"default {number(beside[name] * scale)}" if name in beside else ""
        if name in chosen.low:
            ends = (number(end[name] * scale) for end in (chosen.low, chosen.high))
            other = " · ".join(part for part in (" to ".join(ends), other) if part)
        cards.append(f"<div><span>{escape(label(name).brief)}</span><b>{value}</b><span>{other}</span></div>")
    note = f'<p class="soft">Predicted for the recommended cell, {cell_name(chosen.cell)}'
    note += f"; vLLM's default is {cell_name(default.cell)}" if default and beside else ""
    return f'<div class="cards">{"".join(cards)}</div>{note}.</p>'


def _facts(found: Sequence[Fact]) -> str:
    items = "".join(f"<div><dt>{escape(fact.label)}</dt><dd>{escape(fact.text)}</dd></div>" for fact in found)
    return f'<dl class="facts">{items}</dl>'


def _metrics(results: Results) -> tuple[str, ...]:
    return tuple(dict.fromkeys((results.sweep.spec.objective, *METRICS)))


def _maps(results: Results) -> Iterator[str]:
    note = "" if results.comparison else f'<p class="note">{NOT_MEASURED}</p>'
    yield f'{_heading("Over both knobs")}{note}<p class="soft">{escape(LEGEND)}</p>'
    kinds: tuple[What, ...] = ("predicted", "measured", "error") if results.comparison else ("predicted",)
    shown = policies(results)
    for policy in sorted(shown, key=lambda name: name != first_policy(results)):
        title = f"<h3>{escape(policy)}</h3>" if len(shown) > 1 else ""
        figures = "".join(
            _figure(heatmap(heatmap_data(results, metric, policy), what), f"{what}-{metric}-{_safe(policy)}")
            for metric in _metrics(results)
            for what in kinds
        )
        yield f'{title}<div class="row{" two" if len(kinds) == 1 else ""}">{figures}</div>'


def _safe(text: str) -> str:
    return re.sub(r"\W", "-", text)


def _figure(figure: go.Figure, name: str) -> str:
    """A figure as a piece of HTML; its name must be its own, and makes the bytes the same each time."""
    config = {"displayModeBar": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=config))


def _parities(results: Results) -> str:
    figures = [
        _figure(parity(parity_data(results, metric), metric), f"parity-{metric}") for metric in _metrics(results)
    ]
    note = "Bars: half the range of the repeats. A click in the legend adds the null baselines."
    return f'{_heading("Parity")}<p class="soft">{note}</p><div class="row two">{"".join(figures)}</div>'


def _tables(results: Results, comparison: Comparison) -> Iterator[str]:
    yield f'{_heading("Errors")}{_table(frames.summary(results))}<p class="soft">{escape(frames.SUMMARY_NOTE)}</p>'
    rank = frames.rank_text(comparison.rank_correlation)
    yield f'{_heading("What believing it costs")}{_table(frames.regret(results))}<p class="soft">{escape(rank)}</p>'
    objective = results.sweep.spec.objective
    note = f"{label(objective).with_unit}: measured − predicted, and the parts that sum to it."
    yield (
        f'{_heading("Where the error comes from")}<p class="soft">{escape(note)}</p>'
        f'{_table(frames.split(results, objective))}<p class="soft">{escape(frames.cancelling_text(results))}</p>'
    )


def _cells(results: Results) -> str:
    found = frames.cells(results, results.sweep.spec.objective)
    written = {name: [_written(value, str(name)) for value in column] for name, column in found.items()}
    return _table(pd.DataFrame(written))


def _written(value: object, heading: str) -> str:
    if isinstance(value, str):
        return value
    if pd.isna(value):  # type: ignore[call-overload]
        return ""
    return percent(float(str(value)), signed=True) if heading == "Error (%)" else number(float(str(value)))


def _table(frame: pd.DataFrame) -> str:
    return f'<div class="scroll">{frame.to_html(index=False, border=0, na_rep="")}</div>'

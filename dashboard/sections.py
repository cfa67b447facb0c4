"""The parts of a sweep's page, from the answer down to the last cell."""

from __future__ import annotations

from typing import Literal

import pandas as pd
import streamlit as st

from ..experiments.grid import CellResult
from ..experiments.recommend import Recommendation
from . import frames
from .data import bound_of, compared, heatmap_data, metric_names, parity_data, table
from .figures import parity
from .heatmaps import LEGEND, What, heatmap
from .labels import label, number, percent, quantity
from .link import follow, remember
from .results import Results
from .words import cell_name, plain, with_knobs

_CHART = {"displayModeBar": False}


def answer(recommendation: Recommendation) -> None:
    """The recommendation in one sentence, why, and the command that follows from it."""
    choice, _, rest = recommendation.sentence.partition(". ")
    words, command = st.columns([3, 2], vertical_alignment="center", gap="large")
    with words:
        st.markdown(f"#### {with_knobs(choice)}.")
        if rest:
            st.markdown(with_knobs(rest))
    with command:
        st.code(recommendation.serve_command, language="bash", wrap_lines=True)


def key_metrics(results: Results, chosen: CellResult | None) -> None:
    """A row of numbers for one cell, each beside vLLM's default."""
    if chosen is None:
        return
    default = results.default(chosen.cell.policy)
    names = _card_metrics(results)
    for column, name in zip(st.columns(len(names)), names, strict=True):
        with column:
            _card(name, chosen, default)
    st.caption(_about_cell(results, chosen, default))


def _card_metrics(results: Results) -> list[str]:
    objective = results.sweep.spec.objective
    return list(dict.fromkeys((objective, *frames.KEY_METRICS)))[: len(frames.KEY_METRICS)]


def _card(name: str, chosen: CellResult, default: CellResult | None) -> None:
    found = label(name)
    value = chosen.metrics.get(name, float("nan")) * found.scale
    delta = None
    if default is not None and default.metrics and default.cell != chosen.cell:
        delta = _delta(value, default.metrics.get(name, float("nan")) * found.scale)
    st.metric(found.brief, number(value), delta, delta_color=_delta_color(found.lower_is_better))


def _delta_color(lower_is_better: bool | None) -> Literal["normal", "inverse", "off"]:
    if lower_is_better is None:
        return "off"
    return "inverse" if lower_is_better else "normal"


def _delta(value: float, default: float) -> str | None:
    if not default:
        return f"{value - default:+,.0f}" if value != default else None
    change = 100 * (value / default - 1)
    return percent(change, signed=True).replace("−", "-") if abs(change) >= 0.05 else None


def _about_cell(results: Results, chosen: CellResult, default: CellResult | None) -> str:
    parts = [f"Predicted for {cell_name(chosen.cell)}; held back most of the time by {bound_of(chosen)}"]
    if default is not None and default.metrics and default.cell != chosen.cell:
        parts.append(f"changes are against vLLM's default, {cell_name(default.cell)}")
    objective = results.sweep.spec.objective
    if row := compared(results, objective).get(chosen.cell):
        error = percent(row["error_percent"], signed=True)
        parts.append(f"measured {quantity(objective, row['measured'])}, error {error}")
    return plain("; ".join(parts) + ".")


def maps(results: Results, policy: str) -> str:
    """The three heatmaps of a metric; returns the metric."""
    names = metric_names(results)
    chooser, legend = st.columns([2, 5], vertical_alignment="bottom")
    with chooser:
        follow("metric", names, results.sweep.spec.objective)
        metric = str(
            st.selectbox(
                "Metric", names, key="metric", format_func=lambda n: label(n).with_unit, on_change=remember("metric")
            )
        )
    legend.caption(f"{LEGEND}   ·   {_direction(metric)}")
    data = heatmap_data(results, metric, policy)
    if data.is_measured:
        kinds: tuple[What, ...] = ("predicted", "measured", "error")
        for column, what in zip(st.columns(3), kinds, strict=True):
            column.plotly_chart(heatmap(data, what), key=f"map-{what}", config=_CHART)
        return metric
    left, right = st.columns([3, 2], vertical_alignment="center", gap="large")
    left.plotly_chart(heatmap(data, "predicted"), key="map-predicted", config=_CHART)
    with right:
        _how_to_measure(results)
    return metric


def _how_to_measure(results: Results) -> None:
    st.info(
        "**Nothing is measured yet.** Run the same `batchtwin sweep` command again with `--measure 12`, or the lines "
        "below: twelve cells (if it has as many) are measured on the device, and the measured map, the error map and "
        "the parity plot stand here.",
        icon=":material/speed:",
    )
    lines = f"from batchtwin import open_sweep\n\nopen_sweep({str(results.sweep.folder)!r}).measure(12)"
    st.code(lines, language="python", wrap_lines=True)


def _direction(metric: str) -> str:
    return {True: "lower is better", False: "higher is better", None: ""}[label(metric).lower_is_better]


def accuracy(results: Results, metric: str) -> None:
    """The parity plot beside what the errors amount to."""
    if results.comparison is None:
        return
    plot, tables = st.columns([5, 7], gap="large")
    plot.plotly_chart(parity(parity_data(results, metric), metric), key="parity", config=_CHART)
    with tables:
        errors, lost, parts = st.tabs(["Errors", "What believing it costs", "Where the error comes from"])
        with errors:
            _plain_table(frames.summary(results))
            st.caption(frames.SUMMARY_NOTE)
        with lost:
            _plain_table(frames.regret(results))
            st.caption(frames.rank_text(results.comparison.rank_correlation))
        with parts:
            st.caption(f"{label(metric).with_unit}: measured − predicted, and the parts that sum to it.")
            _plain_table(frames.split(results, metric))


def _plain_table(frame: pd.DataFrame) -> None:
    st.dataframe(frame, hide_index=True, height=min(38 + 35 * len(frame), 290))


def all_cells(results: Results, metric: str) -> None:
    """Every cell, to sort and to take away."""
    heading, button = st.columns([5, 1], vertical_alignment="bottom")
    heading.markdown("##### All cells")
    button.download_button(
        "Download CSV",
        table(results).to_csv(index=False),
        file_name=f"{results.sweep.folder.resolve().name}.csv",
        mime="text/csv",
        icon=":material/download:",
        width="stretch",
        on_click="ignore",
    )
    frame = frames.cells(results, metric)
    floats = frame.select_dtypes("float")
    config = {str(name): st.column_config.NumberColumn(format=_format(column)) for name, column in floats.items()}
    st.dataframe(frame, hide_index=True, placeholder="", column_config=config)


def _format(column: pd.Series[float]) -> str:
    return "%.2f" if column.abs().max() < 10 else "%.1f"

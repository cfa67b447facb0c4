"""The answer: which values, why, and what else is near; or the form that starts a sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import streamlit as st

from ...experiments.grid import CellResult
from ...experiments.recommend import Recommendation
from .. import frames
from ..answer import about_cell, cards
from ..colors import MEASURED
from ..context import Context
from ..data import HeatmapData, heatmap_data, heatmap_frame, metric_names, table
from ..heatmaps import What, heatmap, legend
from ..labels import label
from ..link import NEW, follow, put, remember
from ..pareto import AGAINST, Against, explorer, pareto, pareto_data
from ..results import Results
from ..show import show
from ..start_form import offer_to_resume, start_form
from ..watch import jobs, watch
from ..words import plain, with_knobs

TITLE = "Sweep"
ICON = ":material/grid_on:"
HEIGHT_PX = 400
VIEWS = ("Heatmap", "Pareto", "Explorer")


def page(context: Context) -> None:
    """Draw it."""
    if context.results is None or NEW in st.query_params:
        start_form(context, first=context.results is None and NEW not in st.query_params)
        return
    results = context.results
    folder = results.sweep.folder
    watch(folder)
    job = jobs().of(folder)
    if results.num_missing and not (job and job.is_running):
        offer_to_resume(results.sweep, context.root, len(results.cells))
    recommendation = context.recommendation
    if recommendation is not None:
        _answer(recommendation)
    if context.cell is not None:
        _cards(results, context.cell, recommendation)
    if results.cells:
        _views(context, results)


def _answer(recommendation: Recommendation) -> None:
    choice, _, why = recommendation.sentence.partition(": ")
    words, command = st.columns([3, 2], vertical_alignment="center", gap="medium")
    with words:
        st.markdown(f"#### {with_knobs(choice)}")
        if why:
            st.markdown(with_knobs(why[0].upper() + why[1:]))
    with command:
        st.code(recommendation.serve_command, language="bash", wrap_lines=True)


def _cards(results: Results, chosen: CellResult, recommendation: Recommendation | None) -> None:
    found = cards(results, chosen)
    for column, card in zip(st.columns(len(found)), found, strict=True):
        with column:
            st.metric(card.label, card.predicted, card.change, delta_color=card.change_color)
            if card.measured:
                st.html(f'<span style="color:{MEASURED};font-size:0.85rem">● {card.measured}</span>')
    st.caption(plain(about_cell(results, chosen, recommendation)))


def _views(context: Context, results: Results) -> None:
    recommendation = context.recommendation
    switch, chooser, words = st.columns([2.2, 2.4, 5], vertical_alignment="bottom")
    with switch:
        follow("view", VIEWS, VIEWS[0])
        view = st.segmented_control(
            "View", VIEWS, key="view", on_change=remember("view"), required=True, label_visibility="collapsed"
        )
    if view == "Pareto":
        with chooser:
            against = _choose_against()
        slo = context.question.scenario.slo
        data = pareto_data(results, against, slo, recommendation.cell if recommendation else None)
        show(pareto(data), data.rows, "pareto", on_click=_opens_cell("pareto"))
        return
    with chooser:
        metric = choose_metric(results)
    if view == "Explorer":
        words.caption("Drag along an axis to keep a range of it; drag an axis's name to move it.")
        _explorer(results, metric)
        return
    maps = heatmap_data(
        results,
        metric,
        context.policy,
        context.question.scenario.slo,
        recommendation.cell if recommendation else None,
    )
    words.caption(f"{legend(maps)}   ·   {_direction(metric)}; click a cell to open it")
    _maps(maps, unread=bool(results.problems))


def choose_metric(results: Results) -> str:
    """Any of the compared metrics."""
    names = metric_names(results)
    follow("metric", names, results.sweep.spec.objective)
    return str(
        st.selectbox(
            "Metric",
            names,
            key="metric",
            format_func=lambda name: label(name).with_unit,
            on_change=remember("metric"),
            label_visibility="collapsed",
        )
    )


def _direction(metric: str) -> str:
    return {True: "lower is better", False: "higher is better", None: ""}[label(metric).lower_is_better]


def _maps(data: HeatmapData, *, unread: bool) -> None:
    kinds: tuple[What, ...] = get_args(What) if data.is_measured else ("predicted",)
    columns = st.columns(3 if data.is_measured else [3, 2], vertical_alignment="center" if len(kinds) == 1 else "top")
    for column, what in zip(columns, kinds, strict=False):
        with column:
            key = f"map-{what}"
            show(heatmap(data, what, height_px=HEIGHT_PX), lambda: heatmap_frame(data), key, on_click=_opens_cell(key))
    if not data.is_measured and not unread:
        with columns[1]:
            st.info(
                "**Nothing is measured yet**, so nothing says how far to believe this. The page **Measure** runs some "
                "of these cells on the device; then the measured map and the error map stand here.",
                icon=":material/speed:",
            )


def _opens_cell(key: str) -> Callable[[], None]:
    def opens() -> None:
        points = st.session_state[key].selection.points
        if points and points[0].get("customdata"):
            put(sweep=st.session_state.get("sweep"), cell=str(points[0]["customdata"][0]))

    return opens


def _choose_against() -> Against:
    names = tuple(AGAINST)
    follow("against", names, names[0])
    return st.selectbox(
        "Against",
        names,
        key="against",
        format_func=lambda name: AGAINST[name],
        on_change=remember("against"),
        label_visibility="collapsed",
    )


def _explorer(results: Results, metric: str) -> None:
    rows = table(results)
    metrics = tuple(dict.fromkeys((metric, *frames.KEY_METRICS, "mean_kv_usage")))
    show(explorer(rows, metrics), rows, "cells")
    frame = frames.cells(results, metric)
    floats = frame.select_dtypes("float")
    config = {
        str(name): st.column_config.NumberColumn(format="%.2f" if column.abs().max() < 10 else "%.1f")
        for name, column in floats.items()
    }
    st.dataframe(frame, hide_index=True, placeholder="", column_config=config, height=300)

"""How many requests a second a setting can take within the SLOs."""

from __future__ import annotations

import streamlit as st

from ...experiments.grid import Cell
from .. import capacity_curves
from ..capacity_curves import Curve
from ..cell_choice import choose_cells
from ..context import Context
from ..labels import number
from ..load import curve_of
from ..show import show
from ..words import cell_name, plain

TITLE = "Load"
ICON = ":material/trending_up:"
AT_ONCE = 3000
"""Requests up to which the search starts by itself; it replays the trace some fifteen times a cell."""


def page(context: Context) -> None:
    """Draw it."""
    results, question = context.opened, context.question
    if not question.scenario.slo:
        st.info(
            "A capacity is the highest request rate within limits, and none is set: choose a kind of service (chat, "
            "code, RAG) or limits of your own under **No SLOs** in the bar above.",
            icon=":material/flag:",
        )
        return
    chosen = choose_cells(results, context.cell.cell if context.cell else None)
    if not chosen or question.profile is None:
        st.info("Choose at least one cell, and a profile.", icon=":material/grid_on:")
        return
    if len(question.scenario.trace.load()) > AT_ONCE and not st.toggle(
        f"Search ({len(question.scenario.trace.load()):,} requests, some fifteen replays a cell)", key="search-capacity"
    ):
        return
    curves = [curve_of(question.scenario, question.profile, cell) for cell in chosen]
    _answer(curves)
    columns = st.columns(2)
    with columns[0]:
        show(capacity_curves.goodput(curves), lambda: capacity_curves.frame(curves), "goodput")
    with columns[1]:
        show(capacity_curves.attainment(curves), lambda: capacity_curves.frame(curves), "attainment")
    st.caption(
        "Dotted upright: the capacity. Shaded: more work arrives than is done, and the queue grows for as long as "
        "requests come (darker where more of the cells do). All of it predicted."
    )


def _answer(curves: list[Curve]) -> None:
    best = max(curves, key=lambda one: one.capacity.rate_per_s)
    burst = " in a burst as long as this trace" if best.is_beyond_stability else ""
    st.markdown(f"#### {_name(best.cell)}: {number(best.capacity.rate_per_s)} requests/s within the SLOs{burst}")
    st.markdown("\n".join(f"* **{_name(one.cell)}** {plain(one.words)}" for one in curves))
    if any(one.is_beyond_stability for one in curves):
        st.caption(
            "A capacity beyond the rate from which the queue grows holds for a burst as long as this trace only: with "
            "more requests it falls towards that rate."
        )


def _name(cell: Cell) -> str:
    return f"{cell_name(cell)}" + ("" if cell.policy == "vllm_v1" else f" · {cell.policy}")

"""Two or more cells, or policies, side by side."""

from __future__ import annotations

import streamlit as st

from ..cell_choice import choose_cells
from ..context import Context
from ..distributions import Distribution, cdfs, differences, distribution, frame
from ..load import measured_runs, predicted_run
from ..show import show

TITLE = "Compare"
ICON = ":material/compare:"


def page(context: Context) -> None:
    """Draw it."""
    results = context.opened
    chosen = choose_cells(results, context.cell.cell if context.cell else None)
    if len(chosen) < 2:
        known = sum(bool(result.metrics) for result in results.cells)
        few = f"Two predicted cells are needed and this sweep has {known}: resume it on the page **Sweep**."
        st.info(few if known < 2 else "Choose two cells or more to compare.", icon=":material/compare:")
        return
    st.dataframe(differences(results, chosen), hide_index=True, height=275)
    found: list[Distribution] = [distribution(cell, predicted_run(results, cell)) for cell in chosen]
    for cell in chosen:
        found += [distribution(cell, run) for run in measured_runs(results, cell)[:1]]
    show(cdfs(found), lambda: frame(found), "distributions")
    st.caption(
        "Changes in brackets are against the first cell. Distributions of every request (TTFT, TPOT, E2E) and of every "
        "gap between tokens (ITL); of measured cells the first repeat."
    )

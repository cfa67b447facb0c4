"""Choosing several cells of the open sweep."""

from __future__ import annotations

import streamlit as st

from ..experiments.grid import Cell
from .link import follow_many, remember
from .results import Results
from .words import cell_name

MOST = 4
"""Cells that a figure can tell apart by their dashes."""


def first_cells(results: Results, chosen: Cell | None) -> list[Cell]:
    """What to compare first: the cell beside the page and vLLM's default, or the next best thing."""
    known = [result.cell for result in results.cells if result.metrics]
    wanted = [chosen, results.recommendation.cell if results.recommendation else None]
    if chosen is not None and (default := results.default(chosen.policy)) is not None:
        wanted.append(default.cell)
    found = [cell for cell in dict.fromkeys(wanted) if cell in known]
    return (found + [cell for cell in known if cell not in found])[: max(2, len(found))]


def choose_cells(results: Results, chosen: Cell | None) -> list[Cell]:
    """The chosen cells, from the address."""
    known = {result.cell.key: result.cell for result in results.cells if result.metrics}
    follow_many("cells", list(known), [cell.key for cell in first_cells(results, chosen)])
    several = len(results.sweep.spec.policies) > 1

    def name(key: str) -> str:
        return cell_name(known[key]) + (f" · {known[key].policy}" if several else "")

    keys = st.multiselect(
        "Cells (max_num_seqs × max_num_batched_tokens)",
        list(known),
        key="cells",
        format_func=name,
        max_selections=MOST,
        on_change=remember("cells"),
    )
    return [known[key] for key in keys]

"""The answer: which values, over both knobs; or the form that starts a sweep."""

from __future__ import annotations

from .. import sections
from ..context import Context
from ..start_form import predict_rest, start_form

TITLE = "Sweep"
ICON = ":material/grid_on:"


def page(context: Context) -> None:
    """Draw it."""
    if context.results is None:
        start_form(context.root, first=True)
        return
    results = context.results
    if results.num_missing:
        predict_rest(results)
    if results.recommendation is not None:
        sections.answer(results.recommendation)
    if results.cells:
        sections.key_metrics(results, context.cell)
        metric = sections.maps(results, context.policy)
        sections.accuracy(results, metric)
        sections.all_cells(results, metric)

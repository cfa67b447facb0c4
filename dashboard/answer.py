"""The numbers beside the recommendation: predicted, measured where it is, and against vLLM's default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..experiments.grid import Cell, CellResult
from ..experiments.intervals import over_seeds
from ..experiments.recommend import Recommendation
from . import frames
from .data import bound_of, compared
from .labels import label, number, percent
from .results import Results
from .words import cell_name

DeltaColor = Literal["normal", "inverse", "off"]


@dataclass(frozen=True, slots=True)
class Card:
    """One metric of one cell."""

    label: str
    predicted: str
    change: str | None
    """Against vLLM's default; None if that is this cell, not predicted, or equal."""
    change_color: DeltaColor
    measured: str
    """With its error; empty if the cell or this metric was not measured."""


def cards(results: Results, chosen: CellResult) -> list[Card]:
    """The objective and the key metrics of a cell."""
    names = dict.fromkeys((results.sweep.spec.objective, *frames.KEY_METRICS))
    return [_card(results, chosen, name) for name in names]


def _card(results: Results, chosen: CellResult, name: str) -> Card:
    found = label(name)
    value = chosen.metrics.get(name, float("nan")) * found.scale
    default, change = results.default(chosen.cell.policy), None
    if default is not None and default.metrics and default.cell != chosen.cell:
        change = _change(value, default.metrics.get(name, float("nan")) * found.scale)
    return Card(
        found.brief, number(value), change, _color(found.lower_is_better), _measured(results, chosen.cell, name)
    )


def _color(lower_is_better: bool | None) -> DeltaColor:
    if lower_is_better is None:
        return "off"
    return "inverse" if lower_is_better else "normal"


def _change(value: float, default: float) -> str | None:
    if not default:
        return f"{value - default:+,.0f}" if value != default else None
    change = 100 * (value / default - 1)
    return percent(change, signed=True).replace("−", "-") if abs(change) >= 0.05 else None


def _measured(results: Results, cell: Cell, name: str) -> str:
    row = compared(results, name).get(cell)
    if row is None:
        return ""
    error = percent(row["error_percent"], signed=True)
    return f"measured {number(row['measured'] * label(name).scale)}" + (f" ({error})" if error != "–" else "")


def about_cell(results: Results, chosen: CellResult, recommendation: Recommendation | None) -> str:
    """Which cell the cards are of, what holds it back, and what is known of the best and of vLLM's default."""
    cell = chosen.cell
    is_answer = recommendation is not None and cell == recommendation.cell
    parts = [f"{'Recommended' if is_answer else 'Chosen'} cell {cell_name(cell)}"]
    parts.append(f"held back most of the time by {bound_of(chosen)}")
    objective = results.sweep.spec.objective
    if is_answer and recommendation is not None and recommendation.best != cell:
        best = over_seeds(results.by_cell[recommendation.best])[objective]
        mine = over_seeds(chosen)[objective]
        more = f"has {percent(100 * (best / mine - 1))} more" if mine else "is another"
        parts.append(f"the best, {cell_name(recommendation.best)}, {more}")
    parts.append(_default_words(results, chosen))
    if cell not in compared(results, objective):
        parts.append("this cell is not measured")
    if chosen.seeds:
        count = 1 + len(chosen.seeds)
        parts.append(f"shown is the first of {count} seeds, the one that is measured; answer and SLOs go by the mean")
    return "; ".join(part for part in parts if part) + "."


def _default_words(results: Results, chosen: CellResult) -> str:
    default = results.default(chosen.cell.policy)
    if default is None or not default.metrics:
        return "vLLM's default is not predicted"
    if default.cell == chosen.cell:
        return "it is vLLM's default"
    away = "" if default.cell in results.sweep.spec.grid else ", off this grid"
    return f"changes are against vLLM's default {cell_name(default.cell)}{away}"

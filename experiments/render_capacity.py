"""Capacities as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from .capacity import Capacity, FrontierPoint
from .recommend import SLO_METRIC, SLO_WORD
from .render import uncut


def print_capacity(found: Capacity) -> None:
    """The answer, and every rate tried."""
    console = Console()
    names = [name for name in SLO_METRIC if name in found.slo]
    heads = ["Requests/s", "× trace", "Served/s", "Load ρ", *(f"P99 {SLO_WORD[name]} ms" for name in names)]
    table = Table(title="Rates tried", title_justify="left", title_style="bold", header_style="dim", box=None)
    for head in [*heads, *(["Within"] if found.attainment is not None else []), "Meets"]:
        table.add_column(head, justify="right")
    for tried in found.bracket.tried:
        metrics = tried.metrics
        row = [tried.rate_scale * found.trace_rate_per_s, tried.rate_scale]
        row += [metrics[name] for name in ("request_throughput", "load_rho", *(SLO_METRIC[name] for name in names))]
        cells = [f"{value:,.4g}" for value in row]
        if found.attainment is not None:
            cells.append(f"{metrics['request_goodput'] / metrics['request_throughput']:.2%}")
        table.add_row(*cells, "yes" if tried.meets else "no")
    console.print(uncut(table))
    console.print(found.sentence)


def print_frontier(points: Sequence[FrontierPoint]) -> None:
    """One row a cell: its capacity and what decided it, or why it has none."""
    console = Console()
    table = Table(title="Capacity", title_justify="left", title_style="bold", header_style="dim", box=None)
    for head in ("Policy", "seqs", "tokens", "Requests/s", "Tried", "Missed above"):
        table.add_column(head, justify="left" if head in ("Policy", "Missed above") else "right")
    for point in points:
        table.add_row(
            point.cell.policy,
            f"{point.cell.max_num_seqs:,}",
            f"{point.cell.max_num_batched_tokens:,}",
            *_columns(point),
        )
    console.print(uncut(table))
    known = [point for point in points if point.capacity is not None and point.capacity.rate_per_s > 0]
    if known:
        best = max(known, key=lambda point: point.capacity.rate_per_s if point.capacity else 0.0)
        cell = best.cell
        console.print(f"Most: max_num_seqs={cell.max_num_seqs}, max_num_batched_tokens={cell.max_num_batched_tokens}.")
        console.print(best.capacity.sentence if best.capacity else "")


def _columns(point: FrontierPoint) -> tuple[str, str, str]:
    found = point.capacity
    if found is None:
        return "none", "", point.reason
    bracket = found.bracket
    note = {"bracket": "", "lowest": "even the lowest rate: ", "highest": "nothing: a lower bound"}[bracket.decided_by]
    missed = bracket.lowest_missed.missed if bracket.lowest_missed else ""
    flag = " (not monotone)" if bracket.contradictions else ""
    return f"{found.rate_per_s:,.4g}", f"{len(bracket.tried)}", f"{note}{missed}{flag}"

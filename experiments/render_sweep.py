"""A sweep as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from .grid import Cell, policy_label
from .intervals import over_seeds
from .render import LABELS, make_table, number, print_comparison, print_table
from .sweep import Sweep


@contextmanager
def sweep_progress(folder: Path) -> Iterator[Callable[[str, int, int], None]]:
    """A bar a phase, with the time left; an interruption says how to go on."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    bar = Progress(*columns, console=console)

    def update(what: str, done: int, total: int) -> None:
        bar.start()  # not before there is something to show: bad input is one sentence and no bar
        phase = what.split(maxsplit=1)[0]
        if phase not in tasks:
            tasks[phase] = bar.add_task(what, total=total)
        bar.update(tasks[phase], description=what.capitalize(), completed=done)

    try:
        try:
            yield update
        finally:
            if tasks:
                bar.stop()
    except KeyboardInterrupt:
        console.print(f"Interrupted. Finished cells are kept in {folder}; the same command goes on from there.")
        raise SystemExit(130) from None


def print_sweep(sweep: Sweep) -> None:
    """Where to go from a finished sweep, and its answer."""
    from .recommend import recommend

    console = Console()
    results = sweep.predicted()
    without = [result for result in results if result.status != "ok"]
    measured = {cell: sweep.measured_metrics(cell) for cell in sweep.measured_cells()}
    objective = sweep.spec.objective
    for policy in sweep.spec.policies:
        print_table(console, _grid_table(sweep, policy, measured))
    for cell, reason in list(sweep.not_measured().items())[:3]:
        console.print(f"[yellow]{cell.key} could not be measured: {reason}[/]")
    for result in without[:3]:
        console.print(f"[dim]{result.cell.key}: {result.reason}[/]")
    if len(without) > 3:
        more = len(without) - 3
        console.print(f"[dim](and {more} more cell{'s' if more > 1 else ''} without a prediction)[/]")
    console.print(recommend(sweep).sentence)
    for note in getattr(sweep.profile, "notes", ()):
        console.print(f"[dim]Operator tables: {escape(note)}.[/]")
    console.print(f"[dim]{LABELS.get(objective, objective)}, {_caption(sweep)}. Results in {sweep.folder}[/]")


def print_demo(sweep: Sweep, report: Path) -> None:
    """The demo's ending: the grid, the comparison, where the report is."""
    from .compare import compare

    print_sweep(sweep)
    print_comparison(compare(sweep))
    Console().print(f"[bold]Report:[/] {report}")


def _grid_table(sweep: Sweep, policy: str, measured: dict[Cell, list[dict[str, float]]]) -> Table:
    """One row a ``max_num_seqs``, one column a ``max_num_batched_tokens``."""
    results = {result.cell: result for result in sweep.predicted()}
    cells = [cell for cell in results if cell.policy == policy]
    budgets = sorted({cell.max_num_batched_tokens for cell in cells})
    objective = sweep.spec.objective
    table = make_table(
        "seqs \\ tokens",
        *(f"{budget:,}" for budget in budgets),
        title=f"{policy_label(policy)}: {LABELS.get(objective, objective)}",
    )
    for seqs in sorted({cell.max_num_seqs for cell in cells}):
        row: list[str] = []
        for budget in budgets:
            result = results.get(cell := Cell(policy, seqs, budget))
            if result is None or result.status != "ok":
                row.append("" if result is None else result.status)
                continue
            runs = measured.get(cell)
            text = number((result.metrics if runs else over_seeds(result))[objective], 1)
            if runs:
                values = [run[objective] for run in runs if objective in run]
                text += f" ({number(median(values), 1)})" if values else ""
            row.append(text)
        table.add_row(f"{seqs:,}", *row)
    return table


def _caption(sweep: Sweep) -> str:
    """What the figures of the grid are: a cell with a measured figure has that of the seed it was measured with."""
    seeds = sweep.spec.num_seeds
    mean = f"predicted, mean over {seeds} seeds" if seeds > 1 else "predicted"
    if not sweep.measured_cells():
        return mean
    return f"{mean}; where measured: predicted with the measured seed (measured)" if seeds > 1 else f"{mean} (measured)"

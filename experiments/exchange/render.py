"""What an import or a calibration from a log found, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..calibrate_from import CalibratedFrom
from ..render import make_table, number
from ..render_profile import print_profile
from .import_runs import Checked, Imported
from .measured_row import Flag

MOST_LINES = 12
COLUMNS = (
    ("Output tok/s", "output_throughput", 1),
    ("Req/s", "request_throughput", 2),
    ("TTFT ms", "mean_ttft_ms", 1),
    ("TPOT ms", "mean_tpot_ms", 2),
    ("E2E P99 ms", "p99_e2el_ms", 0),
)
NAN = float("nan")


def print_imported(done: Imported, output: Path | None) -> None:
    """The runs, what is wrong with them, what was assumed, and where to go on."""
    console = Console()
    table = make_table("#", "seqs", "tokens", "clients", "rate", *(head for head, _, _ in COLUMNS), "")
    table.padding = (0, 1, 0, 0)  # eleven columns in 80 characters
    for index, item in enumerate(done.rows, 1):
        table.add_row(f"{index}", *_cells(item))
    console.print(table)
    for line in _flags(done):
        console.print(line, highlight=False)
    for note in done.notes:
        console.print(f"[dim]{escape(note)}[/]", highlight=False)
    possible = sum(item.is_possible for item in done.rows)
    console.print(f"{possible} of {len(done.rows)} runs can be true.")
    for made in done.sweeps:
        console.print(f"Wrote {made.folder}: see batchtwin compare {made.folder}")
    if output is None:
        console.print("[dim]Checked only: give -o FOLDER -p PROFILE to lay them beside predictions.[/]")


def _cells(item: Checked) -> Iterator[str]:
    row = item.row
    for knob in (row.max_num_seqs, row.max_num_batched_tokens, row.workload.max_concurrency):
        yield "–" if knob is None else f"{knob:,}"
    yield f"{row.workload.request_rate:.4g}"
    for _, name, digits in COLUMNS:
        yield number(row.metrics.get(name, NAN), digits)
    yield "" if not item.flags else "noted" if item.is_possible else "impossible"


def _flags(done: Imported) -> Iterator[str]:
    """What is wrong, the same for several runs once, what is impossible first."""
    runs: dict[Flag, list[str]] = {}
    for index, item in enumerate(done.rows, 1):
        for flag in item.flags:
            runs.setdefault(flag, []).append(f"#{index} ({item.row.source})")
    lines = [
        f"[{'red' if flag.impossible else 'yellow'}]{escape(who[0])}{_more(who)}"
        f"{' cannot be true' if flag.impossible else ''}:[/] {escape(flag.text)}."
        for flag, who in sorted(runs.items(), key=lambda item: not item[0].impossible)
    ]
    lines += [f"[yellow]Left out:[/] {escape(sentence)}." for sentence in done.left_out]
    yield from lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        yield f"(and {len(lines) - MOST_LINES} more)"


def _more(who: Sequence[str]) -> str:
    return f" and {len(who) - 1} more" if len(who) > 1 else ""


def print_calibrated_from(done: CalibratedFrom, path: Path) -> None:
    """A profile's card, and what became of its source."""
    console = Console()
    for note in done.notes:
        console.print(f"{escape(note[0].upper() + note[1:])}.", highlight=False)
    for reason, count in sorted(done.left_out.items(), key=lambda item: -item[1]):
        console.print(f"[yellow]Left out:[/] {count:,} × {escape(reason)}.", highlight=False)
    print_profile(done.profile, path)

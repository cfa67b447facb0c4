"""A trace description for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from .describe import LengthSummary, TraceDescription

_BAR_WIDTH = 18
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


def render(description: TraceDescription) -> RenderableType:
    """Facts, arrivals over time, then the two length histograms side by side."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(description.name, style="bold"),
        Text(description.source, style="dim"),
        Text(),
        _facts(description),
    ]
    if description.arrivals_per_slice:
        parts += [
            Text(),
            Text("arrivals from first to last", style="bold"),
            Text(spark(description.arrivals_per_slice)),
        ]
    histograms = [
        _histogram("prompt tokens", description.prompt, description.num_requests),
        _histogram("output tokens", description.output, description.num_requests),
    ]
    return Group(*parts, Text(), Columns(histograms, padding=(0, 4)))


def _facts(description: TraceDescription) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for label, value in facts(description):
        table.add_row(label, value)
    return table


def facts(description: TraceDescription) -> list[tuple[str, str]]:
    """Label and value of each line."""
    rows = [
        ("requests", f"{description.num_requests:,}"),
        ("span", f"{description.span_s:,.1f} s"),
        ("rate", _or_offline(description.rate_per_s, "{:,.3g} requests/s")),
        ("burstiness", _or_offline(description.interarrival_cv, "{:.2f} (gaps: std/mean; Poisson 1)")),
        ("peak minute", _or_offline(description.peak_minute_share, "{:.1%} of all requests")),
        ("prompt", _lengths(description.prompt)),
        ("output", _lengths(description.output)),
    ]
    if description.shared_block_share is not None:
        rows.append(("shared prefixes", f"{description.shared_block_share:.1%} of prompt blocks seen before"))
    return [*rows, ("digest", description.digest[:16])]


def _or_offline(value: float | None, template: str) -> str:
    return "all at once" if value is None else template.format(value)


def _lengths(summary: LengthSummary) -> str:
    quantiles = f"p10 {summary.p10:,.0f}  p50 {summary.p50:,.0f}  p90 {summary.p90:,.0f}  p99 {summary.p99:,.0f}"
    return f"mean {summary.mean:,.1f}  {quantiles}  max {summary.max:,} tokens"


def _histogram(title: str, summary: LengthSummary, num_requests: int) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(title, justify="right", no_wrap=True)
    table.add_column("requests", width=_BAR_WIDTH, no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    fullest = max(one.count for one in summary.bins)
    for one in summary.bins:
        label = f"{one.low_tokens:,}–{one.high_tokens:,}" if one.high_tokens > one.low_tokens else f"{one.low_tokens:,}"
        table.add_row(label, bar(one.count, fullest, _BAR_WIDTH), f"{one.count / num_requests:.1%}")
    return table


def bar(value: int, full: int, width: int) -> str:
    """A bar of ``width`` cells at ``full``, drawn in eighths of a cell; anything above zero shows."""
    eighths = max(round(8 * width * value / full), 1) if value else 0
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def spark(values: Sequence[int]) -> str:
    """One character a value, its height in proportion; zero is a blank."""
    top = max(values)
    return "".join(_LEVELS[max(-(-len(_LEVELS) * value // top) - 1, 0)] if value else " " for value in values)

"""Results as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from ..scheduler.batch import Bound
from ..scheduler.policies import POLICIES, policy_options
from ..sim.facts import ROOFLINE
from .grid import policy_label
from .run import Run

ROWS = (
    ("Output throughput", "output_throughput", "tokens/s", 1),
    ("Request throughput", "request_throughput", "requests/s", 2),
    ("Goodput", "request_goodput", "requests/s", 2),
    ("TTFT mean", "mean_ttft_ms", "ms", 1),
    ("TTFT P99", "p99_ttft_ms", "ms", 1),
    ("TPOT mean", "mean_tpot_ms", "ms", 2),
    ("ITL P99", "p99_itl_ms", "ms", 2),
    ("E2E mean", "mean_e2el_ms", "ms", 1),
    ("Queue time mean", "mean_queue_ms", "ms", 1),
    ("Client's gate mean", "mean_gate_ms", "ms", 1),
    ("Client's gate P99", "p99_gate_ms", "ms", 1),
    ("Busy ρ", "load_rho", "of arrivals' span", 2),
    ("Iterations", "num_iterations", "", 0),
    ("Iteration mean", "mean_iteration_ms", "ms", 2),
    ("Running mean", "mean_running", "requests", 1),
    ("Waiting peak", "peak_waiting", "requests", 0),
    ("KV usage peak", "peak_kv_usage", "of the pool", 2),
    ("Preemptions", "num_preemptions", "", 0),
    ("Recomputed tokens", "recomputed_tokens", "", 0),
    ("Padded tokens", "padded_tokens", "", 0),
)
REPLICA_COLUMNS = (
    ("Served", "completed", 0),
    ("Output tok/s", "output_throughput", 0),
    ("TTFT ms", "mean_ttft_ms", 0),
    ("TTFT P99", "p99_ttft_ms", 0),
    ("TPOT ms", "mean_tpot_ms", 2),
    ("Busy share", "busy_share", 2),
    ("KV peak", "peak_kv_usage", 2),
    ("Cached tok", "cached_tokens", 0),
)
_ONLY_IF_ANY = ("padded_tokens", "mean_gate_ms", "p99_gate_ms")
GROWING = 1.5
"""Requests in the system, second half of the steady window over its first, from which on the queue is said to grow."""
LABELS = {metric: f"{label} ({unit})" if unit else label for label, metric, unit, _ in ROWS}
NAMES = {metric: label for label, metric, _, _ in ROWS} | {
    "median_ttft_ms": "TTFT median",
    "p99_tpot_ms": "TPOT P99",
    "mean_itl_ms": "ITL mean",
    "p99_e2el_ms": "E2E P99",
}


def print_run(run: Run, path: Path | None) -> None:
    """A replay's metrics."""
    scenario, metrics = run.scenario, run.metrics
    table = make_table("Metric", "Value", "Unit", title=_title(run))
    for label, name, unit, digits in ROWS:
        if name in metrics and (metrics[name] or name not in _ONLY_IF_ANY):
            table.add_row(label, number(metrics[name], digits), unit)
    console = Console()
    print_table(console, table)
    shares = {bound: metrics[f"bound_{bound.name.lower()}_share"] for bound in Bound}
    named = ", ".join(f"{bound.name.lower()} {share:.0%}" for bound, share in shares.items())
    console.print(
        f"Active bound, share of busy time: {named}. KV pool: {run.num_gpu_blocks} blocks of {scenario.block_size}."
    )
    if scenario.num_replicas > 1:
        print_table(console, _replicas_table(run))
    for remark in _remarks(run):
        console.print(remark, highlight=False)
    if path is not None:
        console.print(f"Wrote {path}")


def _remarks(run: Run) -> Iterator[str]:
    """What must be known to read a run's figures: the window, the client's gate, too many clients, what tables lack, a
    roofline.
    """
    metrics, scenario = run.metrics, run.scenario
    if metrics["steady_requests"]:
        growth = metrics["steady_growth"]
        yield (
            f"Warm-up of {metrics['warmup_cut_s']:,.1f} s and drain of {metrics['drain_s']:,.1f} s cut: "
            f"{metrics['steady_output_throughput']:,.1f} output tokens/s, mean TTFT "
            f"{metrics['steady_mean_ttft_ms']:,.1f} ms over {metrics['steady_requests']:,} requests; "
            f"requests in the system × {number(growth, 2)} from its first half to its second"
            + (": the queue grows, this is no steady state." if growth > GROWING else ".")
        )
    if metrics["mean_gate_ms"] > 0:
        yield (
            f"[yellow]Requests wait {metrics['mean_gate_ms']:,.1f} ms at the client's own gate before they are sent. "
            f"That is no part of TTFT here; a client whose clock starts before its gate would report "
            f"{metrics['mean_gate_ms'] + metrics['mean_ttft_ms']:,.1f} ms.[/]"
        )
    slots = scenario.max_num_seqs * scenario.num_replicas
    if scenario.concurrency is not None and scenario.concurrency > slots:
        yield (
            f"[yellow]{scenario.concurrency} clients share {slots} slots (max_num_seqs): TTFT and E2E here measure "
            f"queueing.[/]"
        )
    for note in run.provenance.get("tables", ()):
        yield f"Operator tables: {escape(note)}."
    if run.provenance.get("cost_model") == ROOFLINE:
        yield (
            f"[yellow]{ROOFLINE.capitalize()}: the data sheet's bandwidth and arithmetic at their peaks, no launch, no "
            f"link, no host. Real servers are slower; only a calibrated profile says by how much.[/]"
        )


def print_comparison(comparison: object) -> None:
    """Errors beside noise, interval and nulls, regret, and where the error comes from."""
    from .render_compare import comparison_parts

    console = Console()
    for part in comparison_parts(comparison):
        if isinstance(part, Table):
            print_table(console, part)
        else:
            console.print(part)


def print_recommendation(recommendation: object) -> None:
    """The sentence, the figures behind it, and the command to copy."""
    from .recommend import Recommendation

    assert isinstance(recommendation, Recommendation)
    table = make_table("Predicted", "Value", "Low", "High", "Unit")
    for label, name, unit, digits in ROWS[:9]:
        if name in recommendation.means:
            ends = (of.get(name, math.nan) for of in (recommendation.low, recommendation.high))
            values = (recommendation.means[name], *ends)
            table.add_row(label, *(number(value, digits) for value in values), unit)
    prompt = "" if recommendation.serve_command.startswith("#") else "[dim]$[/] "
    Console().print(Group(recommendation.sentence, table, prompt + recommendation.serve_command))


def print_policies() -> None:
    """The registered policies: the first paragraph of their docstrings, and their options."""
    table = make_table("Policy", "What it does")
    table.columns[0].no_wrap = True
    for name, policy in POLICIES.items():
        about = " ".join((policy.__doc__ or "").split("\n\n")[0].replace("``", "").split())
        oracle = " [bold](oracle: sees true output lengths)[/]" if policy().is_oracle else ""
        options = policy_options(policy).items()
        given = "".join(f"\n[dim]{name}:{option}=… ({kind}, {value})[/]" for option, (kind, value) in options)
        table.add_row(name, about + oracle + given)
    Console().print(table)


def number(value: float, digits: int) -> str:
    """A number for reading."""
    return "–" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def _title(run: Run) -> str:
    scenario = run.scenario
    source = f" ({ROOFLINE})" if run.provenance.get("cost_model") == ROOFLINE else ""
    return (
        f"{run.kind.capitalize()}{source}: {scenario.model}, {policy_label(scenario.policy)}, "
        f"max_num_seqs {scenario.max_num_seqs}, max_num_batched_tokens {scenario.max_num_batched_tokens}, "
        f"{run.metrics['completed']:,} requests"
    )


def _replicas_table(run: Run) -> Table:
    from .replicas import replica_metrics

    title = f"{run.scenario.num_replicas} replicas, {run.scenario.router.replace('_', ' ')}"
    table = make_table("Replica", *(head for head, _, _ in REPLICA_COLUMNS), title=title)
    for row in replica_metrics(run):
        table.add_row(f"{row['replica']:.0f}", *(number(row[name], digits) for _, name, digits in REPLICA_COLUMNS))
    return table


def make_table(*heads: str, title: str | None = None) -> Table:
    table = Table(title=title, header_style="dim", box=None, pad_edge=False)
    table.add_column(heads[0])
    for head in heads[1:]:
        table.add_column(head, justify="left" if head in ("Unit", "What it does", "Options") else "right")
    return uncut(table)


def uncut(table: Table) -> Table:
    """``table``, whose cells go on in another line where the terminal is too narrow: rich would cut figures off."""
    for column in table.columns:
        column.overflow = "fold"
    return table


def print_table(console: Console, table: Table) -> None:
    """A table under its title on a line of its own: rich would wrap it to the table's width."""
    if table.title:
        console.print(f"[bold]{table.title}[/]", highlight=False)
        table.title = None
    console.print(table)
    console.print()

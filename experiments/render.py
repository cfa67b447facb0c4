"""Results as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
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

from ..scheduler.batch import Bound
from ..scheduler.policies import POLICIES, policy_options
from ..sim.cost.profile import FitFacts, MemoryFacts, Profile
from ..sim.cost.spread import LEVEL
from ..sim.facts import ROOFLINE
from .grid import Cell, policy_label
from .intervals import over_seeds
from .run import Run
from .sweep import Sweep

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
BUSY_PERCENT = 15.0
"""Repeat noise of a calibration above which its user is warned; a quiet machine shows 5 to 10."""
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


@contextmanager
def calibration_progress() -> Iterator[Callable[[float], None]]:
    """A bar over the share of the time used."""
    columns = (SpinnerColumn(), TextColumn("Measuring iterations"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("calibrate", total=1.0)
        yield lambda share: bar.update(task, completed=share)


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


def print_profile(profile: Profile, path: Path) -> None:
    """A calibration's card."""
    fit = profile.fit
    table = make_table("", "Median", "P90", "Worst", "Bias", title="Error of predicted iteration times, held out (%)")
    for name, error in {"fitted law": fit.held_out, **fit.nulls}.items():
        values = (error.median_percent, error.p90_percent, error.worst_percent, error.bias_percent)
        table.add_row(name.replace("_", " "), *(f"{value:,.1f}" for value in values))
    law = profile.cost_model
    console = Console()
    console.print(
        f"[bold]{profile.model.name}[/] ({profile.model.dtype}) on {profile.device.name}, {profile.device.type}, "
        f"{profile.device.threads} thread{'s' if profile.device.threads > 1 else ''}: {fit.num_batches:,} batches, "
        f"{fit.num_rounds} round{'s' if fit.num_rounds > 1 else ''}, {fit.seconds_measured:.0f} s; repeat noise "
        f"{number(fit.repeat_noise_percent, 1)} %"
    )
    _print_table(console, table)
    console.print(
        f"A step of 1 token takes {law.fixed_s * 1e3:.2f} ms, a decode more {_slope_us(profile):.0f} µs, "
        f"1,000 KV tokens read {law.per_decode_kv_token_s * 1e6:.2f} ms, the host {profile.host_fixed_s * 1e6:.0f} µs."
    )
    fast, slow = (law.factors for law in profile.fast_and_slow)
    console.print(
        f"Intervals at {LEVEL:.0%} let steps of decodes take {fast.decode:.2f} to {slow.decode:.2f} times as long, "
        f"steps with prompts {fast.prefill:.2f} to {slow.prefill:.2f} times."
    )
    if law.capture_sizes:
        console.print(
            f"Decodes alone are replayed at {len(law.capture_sizes)} captured sizes up to {law.capture_sizes[-1]}; "
            f"launched operator by operator, a step takes {law.eager_s * 1e3:.2f} ms more."
        )
    if fit.curve:
        _print_curve(console, fit)
    if profile.memory is not None:
        _print_memory(console, profile.memory)
    if fit.repeat_noise_percent > BUSY_PERCENT:
        console.print(
            f"[yellow]The same batch varied by {fit.repeat_noise_percent:.0f} % from one time to the next: this "
            f"machine was busy, and predictions cannot be better than that. Calibrate again when it is quiet.[/]"
        )
    console.print(f"Wrote {path} (hash {profile.hash()})")


def _print_curve(console: Console, fit: FitFacts) -> None:
    """Error against minutes spent: whether more time would have paid."""
    table = make_table(
        "Minutes", "Batches", "Measurements", "Median", "P90", title="Held-out error had it stopped then (%)"
    )
    for point in fit.curve:
        table.add_row(
            f"{point.minutes:.2f}",
            str(point.num_batches),
            str(point.num_measurements),
            f"{point.median_percent:.1f}",
            f"{point.p90_percent:.1f}",
        )
    _print_table(console, table)


def _print_memory(console: Console, memory: MemoryFacts) -> None:
    console.print(
        f"{memory.num_gpu_blocks:,} KV blocks in {memory.gpu_memory_utilization:.0%} of "
        f"{memory.total_bytes / 1e9:.1f} GB: weights take {memory.weight_bytes / 1e9:.1f} GB, activations at "
        f"{memory.max_num_batched_tokens} tokens {memory.activation_peak_bytes / 1e9:.1f} GB, others "
        f"{memory.other_bytes / 1e9:.1f} GB."
    )


def print_run(run: Run, path: Path | None) -> None:
    """A replay's metrics."""
    scenario, metrics = run.scenario, run.metrics
    table = make_table("Metric", "Value", "Unit", title=_title(run))
    for label, name, unit, digits in ROWS:
        if name in metrics and (metrics[name] or name not in _ONLY_IF_ANY):
            table.add_row(label, number(metrics[name], digits), unit)
    console = Console()
    _print_table(console, table)
    shares = {bound: metrics[f"bound_{bound.name.lower()}_share"] for bound in Bound}
    named = ", ".join(f"{bound.name.lower()} {share:.0%}" for bound, share in shares.items())
    console.print(
        f"Active bound, share of busy time: {named}. KV pool: {run.num_gpu_blocks} blocks of {scenario.block_size}."
    )
    if scenario.num_replicas > 1:
        _print_table(console, _replicas_table(run))
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


def print_sweep(sweep: Sweep) -> None:
    """Where to go from a finished sweep, and its answer."""
    from .recommend import recommend

    console = Console()
    results = sweep.predicted()
    without = [result for result in results if result.status != "ok"]
    measured = {cell: sweep.measured_metrics(cell) for cell in sweep.measured_cells()}
    objective = sweep.spec.objective
    for policy in sweep.spec.policies:
        _print_table(console, _grid_table(sweep, policy, measured))
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


def print_comparison(comparison: object) -> None:
    """Errors beside noise, interval and nulls, regret, and where the error comes from."""
    from .render_compare import comparison_parts

    console = Console()
    for part in comparison_parts(comparison):
        if isinstance(part, Table):
            _print_table(console, part)
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


def print_demo(sweep: Sweep, report: Path) -> None:
    """The demo's ending: the grid, the comparison, where the report is."""
    from .compare import compare

    print_sweep(sweep)
    print_comparison(compare(sweep))
    Console().print(f"[bold]Report:[/] {report}")


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
                values = sorted(run[objective] for run in runs if objective in run)
                text += f" ({number(_median(values), 1)})" if values else ""
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


def _median(ordered: list[float]) -> float:
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _slope_us(profile: Profile) -> float:
    law = profile.cost_model
    slope = law.token_slopes_s[min(2, len(law.token_slopes_s) - 1)]
    return (slope + law.per_decode_s + law.per_sample_s) * 1e6


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


def _print_table(console: Console, table: Table) -> None:
    """A table under its title on a line of its own: rich would wrap it to the table's width."""
    if table.title:
        console.print(f"[bold]{table.title}[/]", highlight=False)
        table.title = None
    console.print(table)
    console.print()

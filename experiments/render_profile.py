"""A calibration as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from ..sim.cost.profile import FitFacts, MemoryFacts, Profile
from ..sim.cost.spread import LEVEL
from .render import make_table, number, print_table

BUSY_PERCENT = 15.0
"""Repeat noise of a calibration above which its user is warned; a quiet machine shows 5 to 10."""


@contextmanager
def calibration_progress() -> Iterator[Callable[[float], None]]:
    """A bar over the share of the time used."""
    columns = (SpinnerColumn(), TextColumn("Measuring iterations"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("calibrate", total=1.0)
        yield lambda share: bar.update(task, completed=share)


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
    print_table(console, table)
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
    print_table(console, table)


def _print_memory(console: Console, memory: MemoryFacts) -> None:
    console.print(
        f"{memory.num_gpu_blocks:,} KV blocks in {memory.gpu_memory_utilization:.0%} of "
        f"{memory.total_bytes / 1e9:.1f} GB: weights take {memory.weight_bytes / 1e9:.1f} GB, activations at "
        f"{memory.max_num_batched_tokens} tokens {memory.activation_peak_bytes / 1e9:.1f} GB, others "
        f"{memory.other_bytes / 1e9:.1f} GB."
    )


def _slope_us(profile: Profile) -> float:
    law = profile.cost_model
    slope = law.token_slopes_s[min(2, len(law.token_slopes_s) - 1)]
    return (slope + law.per_decode_s + law.per_sample_s) * 1e6

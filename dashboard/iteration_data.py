"""The iterations of a run over time: one bin an iteration where they can be told apart, one a pixel where not.

Whatever the bins, an integral over time is kept: the mean of a bin is that of the iterations in it, weighted with the
time each takes of it, and counts add up to the run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..experiments.chrome_trace import occupied_from_s
from ..experiments.run import Run
from ..scheduler.batch import Batch, Bound

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Window = tuple[float, float]
"""Seconds from … to."""
MOST_EXACT = 400
"""Iterations that are drawn one by one; more are drawn by the pixel."""
NUM_PIXELS = 900
BOUNDS = (Bound.MAX_NUM_SEQS, Bound.MAX_NUM_BATCHED_TOKENS, Bound.KV_BLOCKS, Bound.NONE)


@dataclass(frozen=True, slots=True)
class Series:
    """A run's iterations on one replica, as they follow each other in time. All arrays are [iterations]."""

    first: int
    """Number of the first among all iterations of the run."""
    begin_s: FloatArray
    """When each had the server to itself (``occupied_from_s``)."""
    end_s: FloatArray
    step_ms: FloatArray
    """From launch to end."""
    decode_tokens: IntArray
    prefill_tokens: IntArray
    """Tokens of chunks: prompts, and what is computed again after a preemption."""
    running: IntArray
    waiting: IntArray
    kv_percent: FloatArray
    """Blocks in use, of those that can be handed out."""
    preemptions: IntArray
    bound: IntArray

    def __len__(self) -> int:
        return len(self.end_s)

    @property
    def span_s(self) -> Window:
        """From the first launch to the last end."""
        return (float(self.begin_s[0]), float(self.end_s[-1])) if len(self) else (0.0, 0.0)

    def within(self, window: Window) -> slice:
        """The iterations that take some of ``window``."""
        first = int(np.searchsorted(self.end_s, window[0], side="right"))
        stop = int(np.searchsorted(self.begin_s, window[1], side="left"))
        return slice(first, max(first, stop))

    def at(self, iteration: int) -> int:
        """Where iteration ``iteration`` of the run stands here; the nearest one if it ran on another replica."""
        return min(max(iteration - self.first, 0), max(len(self) - 1, 0))


def series(run: Run, replica: int = 0) -> Series:
    """The iterations of one replica."""
    columns = run.records.iterations
    rows = np.flatnonzero(columns["replica"] == replica)
    own = slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0, 0)
    usable = max(run.num_gpu_blocks - 1, 1)
    return Series(
        first=own.start,
        begin_s=occupied_from_s(columns)[own],
        end_s=columns["end_s"][own],
        step_ms=1e3 * (columns["end_s"] - columns["start_s"])[own],
        decode_tokens=columns["num_decodes"][own],
        prefill_tokens=columns["num_prefill_tokens"][own],
        running=columns["num_running"][own],
        waiting=columns["num_waiting"][own],
        kv_percent=100.0 * (1 - columns["num_free_blocks"][own] / usable),
        preemptions=columns["num_preempted"][own],
        bound=columns["bound"][own],
    )


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is drawn: bins that follow each other, each [bins]. A bin without an iteration in it is idle: NaN where
    there is nothing to take a mean of, 0 where idle is a state (nobody runs).
    """

    is_exact: bool
    """One bin an iteration."""
    window: Window
    total: int
    """Iterations in the window."""
    first: IntArray
    """Number of the first iteration of each bin in the run."""
    num_iterations: IntArray
    begin_s: FloatArray
    end_s: FloatArray
    decode_tokens: FloatArray
    """Mean of the iterations in the bin, by time."""
    prefill_tokens: FloatArray
    peak_tokens: FloatArray
    step_ms: FloatArray
    peak_step_ms: FloatArray
    running: FloatArray
    waiting: FloatArray
    kv_percent: FloatArray
    preemptions: FloatArray
    """How many in the bin."""
    bound_share: FloatArray
    """[bins, 4] Share of the bin's time in which each of ``BOUNDS`` held; together with idle time they fill it."""

    def frame(self) -> pd.DataFrame:
        """The figure's data, one row a bin."""
        names = (
            *("first", "num_iterations", "begin_s", "end_s", "decode_tokens", "prefill_tokens", "peak_tokens"),
            *("step_ms", "peak_step_ms", "running", "waiting", "kv_percent", "preemptions"),
        )
        shares = {f"{bound.name.lower()}_share": self.bound_share[:, i] for i, bound in enumerate(BOUNDS)}
        return pd.DataFrame({name: getattr(self, name) for name in names} | shares)


def timeline(all_of: Series, window: Window | None = None, num_pixels: int = NUM_PIXELS) -> Timeline:
    """The iterations of ``window`` (all, if none is given)."""
    window = window or all_of.span_s
    shown = all_of.within(window)
    if shown.stop - shown.start <= MOST_EXACT:
        return _exact(all_of, shown, window)
    return _by_pixel(all_of, shown, np.linspace(*window, num_pixels + 1))


def _exact(all_of: Series, shown: slice, window: Window) -> Timeline:
    tokens = all_of.decode_tokens[shown] + all_of.prefill_tokens[shown]
    step_ms = all_of.step_ms[shown]
    return Timeline(
        is_exact=True,
        window=window,
        total=len(tokens),
        first=all_of.first + np.arange(shown.start, shown.stop),
        num_iterations=np.ones(len(tokens), dtype=np.int64),
        begin_s=all_of.begin_s[shown],
        end_s=all_of.end_s[shown],
        decode_tokens=all_of.decode_tokens[shown].astype(float),
        prefill_tokens=all_of.prefill_tokens[shown].astype(float),
        peak_tokens=tokens.astype(float),
        step_ms=step_ms,
        peak_step_ms=step_ms,
        running=all_of.running[shown].astype(float),
        waiting=all_of.waiting[shown].astype(float),
        kv_percent=all_of.kv_percent[shown],
        preemptions=all_of.preemptions[shown].astype(float),
        bound_share=(all_of.bound[shown, None] == np.array(BOUNDS)).astype(float),
    )


def _by_pixel(all_of: Series, shown: slice, edges_s: FloatArray) -> Timeline:
    begin_s, end_s = all_of.begin_s[shown], all_of.end_s[shown]
    busy = _Integral(begin_s, end_s, edges_s)
    width_s = np.diff(edges_s)
    busy_s = busy.over(np.ones(len(end_s)))

    def mean(values: NDArray[np.generic]) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(busy_s > 0, busy.over(values[shown].astype(float)) / busy_s, np.nan)

    def state(values: NDArray[np.generic]) -> FloatArray:
        return busy.over(values[shown].astype(float)) / width_s

    low = np.searchsorted(end_s, edges_s[:-1], side="right")
    high = np.maximum(np.searchsorted(begin_s, edges_s[1:], side="left"), low)
    tokens = all_of.decode_tokens[shown] + all_of.prefill_tokens[shown]
    starts_in = np.clip(np.searchsorted(edges_s, begin_s, side="right") - 1, 0, len(width_s) - 1)
    return Timeline(
        is_exact=False,
        window=(float(edges_s[0]), float(edges_s[-1])),
        total=len(end_s),
        first=all_of.first + shown.start + np.minimum(low, len(end_s) - 1),
        num_iterations=high - low,
        begin_s=edges_s[:-1],
        end_s=edges_s[1:],
        decode_tokens=mean(all_of.decode_tokens),
        prefill_tokens=mean(all_of.prefill_tokens),
        peak_tokens=_peaks(tokens.astype(float), low, high),
        step_ms=mean(all_of.step_ms),
        peak_step_ms=_peaks(all_of.step_ms[shown], low, high),
        running=state(all_of.running),
        waiting=state(all_of.waiting),
        kv_percent=state(all_of.kv_percent),
        preemptions=np.bincount(starts_in, all_of.preemptions[shown], minlength=len(width_s)).astype(float),
        bound_share=np.column_stack([state(all_of.bound == bound) for bound in BOUNDS]),
    )


class _Integral:
    """Integrals over bins of what is constant during each iteration and 0 between them."""

    def __init__(self, begin_s: FloatArray, end_s: FloatArray, edges_s: FloatArray) -> None:
        self._knots_s = np.column_stack((begin_s, end_s)).ravel()
        self._lengths_s = end_s - begin_s
        self._edges_s = edges_s

    def over(self, values: FloatArray) -> FloatArray:
        """[bins]"""
        sums = np.concatenate((np.zeros(1), np.cumsum(values * self._lengths_s)))
        at_knots = np.column_stack((sums[:-1], sums[1:])).ravel()
        return np.diff(np.interp(self._edges_s, self._knots_s, at_knots))


def _peaks(values: FloatArray, low: IntArray, high: IntArray) -> FloatArray:
    """The largest of ``values[low:high]`` of each bin; NaN where there is none."""
    some = high > low
    if not some.any():
        return np.full(len(low), np.nan)
    padded = np.append(values, -np.inf)
    pairs = np.column_stack((low[some], high[some])).ravel()
    peaks = np.full(len(low), np.nan)
    peaks[some] = np.maximum.reduceat(padded, pairs)[::2]
    return peaks


@dataclass(frozen=True, slots=True)
class ChunkBars:
    """Chunks of the iterations of an exact timeline, each stacked on what its iteration served before; [chunks]."""

    bin: IntArray
    """Index into the timeline's bins."""
    request: IntArray
    """The request's row in the trace."""
    base_tokens: IntArray
    num_tokens: IntArray
    start: IntArray
    """Tokens of the request that were computed before."""


def chunk_bars(found: Sequence[Batch]) -> ChunkBars:
    """The chunks of ``found``, the batches of a timeline's bins."""
    rows: list[tuple[int, int, int, int, int]] = []
    for i, batch in enumerate(found):
        base = batch.num_decodes
        for chunk in batch.chunks:
            if not chunk.is_decode:
                rows.append((i, chunk.request.index, base, chunk.num_tokens, chunk.start))
                base += chunk.num_tokens
    return ChunkBars(*np.array(rows, dtype=np.int64).reshape(-1, 5).T)


def preempted_requests(found: Sequence[Batch]) -> list[str]:
    """Who was preempted in each of ``found``, in words; empty where nobody was."""
    return [", ".join(f"request {request.index}" for request in batch.preempted) for batch in found]


def zoomed(window: Window, span: Window, factor: float) -> Window | None:
    """``window`` grown by ``factor`` around its middle, within ``span``; None if that is all there is."""
    middle, half = (window[0] + window[1]) / 2, factor * (window[1] - window[0]) / 2
    low, high = max(middle - half, span[0]), min(middle + half, span[1])
    return None if low <= span[0] and high >= span[1] else (low, high)


def shifted(window: Window, span: Window, share: float) -> Window:
    """``window`` moved by a ``share`` of its width, within ``span``."""
    width = window[1] - window[0]
    by = min(max(share * width, span[0] - window[0]), span[1] - window[1])
    return window[0] + by, window[1] + by


def around(all_of: Series, iteration: int, num_iterations: int = 80) -> Window:
    """The time of ``num_iterations`` iterations around one of them."""
    middle = all_of.at(iteration)
    first = max(min(middle - num_iterations // 2, len(all_of) - num_iterations), 0)
    last = min(first + num_iterations, len(all_of)) - 1
    return float(all_of.begin_s[first]), float(all_of.end_s[last])

"""Rows of iterations as they come: one a step, and one a steady stretch, which is written out in full only in bulk."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
CHUNK_ROWS = 16_384

ITERATION_TIMES = ("start_s", "end_s", "host_s", "device_s")
ITERATION_COUNTS = (
    "num_tokens",
    "num_seqs",
    "num_running",
    "num_waiting",
    "num_decodes",
    "num_decode_kv_tokens",
    "num_prefills",
    "num_prefill_tokens",
    "prefill_attention_work",
    "num_samples",
    "num_padded_tokens",
    "num_padded_rows",
    "num_padded_decodes",
    "num_padded_kv_tokens",
    "padded_attention_work",
    "num_blocks_swapped",
    "num_preempted",
    "num_recomputed_tokens",
    "num_cached_tokens",
    "num_free_blocks",
    "bound",
    "previous_tick",
    "num_itl",
)
"""``previous_tick`` is the iteration in which the ``num_itl`` decodes of this one got their last token."""
RECORDED = ITERATION_TIMES + ITERATION_COUNTS
_START, _END, _, _DEVICE = range(4)
_DECODES, _KV_TOKENS, _FREE, _TICK = (
    RECORDED.index(name) for name in ("num_decodes", "num_decode_kv_tokens", "num_free_blocks", "previous_tick")
)


class IterationRows:
    """Collects rows of ``RECORDED`` and gives them out as one table."""

    def __init__(self) -> None:
        self.steps = array("d")
        """``RECORDED`` of one step or stretch after another; may be extended."""
        self._stretches: list[tuple[int, int]] = []  # (place in steps, number of iterations)
        self._ends_s: list[float] = []
        self._devices_s: list[float] = []
        self._free_blocks: list[int] = []

    def stretch(
        self, first: tuple[float, ...], ends_s: Iterable[float], devices_s: Iterable[float], free_blocks: list[int]
    ) -> None:
        """As many iterations as ``free_blocks`` has, each starting where the one before ended, with ``num_decodes`` KV
        tokens more and one more ``previous_tick``; ``first`` is the row of the first.
        """
        count = len(free_blocks)
        self._stretches.append((len(self.steps) // len(RECORDED), count))
        self.steps.extend(first)
        self._ends_s.extend(ends_s)
        self._devices_s.extend(devices_s)
        self._free_blocks.extend(free_blocks)

    def take(self) -> FloatArray:
        """[iterations, columns] Everything collected; then it starts anew."""
        table = np.frombuffer(self.steps, dtype=np.float64).reshape(-1, len(RECORDED))
        if self._stretches:
            table = self._written_out(table)
        self.steps = array("d")  # the table may keep the old one
        for column in (self._stretches, self._ends_s, self._devices_s, self._free_blocks):
            column.clear()
        return table

    def _written_out(self, steps: FloatArray) -> FloatArray:
        places, lengths = np.array(self._stretches, dtype=np.int64).T
        repeats = np.ones(len(steps), dtype=np.int64)
        repeats[places] = lengths
        table = np.repeat(steps, repeats, axis=0)
        firsts = (np.cumsum(repeats) - repeats)[places]
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = np.repeat(firsts, lengths) + offsets
        table[rows, _END] = self._ends_s
        table[rows, _DEVICE] = self._devices_s
        table[rows, _FREE] = self._free_blocks
        table[rows, _KV_TOKENS] += offsets * table[rows, _DECODES]
        table[rows, _TICK] += offsets
        later = rows[offsets > 0]
        table[later, _START] = table[later - 1, _END]
        return table

"""Rows of iterations as they come: one a step, and one a steady stretch, which is written out in full only in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

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
FEW_HAVE = (
    "num_padded_tokens",
    "num_padded_rows",
    "num_padded_decodes",
    "num_padded_kv_tokens",
    "padded_attention_work",
    "num_blocks_swapped",
    "num_preempted",
    "num_recomputed_tokens",
    "num_cached_tokens",
)
"""What is 0 in nearly every iteration."""
_SUMS = ("num_tokens", "num_seqs")
PACKED = tuple(name for name in RECORDED if name not in FEW_HAVE + _SUMS)
pack = Struct(f"{len(PACKED)}d").pack
"""``PACKED`` of one iteration as bytes: a third of what appending to an array takes."""
_PACKED_AT = [RECORDED.index(name) for name in PACKED]
_FEW_AT = [RECORDED.index(name) for name in FEW_HAVE]
_ROW_BYTES = 8 * len(PACKED)
_START, _END, _, _DEVICE = range(4)
_TOKENS, _SEQS, _DECODES, _KV_TOKENS, _PREFILLS, _PREFILL_TOKENS, _FREE, _TICK, _WAITING = (
    RECORDED.index(name)
    for name in (
        "num_tokens",
        "num_seqs",
        "num_decodes",
        "num_decode_kv_tokens",
        "num_prefills",
        "num_prefill_tokens",
        "num_free_blocks",
        "previous_tick",
        "num_waiting",
    )
)


class IterationRows:
    """Collects rows of ``RECORDED`` and gives them out as one table."""

    def __init__(self) -> None:
        self.steps = bytearray()
        """``pack(...)`` of one step or stretch after another; may be extended."""
        self._few: list[tuple[float, ...]] = []  # (place in steps, *FEW_HAVE)
        self._stretches: list[tuple[int, int]] = []  # (place in steps, number of iterations)
        self._ends_s: list[float] = []
        self._devices_s: list[float] = []
        self._free_blocks: list[int] = []
        self._joined: list[int] = []  # place among the iterations of all stretches

    def few(self, values: tuple[float, ...]) -> None:
        """``FEW_HAVE`` of the step that comes next."""
        self._few.append((len(self.steps) // _ROW_BYTES, *values))

    def stretch(
        self,
        first: bytes,
        ends_s: Iterable[float],
        devices_s: Iterable[float],
        free_blocks: list[int],
        joined: Sequence[int] = (),
    ) -> None:
        """As many iterations as ``free_blocks`` has, each starting where the one before ended, with ``num_decodes`` KV
        tokens more and one more ``previous_tick``; ``first`` is the first one's row, packed. From each of ``joined`` on
        one more waits.
        """
        count = len(free_blocks)
        if joined:
            at = len(self._free_blocks)
            self._joined += [at + step for step in joined if step < count]
        self._stretches.append((len(self.steps) // _ROW_BYTES, count))
        self.steps += first
        self._ends_s.extend(ends_s)
        self._devices_s.extend(devices_s)
        self._free_blocks.extend(free_blocks)

    def take(self) -> FloatArray:
        """[iterations, ``RECORDED``] Everything collected; then it starts anew."""
        packed = np.frombuffer(self.steps, dtype=np.float64).reshape(-1, len(PACKED))
        table = np.zeros((len(packed), len(RECORDED)))
        table[:, _PACKED_AT] = packed
        if self._few:
            few = np.array(self._few, dtype=np.float64)
            table[few[:, :1].astype(np.int64), _FEW_AT] = few[:, 1:]
        table[:, _TOKENS] = table[:, _DECODES] + table[:, _PREFILL_TOKENS]
        table[:, _SEQS] = table[:, _DECODES] + table[:, _PREFILLS]
        if self._stretches:
            table = self._written_out(table)
        self.steps = bytearray()
        for column in (self._few, self._stretches, self._ends_s, self._devices_s, self._free_blocks, self._joined):
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
        if self._joined:
            more = np.cumsum(np.bincount(self._joined, minlength=len(rows)))
            before = np.concatenate(([0], more))[np.cumsum(lengths) - lengths]
            table[rows, _WAITING] += more - np.repeat(before, lengths)
        later = rows[offsets > 0]
        table[later, _START] = table[later - 1, _END]
        return table

"""Rows of iterations as they come: one a step, and one a steady stretch, which is written out in full only in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
_ROW_BYTES = 8 * len(PACKED)
FLOATS = frozenset((*ITERATION_TIMES, "prefill_attention_work", "padded_attention_work"))
"""Columns that are no whole numbers."""


def kind_of(name: str) -> type[np.float64 | np.int64]:
    """The type of a column of iterations."""
    return np.float64 if name in FLOATS else np.int64


class IterationRows:
    """Collects rows of ``RECORDED`` and gives them out as columns."""

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

    def take(self) -> dict[str, NDArray[Any]]:
        """[iterations] each of ``RECORDED``, of everything collected; then it starts anew."""
        packed = np.frombuffer(self.steps, dtype=np.float64).reshape(-1, len(PACKED)).T
        columns: dict[str, NDArray[Any]] = {
            name: values.astype(kind_of(name)) for name, values in zip(PACKED, packed, strict=True)
        }
        places = np.arange(packed.shape[1])
        if self._stretches:
            columns, places = self._written_out(columns)
        few = np.array(self._few, dtype=np.float64).reshape(-1, 1 + len(FEW_HAVE)).T
        at = places[few[0].astype(np.int64)]
        for name, values in zip(FEW_HAVE, few[1:], strict=True):
            columns[name] = np.zeros(len(columns["end_s"]), dtype=kind_of(name))
            columns[name][at] = values
        columns["num_tokens"] = columns["num_decodes"] + columns["num_prefill_tokens"]
        columns["num_seqs"] = columns["num_decodes"] + columns["num_prefills"]
        self.steps = bytearray()
        for column in (self._few, self._stretches, self._ends_s, self._devices_s, self._free_blocks, self._joined):
            column.clear()
        return {name: columns[name] for name in RECORDED}

    def _written_out(self, steps: dict[str, NDArray[Any]]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Stretches as the iterations they stand for; with where each step is then (of a stretch the first)."""
        places, lengths = np.array(self._stretches, dtype=np.int64).T
        repeats = np.ones(len(steps["end_s"]), dtype=np.int64)
        repeats[places] = lengths
        columns = {name: np.repeat(values, repeats) for name, values in steps.items()}
        now_at = np.cumsum(repeats) - repeats
        firsts = now_at[places]
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = np.repeat(firsts, lengths) + offsets
        columns["end_s"][rows] = self._ends_s
        columns["device_s"][rows] = self._devices_s
        columns["num_free_blocks"][rows] = self._free_blocks
        columns["num_decode_kv_tokens"][rows] += offsets * columns["num_decodes"][rows]
        columns["previous_tick"][rows] += offsets
        if self._joined:
            more = np.cumsum(np.bincount(self._joined, minlength=len(rows)))
            before = np.concatenate(([0], more))[np.cumsum(lengths) - lengths]
            columns["num_waiting"][rows] += more - np.repeat(before, lengths)
        later = rows[offsets > 0]
        columns["start_s"][later] = columns["end_s"][later - 1]
        return columns, now_at

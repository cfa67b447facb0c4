"""Rows of a trace file as they are read, checked one by one so that an error names its line."""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING

import numpy as np

from .columns import MAX_TOKENS
from .errors import TraceError, quoted
from .trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

    from .columns import FloatArray, IntArray

_MOST_DIGITS = 18
_WHOLE_NUMBER = re.compile(rf"\+?(\d{{1,{_MOST_DIGITS}}})(?:\.0*)?", re.ASCII)


DROP_ZERO_OUTPUT = "remove the row or read with drop_zero_output=True (batchtwin … --set trace.drop_zero_output=true)"


class Rows:
    """Collects the rows of one file; ``ticks_per_s`` is the unit of its timestamps.

    Rows must come in order of time, unless ``sort`` asks for a stable sort at the end. A row with a zero output is an
    error, unless ``drop_zero_output`` asks to leave it out.
    """

    def __init__(self, path: Path, ticks_per_s: int, *, sort: bool, drop_zero_output: bool) -> None:
        self._path = path
        self._ticks_per_s = ticks_per_s
        self._sort = sort
        self._drop_zero_output = drop_zero_output
        self._ticks: array[float] = array("d")
        self._prompt_tokens = array("q")
        self._output_tokens = array("q")
        self._blocks: list[IntArray] = []
        self._predicted_tokens = array("q")
        self._line = 0

    def add(self, line: int, ticks: float, prompt_tokens: int, output_tokens: int) -> bool:
        """Take a row; False if it was dropped."""
        if output_tokens == 0 and self._drop_zero_output:
            return False
        self._check_length(line, "prompt", prompt_tokens, "remove the row")
        self._check_length(line, "output", output_tokens, DROP_ZERO_OUTPUT)
        if self._ticks and ticks < self._ticks[-1] and not self._sort:
            raise TraceError.at(
                self._path,
                line,
                f"arrives before the row above it (line {self._line}); sort the file by time or read with sort=True "
                f"(batchtwin … --set trace.sort=true)",
            )
        self._ticks.append(ticks)
        self._prompt_tokens.append(prompt_tokens)
        self._output_tokens.append(output_tokens)
        self._line = line
        return True

    def add_all(self, ticks: FloatArray, prompt_tokens: IntArray, output_tokens: IntArray) -> None:
        """Take all rows of a file whose values have been checked."""
        self._ticks.frombytes(ticks.tobytes())
        self._prompt_tokens.frombytes(prompt_tokens.tobytes())
        self._output_tokens.frombytes(output_tokens.tobytes())

    def add_blocks(self, ids: IntArray) -> None:
        """The prefix blocks of the row just taken."""
        self._blocks.append(ids)

    def add_prediction(self, line: int, output_tokens: int) -> None:
        """What somebody predicted of the output length of the row just taken."""
        self._check_length(line, "predicted output", output_tokens, "correct the row")
        self._predicted_tokens.append(output_tokens)

    def _check_length(self, line: int, what: str, tokens: int, remedy: str) -> None:
        if tokens == 0:
            raise TraceError.at(self._path, line, f"a request with 0 {what} tokens cannot be replayed; {remedy}")
        if not 0 < tokens <= MAX_TOKENS:
            raise TraceError.at(
                self._path,
                line,
                f"its {what} of {tokens:,} tokens is not between 1 and {MAX_TOKENS:,}; correct the row",
            )

    def trace(self, source: str, *, hash_block_tokens: int = 0) -> Trace:
        """All rows as a trace whose first request arrives at 0."""
        ticks = np.array(self._ticks, dtype=np.float64)
        if not ticks.size:
            raise TraceError(f"{self._path} holds no requests; it needs at least one row")
        order = np.argsort(ticks, kind="stable")
        return Trace(
            name=self._path.stem,
            arrival_s=(ticks[order] - ticks[order[0]]) / self._ticks_per_s,
            num_prompt_tokens=np.array(self._prompt_tokens, dtype=np.int64)[order],
            output_len=np.array(self._output_tokens, dtype=np.int64)[order],
            predicted_output_len=np.array(self._predicted_tokens, dtype=np.int64)[order]
            if self._predicted_tokens
            else None,
            prompt_blocks=tuple(self._blocks[row] for row in order.tolist()) if hash_block_tokens else None,
            hash_block_tokens=hash_block_tokens or 512,
            source=source,
        )


def whole_number(path: Path, line: int, column: str, text: str) -> int:
    """A length as a CSV file writes it: digits, perhaps with an empty fraction (``374.0``)."""
    if text.isdigit() and text.isascii() and len(text) <= _MOST_DIGITS:
        return int(text)
    found = _WHOLE_NUMBER.fullmatch(text.strip())
    if found is None:
        raise TraceError.at(
            path, line, f"{column} is {quoted(text)} where a whole number of tokens is needed; correct the row"
        )
    return int(found[1])

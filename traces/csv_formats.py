"""The two CSV formats: Azure LLM inference traces and Vidur traces."""

from __future__ import annotations

import re
import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from .columns import MAX_TOKENS
from .errors import TraceError, quoted
from .lines import csv_rows, read_head, text_lines
from .rows import whole_number

if TYPE_CHECKING:
    from pathlib import Path

    from .columns import FloatArray, IntArray
    from .rows import Rows

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
VIDUR_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
PREDICTED_COLUMN = "predicted_decode_tokens"
"""Ours: a Vidur trace may say what somebody predicted of each output length."""

NS_PER_S = 1_000_000_000
LATEST_ARRIVAL_S = 1e11

_DATE_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_SECONDS = re.compile(r"\+?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_azure(path: Path, rows: Rows) -> None:
    """``TIMESTAMP,ContextTokens,GeneratedTokens``; ticks are nanoseconds since the first row, so none is rounded."""
    first_ns: int | None = None
    _, prompt_column, output_column = AZURE_COLUMNS
    for line, (timestamp, prompt, output) in csv_rows(path, AZURE_COLUMNS):
        now_ns = _nanoseconds(path, line, timestamp)
        first_ns = now_ns if first_ns is None else first_ns
        prompt_tokens = whole_number(path, line, prompt_column, prompt)
        rows.add(line, now_ns - first_ns, prompt_tokens, whole_number(path, line, output_column, output))


def _nanoseconds(path: Path, line: int, text: str) -> int:
    """Since 1970. The standard library keeps six fractional digits, the trace has seven: the fraction is read apart."""
    found = _DATE_TIME.fullmatch(text.strip())
    if found is None:
        raise _no_time(path, line, text)
    seconds, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(seconds + (zone or "Z")) - _EPOCH
    except (ValueError, OverflowError):
        raise _no_time(path, line, text) from None
    return (moment.days * 86_400 + moment.seconds) * NS_PER_S + int((fraction or "0").ljust(9, "0"))


def _no_time(path: Path, line: int, text: str) -> TraceError:
    return TraceError.at(
        path, line, f"TIMESTAMP is {quoted(text)}, not a time like 2023-11-16 18:15:46.6805900; correct the row"
    )


def read_vidur(path: Path, rows: Rows) -> None:
    """``arrived_at,num_prefill_tokens,num_decode_tokens``, perhaps ``predicted_decode_tokens``; ticks are seconds."""
    _, prompt_column, output_column = VIDUR_COLUMNS
    header = read_head(path).decode("utf-8", errors="replace").lstrip().partition("\n")[0]
    names = [name.strip() for name in header.split(",")]
    if names == list(VIDUR_COLUMNS) and (table := _plain_vidur(path)) is not None:
        rows.add_all(*table)
        return
    has_predictions = PREDICTED_COLUMN in names
    columns = (*VIDUR_COLUMNS, PREDICTED_COLUMN) if has_predictions else VIDUR_COLUMNS
    for line, (arrived_at, prompt, output, *predicted) in csv_rows(path, columns):
        prompt_tokens = whole_number(path, line, prompt_column, prompt)
        output_tokens = whole_number(path, line, output_column, output)
        if rows.add(line, _seconds(path, line, arrived_at), prompt_tokens, output_tokens) and predicted:
            rows.add_prediction(line, whole_number(path, line, PREDICTED_COLUMN, predicted[0]))


def _plain_vidur(path: Path) -> tuple[FloatArray, IntArray, IntArray] | None:
    """The three columns of a file that is as it should be, in a fifth of the time that it takes to check row by row;
    None if anything is unusual: reading it row by row then says what, and where.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lines = text_lines(path)
            table = np.loadtxt(lines, dtype="f8,i8,i8", delimiter=",", comments=None, skiprows=1, ndmin=1)
    except (ValueError, OverflowError, Warning):
        return None
    seconds, prompt, output = (table[name] for name in ("f0", "f1", "f2"))
    in_order = bool((np.diff(seconds) >= 0).all()) and seconds[0] >= 0 and seconds[-1] < LATEST_ARRIVAL_S
    lengths = (prompt.min(), output.min(), MAX_TOKENS + 1 - prompt.max(), MAX_TOKENS + 1 - output.max())
    return (seconds, prompt, output) if in_order and min(lengths) > 0 else None


def _seconds(path: Path, line: int, text: str) -> float:
    seconds = float(text) if _SECONDS.fullmatch(text.strip()) else LATEST_ARRIVAL_S
    if seconds >= LATEST_ARRIVAL_S:
        raise TraceError.at(
            path, line, f"arrived_at is {quoted(text)}, not a number of seconds from 0 on; correct the row"
        )
    return seconds

"""Mooncake traces: JSON lines with the prompt's prefix blocks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import MAX_TOKENS, IntArray
from .errors import TraceError, quoted
from .lines import text_lines

if TYPE_CHECKING:
    from pathlib import Path

    from .rows import Rows

MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
MOONCAKE_BLOCK_TOKENS = 512
MS_PER_S = 1_000
_LATEST_ARRIVAL_MS = 1e14
_LARGEST_ID = 2**63 - 1


def read_mooncake(path: Path, rows: Rows, hash_block_tokens: int) -> None:
    """``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``; ticks are milliseconds."""
    for line, text in enumerate(text_lines(path), start=1):
        if text.isspace():
            continue
        record = _record(path, line, text)
        prompt_tokens = _length(path, line, record, "input_length")
        output_tokens = _length(path, line, record, "output_length")
        ids = _block_ids(path, line, record["hash_ids"])
        if rows.add(line, _milliseconds(path, line, record), prompt_tokens, output_tokens):
            _check_count(path, line, ids.size, prompt_tokens, hash_block_tokens)
            rows.add_blocks(ids)


def _record(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise TraceError.at(path, line, f"{quoted(text.strip())} is not JSON; remove or repair the line") from None
    if not isinstance(record, dict):
        raise TraceError.at(path, line, "is not a JSON object; every line needs one, as Mooncake traces have it")
    missing = [key for key in MOONCAKE_KEYS if key not in record]
    if missing:
        raise TraceError.at(
            path, line, f"lacks the key {' and '.join(missing)}; every line needs {', '.join(MOONCAKE_KEYS)}"
        )
    return record


def _length(path: Path, line: int, record: dict[str, Any], key: str) -> int:
    value = record[key]
    if type(value) is not int or abs(value) > MAX_TOKENS:
        raise TraceError.at(
            path, line, f"{key} is {_shown(value)} where a whole number of tokens is needed; correct the line"
        )
    return value


def _shown(value: Any) -> str:
    """As the file writes it: null and true are no words of Python's."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__}"
    return json.dumps(value) if value is None or isinstance(value, bool) else quoted(str(value))


def _milliseconds(path: Path, line: int, record: dict[str, Any]) -> float:
    value = record["timestamp"]
    if type(value) not in (int, float) or not 0 <= value < _LATEST_ARRIVAL_MS:
        raise TraceError.at(
            path, line, f"timestamp is {_shown(value)}, not a number of milliseconds from 0 on; correct the line"
        )
    return float(value)


def _block_ids(path: Path, line: int, ids: Any) -> IntArray:
    numbers = isinstance(ids, list) and set(map(type, ids)) <= {int}  # JSON's true is an int to isinstance
    if not numbers or (ids and not 0 <= min(ids) <= max(ids) <= _LARGEST_ID):
        raise TraceError.at(path, line, "hash_ids is not a list of whole numbers from 0 on; correct the line")
    return np.array(ids, dtype=np.int64)


def _check_count(path: Path, line: int, count: int, prompt_tokens: int, block_tokens: int) -> None:
    needed = -(-prompt_tokens // block_tokens)
    if count != needed:
        raise TraceError.at(
            path,
            line,
            f"has {count} hash_ids where a prompt of {prompt_tokens:,} tokens has {needed} blocks of {block_tokens}; "
            "if the file uses another block size, give it as hash_block_tokens",
        )

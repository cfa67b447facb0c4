"""Reading a trace file, whatever its name: the format is told from the first line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .csv_formats import AZURE_COLUMNS, NS_PER_S, VIDUR_COLUMNS, read_azure, read_vidur
from .errors import TraceError, quoted
from .lines import HEAD_BYTES, columns_of, read_head
from .mooncake import MOONCAKE_BLOCK_TOKENS, MOONCAKE_KEYS, MS_PER_S, read_mooncake
from .rows import Rows

if TYPE_CHECKING:
    from .trace import Trace

Format = Literal["azure", "mooncake", "vidur"]

_KNOWN = (
    f"known are Azure CSV ({','.join(AZURE_COLUMNS)}), Vidur CSV ({','.join(VIDUR_COLUMNS)}) "
    f"and Mooncake JSON lines ({', '.join(MOONCAKE_KEYS)})"
)
_MAGIC = {
    b"\x1f\x8b": "compressed (gzip): unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed (zstd): unpack it first",
    b"PK\x03\x04": "an archive (zip): unpack it first",
    b"PAR1": "a Parquet file: write it as CSV first",
    b"\xff\xfe": "text in UTF-16: save it as UTF-8",
    b"\xfe\xff": "text in UTF-16: save it as UTF-8",
}


def read_trace(
    path: str | Path,
    *,
    sort: bool = False,
    drop_zero_output: bool = False,
    hash_block_tokens: int = MOONCAKE_BLOCK_TOKENS,
) -> Trace:
    """The trace in a file: Azure CSV, Vidur CSV or Mooncake JSON lines (with its prefix blocks).

    Only differences between timestamps count: the first arrival is 0. Rows out of order and rows with a zero output
    are errors unless ``sort`` or ``drop_zero_output`` says what to do. Raises ``TraceError`` naming file and line.
    """
    path = Path(path)
    if hash_block_tokens < 1:
        raise TraceError(f"a hash block holds 1 token or more, not {hash_block_tokens}")
    match sniff(path):
        case "azure":
            rows = Rows(path, NS_PER_S, sort=sort, drop_zero_output=drop_zero_output)
            read_azure(path, rows)
            return rows.trace(f"Azure LLM inference CSV {path.name}")
        case "vidur":
            rows = Rows(path, 1, sort=sort, drop_zero_output=drop_zero_output)
            read_vidur(path, rows)
            return rows.trace(f"Vidur CSV {path.name}")
        case "mooncake":
            rows = Rows(path, MS_PER_S, sort=sort, drop_zero_output=drop_zero_output)
            read_mooncake(path, rows, hash_block_tokens)
            return rows.trace(f"Mooncake JSON lines {path.name}", hash_block_tokens=hash_block_tokens)


def sniff(path: Path) -> Format:
    """Which format a file has, told from its head alone (64 KiB); anything else is a ``TraceError``."""
    head = read_head(path)
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            raise TraceError(f"{path} is {what}; {_KNOWN}")
    if b"\0" in head:
        raise TraceError(f"{path} is a binary file, not a trace; {_KNOWN}")
    above, first, complete = _first_line(head)
    if not first:
        what = "is empty" if len(head) < HEAD_BYTES else f"has nothing but blanks in its first {HEAD_BYTES:,} bytes"
        raise TraceError(f"{path} {what}; {_KNOWN}")
    if first.startswith("{"):
        return _json_format(path, above + 1, first, complete=complete)
    return _csv_format(path, above + 1, first)


def _first_line(head: bytes) -> tuple[int, str, bool]:
    """Blank lines above, the first line that is not blank, and whether all of it is in the head."""
    text = head.decode("utf-8", errors="replace")
    body = text.lstrip()
    above = text[: len(text) - len(body)].count("\n")
    line, newline, _ = body.partition("\n")
    return above, line.strip(), bool(newline) or len(head) < HEAD_BYTES


def _json_format(path: Path, line: int, first: str, *, complete: bool) -> Format:
    """A line too long for the head is left to the reader, which checks every key of every line."""
    if not complete:
        return "mooncake"
    try:
        keys = json.loads(first).keys()
    except (ValueError, RecursionError):
        raise TraceError.at(path, line, f"{quoted(first)} is neither CSV nor a line of JSON; {_KNOWN}") from None
    missing = [key for key in MOONCAKE_KEYS if key not in keys]
    if "chat_id" in keys or len(missing) == len(MOONCAKE_KEYS):
        raise TraceError.at(
            path, line, f"JSON lines with the keys {quoted(', '.join(keys))} are not a known trace; {_KNOWN}"
        )
    if missing:
        raise TraceError.at(path, line, f"lacks the key {' and '.join(missing)}; {_KNOWN}")
    return "mooncake"


def _csv_format(path: Path, line: int, header: str) -> Format:
    names = [name.strip().strip('"') for name in header.split(",")]
    formats: list[tuple[Format, tuple[str, ...]]] = [("azure", AZURE_COLUMNS), ("vidur", VIDUR_COLUMNS)]
    name, columns = max(formats, key=lambda candidate: len(set(candidate[1]) & set(names)))
    if not set(columns) & set(names):
        raise TraceError.at(path, line, f"{quoted(header)} is not the header of a known trace; {_KNOWN}")
    columns_of(path, line, names, columns)
    return name

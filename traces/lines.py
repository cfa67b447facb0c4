"""Lines of a text file, with memory bounded whatever the file holds."""

from __future__ import annotations

import csv
from operator import itemgetter
from typing import TYPE_CHECKING

from .errors import TraceError, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

HEAD_BYTES = 64 * 1024
LONGEST_LINE_BYTES = 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_head(path: Path) -> bytes:
    """The first ``HEAD_BYTES`` of a file, without a byte order mark."""
    if path.is_dir():
        raise TraceError(f"{path} is a folder; give the trace file in it")
    if path.exists() and not path.is_file():  # to open a pipe would wait for its writer, for ever
        raise TraceError(f"{path} is no regular file; give the trace file itself")
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES).removeprefix(_BYTE_ORDER_MARK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TraceError(f"{quoted(str(path))} cannot be read ({reason}); check the path") from error


def text_lines(path: Path) -> Iterator[str]:
    """Lines with their ends; bytes that are no UTF-8 become U+FFFD, so that whoever parses the line reports it."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(LONGEST_LINE_BYTES):
            number += 1
            if len(raw) == LONGEST_LINE_BYTES and not raw.endswith(b"\n"):
                raise TraceError.at(path, number, f"a line longer than {LONGEST_LINE_BYTES:,} bytes is no trace row")
            if number == 1:
                raw = raw.removeprefix(_BYTE_ORDER_MARK)
            yield raw.decode("utf-8", errors="replace")


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """The named columns (two or more) of every record below the header, with the line (from 1) where it starts.

    Blank lines are passed over.
    """
    records = csv.reader(text_lines(path), strict=True)
    line, width, wanted = 1, 0, None
    try:
        for record in records:
            if not record or (len(record) == 1 and not record[0].strip()):
                pass
            elif wanted is None:
                width, wanted = len(record), itemgetter(*columns_of(path, line, record, columns))
            elif len(record) != width:
                raise TraceError.at(path, line, f"has {len(record)} fields where the header has {width}; complete it")
            else:
                yield line, wanted(record)
            line = records.line_num + 1
    except csv.Error as error:
        raise TraceError.at(path, line, f"is not CSV ({error}); remove or repair the line") from error


def columns_of(path: Path, line: int, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Where the named columns stand in the header."""
    names = [name.strip() for name in header]
    missing = [column for column in columns if column not in names]
    if missing:
        raise TraceError.at(
            path, line, f"the header lacks the column {' and '.join(missing)}; this format needs {','.join(columns)}"
        )
    return [names.index(column) for column in columns]

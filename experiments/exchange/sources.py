"""Which files of a folder are results, and the rows in them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

from ..errors import ExperimentError
from .auto_tune import is_auto_tune, read_auto_tune
from .bench_serve import is_bench_record, read_bench_record
from .measured_row import MeasuredRow

KNOWN = "vllm bench serve JSON, a vllm bench sweep folder (or its summary), or auto_tune's result.txt"
MOST_BYTES = 2 << 30


class Found(NamedTuple):
    """What the sources hold."""

    rows: tuple[MeasuredRow, ...]
    left_out: tuple[str, ...]
    """A sentence for everything that looked like a result and could not be used."""


def read_sources(paths: Sequence[str | Path]) -> Found:
    """All rows of files and folders, in the order given, a folder's sorted by path. Raises ``ExperimentError`` if one
    cannot be read or none holds a result.
    """
    rows: list[MeasuredRow] = []
    left_out: list[str] = []
    for path in map(Path, paths):
        for file, name in _files(path):
            for item in _items(file, name):
                (rows if isinstance(item, MeasuredRow) else left_out).append(item)  # type: ignore[arg-type]
    if not rows:
        why = f" ({left_out[0]})" if left_out else ""
        raise ExperimentError(f"{', '.join(map(str, paths))}: no result is in there{why}; known are {KNOWN}.")
    return Found(tuple(rows), tuple(left_out))


def _files(path: Path) -> list[tuple[Path, str]]:
    """A file as it is; of a folder the single runs, or else its summaries, or else every JSON."""
    if not path.is_dir():
        return [(path, path.name)]
    for pattern in ("run=*.json", "summary.json", "summary.csv"):
        if found := sorted(path.rglob(pattern)):
            break
    else:
        found = [
            file for file in sorted(path.rglob("*.json")) if not file.name.endswith((".failure.json", "warmup.json"))
        ]
    found += sorted(path.rglob("result.txt"))
    return [(file, file.relative_to(path).as_posix()) for file in found]


def _items(file: Path, name: str) -> Iterator[MeasuredRow | str]:
    text = _text(file)
    head = text.lstrip()[:1]
    if head in ("{", "["):
        yield from _of_records(_records(text), name)
    elif is_auto_tune(text):
        yield from read_auto_tune(text, name)
    elif "request_throughput" in text.partition("\n")[0]:
        try:
            yield from _of_records(csv.DictReader(io.StringIO(text)), name)
        except csv.Error as error:
            yield f"{name}: broken CSV ({error})"
    else:
        yield f"{name}: not a known result"


def _of_records(records: Any, name: str) -> Iterator[MeasuredRow | str]:
    for number, record in enumerate(records):
        where = name if number == 0 and isinstance(records, list) and len(records) == 1 else f"{name}, record {number}"
        if is_bench_record(record):
            yield read_bench_record({key: value for key, value in record.items() if key}, where)
        elif isinstance(record, str):
            yield f"{name}: {record}"
        else:
            yield f"{where}: not a result of vllm bench serve"


def _records(text: str) -> list[Any]:
    """One JSON document, or one a line (``--append-result``)."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return [_line(line) for line in text.splitlines() if line.strip()]
    return document if isinstance(document, list) else [document]


def _line(line: str) -> Mapping[str, Any] | str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return "a line that is not JSON"
    return found if isinstance(found, dict) else "a line that is no record"


def _text(file: Path) -> str:
    try:
        about = file.stat()
        if not S_ISREG(about.st_mode):
            raise ExperimentError(f"{file} is no regular file: give {KNOWN}.")
        if about.st_size > MOST_BYTES:
            raise ExperimentError(f"{file} has {about.st_size:,} bytes, which is no result of a benchmark.")
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ExperimentError(f"{file} cannot be read ({error.strerror or error}).") from error

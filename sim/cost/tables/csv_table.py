"""Reading a numeric CSV file by column name, tolerant of columns nobody asked for."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..profile import ProfileError

FloatArray = NDArray[np.float64]


class TableError(ProfileError):
    """A table of measured times that cannot be read or used."""


class Table:
    """Columns of one file, as text until they are asked for as numbers."""

    def __init__(self, path: Path, columns: dict[str, list[str]], num_rows: int) -> None:
        self.path = path
        self._columns = columns
        self.num_rows = num_rows

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    @property
    def names(self) -> list[str]:
        """The columns, as the file has them."""
        return list(self._columns)

    def text(self, name: str) -> list[str]:
        """[N] A column as it stands. Raises ``TableError`` if the file lacks it."""
        if name not in self._columns:
            raise TableError(
                f"{self.path} has no column {name!r} (it has {_listed(self.names)}): is it the right file?"
            )
        return self._columns[name]

    def numbers(self, name: str, *, default: float | None = None) -> FloatArray:
        """[N] A column as numbers; an empty cell (or an absent column) is ``default`` if one is given. Raises
        ``TableError`` with the line of the first cell that is no finite number.
        """
        if name not in self._columns and default is not None:
            return np.full(self.num_rows, default)
        return np.array(
            [self._number(name, row, cell, default) for row, cell in enumerate(self.text(name))], dtype=np.float64
        )

    def _number(self, name: str, row: int, cell: str, default: float | None) -> float:
        if default is not None and not cell.strip():
            return default
        try:
            value = float(cell)
        except ValueError:
            value = float("nan")
        if not np.isfinite(value):
            raise TableError(f"{self.path}, line {row + 2}: {name} is {cell[:40]!r}, but a finite number is needed.")
        return value


def read_csv(path: Path, required: Sequence[str] = ()) -> Table:
    """Read ``path``. Raises ``TableError`` if it is no CSV file with a header, has no rows, or lacks a column."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path} is not a CSV file ({error}).") from error
    rows = [row for row in rows if row and any(cell.strip() for cell in row)]
    if len(rows) < 2:
        raise TableError(f"{path} holds no rows: a header and at least one row are needed.")
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise TableError(f"{path}, line {number}: {len(row)} cells, but the header has {len(header)}.")
    table = Table(path, dict(zip(header, map(list, zip(*rows[1:], strict=True)), strict=False)), len(rows) - 1)
    for name in required:
        table.text(name)
    return table


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown}, …"

"""Columns as Parquet files, without pandas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..sim.records import Columns

if TYPE_CHECKING:
    import pyarrow as pa


def write_table(columns: Columns, path: Path) -> None:
    """Write float64 and int64 columns."""
    from pyarrow import parquet

    parquet.write_table(arrow_table(columns), path)


def arrow_table(columns: Columns) -> pa.Table:
    """float64 and int64 columns as an Arrow table, from their own memory: pyarrow's conversion would import pandas."""
    import pyarrow as pa

    arrays = [
        pa.Array.from_buffers(
            pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
        )
        for values in columns.values()
    ]
    return pa.Table.from_arrays(arrays, names=list(columns))

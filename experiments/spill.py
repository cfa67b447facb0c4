"""Predictions that are written as they are made: a trace of any length in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..sim.cost.profile import Profile
from ..sim.records import FLOAT_COLUMNS, ITERATION_COLUMNS, REQUEST_COLUMNS, Columns, Records
from .errors import ExperimentError
from .parquet import arrow_table
from .replay import predict
from .run import GAP_COLUMNS, Run, replacing
from .scenario import Scenario

if TYPE_CHECKING:
    from pyarrow import parquet

    from ..sim.facts.roofline import RooflineProfile

_TABLES = {"requests": REQUEST_COLUMNS, "iterations": ITERATION_COLUMNS, "gaps": GAP_COLUMNS}


class ParquetColumns(Mapping[str, NDArray[Any]]):
    """The columns of a Parquet file. Each is read when it is asked for, and not kept."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self._path = path
        self._names = names

    def __getitem__(self, name: str) -> NDArray[Any]:
        from pyarrow import parquet

        if name not in self._names:
            raise KeyError(name)
        table = parquet.read_table(self._path, columns=[name], use_threads=False, memory_map=True)
        return np.asarray(table[name].to_numpy())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ParquetSink:
    """Writes records into a run's Parquet files, a row group a block."""

    def __init__(self, folder: Path) -> None:
        from pyarrow import parquet

        self._folder = folder
        self._writers: dict[str, parquet.ParquetWriter] = {}
        for table, names in _TABLES.items():
            nothing = {name: np.empty(0, np.float64 if name in FLOAT_COLUMNS else np.int64) for name in names}
            self._writers[table] = parquet.ParquetWriter(folder / f"{table}.parquet", arrow_table(nothing).schema)

    def iterations(self, columns: Columns) -> None:
        """The next iterations."""
        self._writers["iterations"].write_table(arrow_table(columns))

    def requests(self, columns: Columns) -> None:
        """The next requests."""
        self._writers["requests"].write_table(arrow_table(columns))

    def gaps(self, gaps: NDArray[np.int64]) -> None:
        """The next gaps."""
        self._writers["gaps"].write_table(arrow_table(dict(zip(GAP_COLUMNS, gaps.T, strict=True))))

    def records(self) -> Records:
        """Close the files and open them for reading."""
        self.close()
        return stored_records(self._folder)

    def close(self) -> None:
        """Nothing more comes."""
        for writer in self._writers.values():
            writer.close()


def stored_records(folder: Path, num_replicas: int = 1) -> Records:
    """The records of a run on disk, column by column as they are used; the gaps are read at once."""
    requests, iterations, gaps = (ParquetColumns(folder / f"{table}.parquet", _TABLES[table]) for table in _TABLES)
    pairs = np.column_stack([gaps[name] for name in GAP_COLUMNS])
    return Records(requests, iterations, pairs, num_replicas)


def predict_to(folder: str | Path, scenario: Scenario, profile: Profile | RooflineProfile) -> Run:
    """Predict ``scenario`` and write the run to ``folder`` while it goes; the same files as ``predict(…).save(folder)``
    holds, in row groups. The run's records are read from there when they are used.

    Raises ``ExperimentError`` if the disk fails, the folder holds anything else, or there are several replicas (their
    rows stand one replica after the other, which takes all of them).
    """
    if scenario.num_replicas > 1:
        raise ExperimentError(
            f"A run is written as it goes for one replica only, but num_replicas is {scenario.num_replicas}: replay "
            f"without that, or one replica."
        )
    folder = Path(folder).resolve()
    with replacing(folder) as scratch:
        sink = ParquetSink(scratch)
        try:
            run = predict(scenario, profile, sink=sink)
        finally:
            sink.close()
        run.write_head(scratch)
    return Run(scenario, "predicted", stored_records(folder), run.num_gpu_blocks, run.provenance)

"""A run: what a replay leaves, in memory and on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EISDIR
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..sim.metrics import metrics
from ..sim.records import ITERATION_COLUMNS, REQUEST_COLUMNS, Records
from .errors import ExperimentError
from .parquet import write_table
from .scenario import Scenario, load_scenario

FORMAT = 1
GAP_COLUMNS = ("from_iteration", "to_iteration")
SUMMARY_ONLY = "summary_only"
"""Set in the head of a run that has metrics and no records: one that was imported (``experiments.exchange``)."""
Kind = Literal["predicted", "measured"]
_FILES = frozenset(("run.json", "scenario.json", "requests.parquet", "iterations.parquet", "gaps.parquet"))


@dataclass(frozen=True)
class Run:
    """One replay of one scenario, predicted or measured."""

    scenario: Scenario
    kind: Kind
    records: Records
    num_gpu_blocks: int
    provenance: dict[str, Any]

    @cached_property
    def metrics(self) -> dict[str, float]:
        """All metrics (``sim.metrics``)."""
        return metrics(self.records, self.num_gpu_blocks - 1, self.scenario.slo)

    def save(self, folder: str | Path) -> None:
        """Write the run as Parquet and JSON, complete or not at all, in the place of an earlier run. Raises
        ``ExperimentError`` if the disk fails or the folder holds anything else.
        """
        with replacing(Path(folder).resolve()) as scratch:
            write_table(self.records.requests, scratch / "requests.parquet")
            write_table(self.records.iterations, scratch / "iterations.parquet")
            gaps = dict(zip(GAP_COLUMNS, self.records.gaps.T, strict=True))
            write_table(gaps, scratch / "gaps.parquet")
            self.write_head(scratch)

    def write_head(self, folder: Path) -> None:
        """Write all but the records."""
        (folder / "scenario.json").write_text(self.scenario.model_dump_json(indent=2) + "\n")
        head = {
            "format": FORMAT,
            "kind": self.kind,
            "num_gpu_blocks": self.num_gpu_blocks,
            "metrics": self.metrics,
            "provenance": self.provenance,
        }
        (folder / "run.json").write_text(json.dumps(head, indent=2) + "\n")


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder to write a run into, which takes the place of ``folder`` when the block has ended well. Raises
    ``ExperimentError`` if the disk fails or ``folder`` holds anything but a run.
    """
    scratch = folder.with_name(folder.name + ".part")
    with writing(folder):
        _check_replaceable(folder)
        scratch.mkdir(parents=True, exist_ok=True)
        yield scratch
        if folder.exists():
            shutil.rmtree(folder)
        scratch.rename(folder)


def _check_replaceable(folder: Path) -> None:
    """Raise ``ExperimentError`` unless ``folder`` is absent, empty, or a run and nothing but a run."""
    if not folder.exists():
        return
    foreign = sorted({path.name for path in folder.iterdir()} - _FILES)
    if foreign:
        raise ExperimentError(f"{folder} holds {foreign[0]}, which is no part of a run: choose another folder.")


def load_run(folder: str | Path) -> Run:
    """Read a run. Raises ``ExperimentError`` if it is none, broken, or of another version."""
    from pyarrow import ArrowInvalid, parquet

    folder = Path(folder)
    head = read_head(folder / "run.json", FORMAT)
    if head.get(SUMMARY_ONLY):
        raise ExperimentError(f"The run in {folder} was imported: it has metrics, but no records of its requests.")
    try:
        tables = {name: parquet.read_table(folder / f"{name}.parquet") for name in ("requests", "iterations", "gaps")}
        columns = {
            name: {column: table[column].to_numpy() for column in table.column_names} for name, table in tables.items()
        }
        for table, expected in (("requests", REQUEST_COLUMNS), ("iterations", ITERATION_COLUMNS)):
            columns[table] = {name: columns[table][name] for name in expected}
        gaps = np.column_stack([columns["gaps"][name] for name in GAP_COLUMNS])
        scenario = load_scenario(folder / "scenario.json")
        return Run(
            scenario=scenario,
            kind=head["kind"],
            records=Records(columns["requests"], columns["iterations"], gaps, scenario.num_replicas),
            num_gpu_blocks=head["num_gpu_blocks"],
            provenance=head["provenance"],
        )
    except (OSError, ArrowInvalid, KeyError) as error:
        raise ExperimentError(
            f"The run in {folder} is broken ({error}): delete the folder and run it again."
        ) from error


def read_head(path: Path, expected_format: int, *fields: str) -> dict[str, Any]:
    """A results file's JSON head of this version, with these fields. Raises ``ExperimentError`` otherwise."""
    try:
        head = json.loads(path.read_bytes())
        found = head["format"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ExperimentError(f"{path.parent} holds no {path.name}: it is not a folder of results.") from error
    except (KeyError, TypeError) as error:
        raise ExperimentError(f"{path} is not what a run writes: delete its folder and run again.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExperimentError(f"{path} cannot be read ({reason}): delete its folder and run again.") from error
    if found != expected_format:
        raise ExperimentError(
            f"{path} is of results format {found}, this version reads format {expected_format}: run it again into a "
            f"new folder, or open it with the version that wrote it."
        )
    missing = [name for name in fields if name not in head]
    if missing:
        raise ExperimentError(f"{path} lacks {missing[0]}: delete its folder and run again.")
    return dict(head)


def write_whole(path: Path, text: str) -> None:
    """Write a file complete or not at all: what stood there before stays if the disk fails. Raises
    ``ExperimentError``.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".part")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)


def check_writable(path: Path) -> None:
    """Raise ``ExperimentError`` if a file could not be written to ``path``, before anything is computed for it."""
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(EISDIR, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if path.stat().st_size == 0:
            path.unlink()


class writing:  # noqa: N801  (reads as a verb: with writing(path))
    """A block that writes ``path``: a failing disk becomes one sentence, and what was written before stays."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise ExperimentError(
                f"{self._path} cannot be written ({error.strerror or error}): make room or choose another folder; "
                f"everything finished before is kept."
            ) from error

"""The operator tables that published points are predicted from."""

from __future__ import annotations

from pathlib import Path

from ..scheduler.errors import BatchTwinError
from ..sim.cost.tables.aiconfigurator import is_aiconfigurator
from ..sim.cost.tables.composed import TableProfile
from ..sim.cost.tables.open import open_tables
from ..sim.cost.tables.pieces import Wanted
from .points import Point


class Tables:
    """Folders of tables, each opened once a tensor-parallel degree."""

    def __init__(self, base: Path, folder: Path | None) -> None:
        """``folder`` is for rows that name none; names are relative to ``base``. Raises ``TableError`` if it is no
        folder.
        """
        self._base, self._folder = base, folder
        self._opened: dict[tuple[Path, int, bool, str | None], TableProfile] = {}
        if folder is not None and not folder.is_dir():
            open_tables(folder)

    def of(self, point: Point) -> TableProfile | None:
        """The tables that a row names, else the ones that were given, at its degree; None if those have none. Raises
        ``TableError`` if a row's own cannot be read.
        """
        if point.profile is not None:
            return self._open(self._base / point.profile, point)
        if self._folder is None:
            return None
        try:
            return self._open(self._folder, point)
        except BatchTwinError:
            return None

    def _open(self, folder: Path, point: Point) -> TableProfile:
        model = point.model if is_aiconfigurator(folder) else None  # kernels are of no model in particular
        key = (folder, point.tensor_parallel_size or 1, point.enforce_eager is True, model)
        if key not in self._opened:
            wanted = Wanted(model=model, tensor_parallel=key[1], enforce_eager=key[2])
            self._opened[key] = open_tables(folder, wanted)
        return self._opened[key]

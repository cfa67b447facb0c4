"""Finding the sweeps of a folder and reading one of them, whole, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..experiments.compare import Comparison, compare
from ..experiments.grid import Cell, CellResult, default_cell
from ..experiments.recommend import Recommendation, recommend
from ..experiments.sweep import Sweep, open_sweep
from ..scheduler.errors import BatchTwinError
from .errors import DashboardError


@dataclass(frozen=True)
class Results:
    """A sweep and what follows from it. ``comparison`` is None if nothing is measured, ``recommendation`` if nothing
    can work; ``problems`` says in one sentence each what could not be read or concluded.
    """

    sweep: Sweep
    cells: tuple[CellResult, ...]
    comparison: Comparison | None
    recommendation: Recommendation | None
    problems: tuple[str, ...] = ()

    @property
    def by_cell(self) -> dict[Cell, CellResult]:
        return {result.cell: result for result in self.cells}

    @property
    def num_missing(self) -> int:
        """Cells of the grid that are not predicted yet."""
        return len(self.sweep.spec.cells) - len(self.cells)

    def default(self, policy: str) -> CellResult | None:
        """The cell that vLLM takes by default, with ``policy``; None if it is not predicted."""
        return self.by_cell.get(default_cell(self.sweep.spec.scenario)._replace(policy=policy))


def find_sweeps(root: Path) -> dict[str, Path]:
    """The sweeps in ``root`` by name (its path in ``root``), sorted; ``root`` may be one itself, and comes first."""
    own = {root.resolve().name: root} if (root / "sweep.json").is_file() else {}
    found = sorted(path.parent for pattern in ("*/sweep.json", "*/*/sweep.json") for path in root.glob(pattern))
    return own | {folder.relative_to(root).as_posix(): folder for folder in found}


def read_results(sweep: Sweep | Path, *, with_split: bool = True) -> Results:
    """Read a sweep with whatever is measured of it, the split of its errors only if it is asked for (it reads every
    record). Raises ``BatchTwinError`` if the predictions cannot be read.
    """
    opened = sweep if isinstance(sweep, Sweep) else open_sweep(sweep)
    cells = tuple(opened.predicted())
    problems: list[str] = []
    recommendation = _recommend(opened, cells, problems)
    return Results(opened, cells, _compare(opened, problems, with_split), recommendation, tuple(problems))


def stamp(folder: Path) -> tuple[tuple[str, int], ...]:
    """Changes whenever a result is added to ``folder`` or replaced."""
    files = [folder / "sweep.json", folder / "profile.json"]
    files += [*folder.glob("cells/*/predicted.json"), *folder.glob("cells/*/measured-*/run.json")]
    return tuple(sorted((path.as_posix(), path.stat().st_mtime_ns) for path in files if path.exists()))


def _compare(sweep: Sweep, problems: list[str], with_split: bool) -> Comparison | None:
    try:
        return compare(sweep, with_split=with_split) if sweep.measured_cells() else None
    except BatchTwinError as error:
        problems.append(f"The measurements cannot be shown: {error}")
    except _OTHER_SHAPE as error:
        problems.append(f"The measurements cannot be shown: {_broken(sweep, error)}")
    return None


def _recommend(sweep: Sweep, cells: tuple[CellResult, ...], problems: list[str]) -> Recommendation | None:
    if not cells:
        return None
    try:
        return recommend(sweep)
    except BatchTwinError as error:
        problems.append(str(error))
    except _OTHER_SHAPE as error:
        raise _broken(sweep, error) from error
    return None


_OTHER_SHAPE = (KeyError, TypeError, ValueError)
"""What values that another program wrote, or a hand changed, lead to."""


def _broken(sweep: Sweep, error: Exception) -> DashboardError:
    return DashboardError(
        f"A result in {sweep.folder} is broken ({type(error).__name__}: {error}): delete its cell's folder and run the "
        f"sweep again."
    )

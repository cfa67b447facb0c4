"""``batchtwin validate``: a folder is a recorded run, a file holds published points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .errors import ExperimentError
from .recorded import is_recorded_run

PUBLISHED = Path(__file__).with_name("published_points.csv")
"""The points that come with the project, each row with its source."""


def validate_any(profile: Path | None, run: Path | None, sets: Sequence[str], output: Path | None) -> None:
    """Predict, print, and write if asked to. Raises ``BatchTwinError`` with what is wrong or missing."""
    path = PUBLISHED if run is None else run
    if is_recorded_run(path):
        _validate_run(profile, path, sets, output)
    elif path.is_file():
        _validate_points(profile, path, sets, output)
    elif path.exists():
        raise ExperimentError(f"{path} holds no requests.jsonl: give the folder of a recorded run, or a CSV of points.")
    else:
        raise ExperimentError(f"{path} does not exist: give the folder of a recorded run, or a CSV of points.")


def _validate_run(profile: Path | None, run: Path, sets: Sequence[str], output: Path | None) -> None:
    from .render_validate import print_validation, write_validation
    from .validate import parse_sets, validate

    if profile is None:
        raise ExperimentError("A recorded run is predicted from a GPU's operator tables: give their folder, --profile.")
    done = validate(profile, run, parse_sets(sets))
    if output is not None:
        write_validation(done, output)
    print_validation(done, output)


def _validate_points(profile: Path | None, path: Path, sets: Sequence[str], output: Path | None) -> None:
    from .render_points import print_points, write_points
    from .validate_points import validate_points

    if sets:
        raise ExperimentError(f"--set {sets[0]}: points carry their fields in their columns: add a column for it.")
    done = validate_points(path, profile)
    if output is not None:
        write_points(done, output)
    print_points(done, output)

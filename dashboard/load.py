"""The one loader: what is on disk is read once, and again when it has changed."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from ..experiments.grid import Cell
from ..experiments.replay import predict
from ..experiments.run import Run
from ..sim.cost.profile import Profile, load_profile
from .results import Results, read_results, stamp


def results_of(folder: Path) -> Results:
    """A sweep and what follows from it. Raises ``BatchTwinError`` if it cannot be read."""
    return _results(str(folder), stamp(folder))


def profile_of(path: str) -> Profile:
    """A profile. Raises ``ProfileError`` if it cannot be read."""
    file = Path(path)
    return _profile(path, file.stat().st_mtime_ns if file.exists() else 0)


def predicted_run(results: Results, cell: Cell) -> Run:
    """The cell's replay with all its records: a sweep keeps only its metrics, so it is predicted again (the same
    bytes) and kept in memory. Raises ``BatchTwinError`` or ``TraceError``.
    """
    spec = results.sweep.spec
    return _predicted(cell, spec.scenario.digest(), spec.profile_hash, spec.trace_digest, _results=results)


def measured_runs(results: Results, cell: Cell) -> list[Run]:
    """The cell's measured runs, in order of repeat; none if it was not measured. Raises ``BatchTwinError``."""
    return _measured(cell, str(results.sweep.folder), stamp(results.sweep.folder), _results=results)


@st.cache_resource(max_entries=16, show_spinner="Reading the results …")
def _results(folder: str, changes: tuple[tuple[str, int], ...]) -> Results:
    return read_results(Path(folder))


@st.cache_resource(max_entries=16, show_spinner=False)
def _profile(path: str, changed_ns: int) -> Profile:
    return load_profile(path)


@st.cache_resource(max_entries=8, show_spinner="Replaying the cell …")
def _predicted(cell: Cell, scenario: str, profile: str, trace: str, *, _results: Results) -> Run:
    return predict(cell.of(_results.sweep.spec.scenario), _results.sweep.profile)


@st.cache_resource(max_entries=8, show_spinner="Reading the measured runs …")
def _measured(cell: Cell, folder: str, changes: tuple[tuple[str, int], ...], *, _results: Results) -> list[Run]:
    return _results.sweep.measured(cell)

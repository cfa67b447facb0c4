"""The one loader: what is on disk is read once, and again when it has changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from ..experiments.grid import Cell
from ..experiments.open_run import predicted_run as replayed
from ..experiments.recommend import Recommendation, recommend
from ..experiments.run import Run
from ..experiments.scenario import Scenario
from ..sim.cost.profile import Profile, load_profile
from .capacity_curves import Curve, curve
from .results import Results, read_results, stamp


def results_of(folder: Path) -> Results:
    """A sweep and what follows from it, but for the split of its errors. Raises ``BatchTwinError`` if it cannot be
    read.
    """
    return _results(str(folder), stamp(folder), with_split=False)


def whole_results_of(folder: Path) -> Results:
    """The same with the split. Raises ``BatchTwinError`` if it cannot be read."""
    return _results(str(folder), stamp(folder), with_split=True)


def recommendation_of(results: Results, slo: Mapping[str, float]) -> Recommendation:
    """The recommendation by other SLOs than the sweep's. Raises ``BatchTwinError``."""
    folder = results.sweep.folder
    return _recommendation(str(folder), stamp(folder), tuple(sorted(slo.items())), _results=results)


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


def curve_of(scenario: Scenario, profile: Profile, cell: Cell) -> Curve:
    """A cell's capacity within the scenario's SLOs, with every rate tried. Raises ``BatchTwinError`` or
    ``TraceError``.
    """
    return _curve(cell, scenario.model_dump_json(), profile.hash(), scenario.trace.load().digest(), _profile=profile)


@st.cache_resource(max_entries=64, show_spinner="Searching the capacity …")
def _curve(cell: Cell, scenario: str, profile: str, trace: str, *, _profile: Profile) -> Curve:
    asked = Scenario.model_validate_json(scenario)
    return curve(asked, _profile, cell, asked.slo)


@st.cache_resource(max_entries=16, show_spinner="Reading the results …")
def _results(folder: str, changes: tuple[tuple[str, int], ...], *, with_split: bool) -> Results:
    return read_results(Path(folder), with_split=with_split)


@st.cache_resource(max_entries=64, show_spinner=False)
def _recommendation(
    folder: str, changes: tuple[tuple[str, int], ...], slo: tuple[tuple[str, float], ...], *, _results: Results
) -> Recommendation:
    return recommend(_results.sweep, slo=dict(slo))


@st.cache_resource(max_entries=16, show_spinner=False)
def _profile(path: str, changed_ns: int) -> Profile:
    return load_profile(path)


@st.cache_resource(max_entries=8, show_spinner="Replaying the cell …")
def _predicted(cell: Cell, scenario: str, profile: str, trace: str, *, _results: Results) -> Run:
    return replayed(_results.sweep, cell)


@st.cache_resource(max_entries=8, show_spinner="Reading the measured runs …")
def _measured(cell: Cell, folder: str, changes: tuple[tuple[str, int], ...], *, _results: Results) -> list[Run]:
    return _results.sweep.measured(cell)

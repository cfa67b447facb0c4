"""The runs of the chosen cell, and looking into one of them: for the pages that show iterations."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from ..experiments.inspect import batches
from ..experiments.run import Run
from ..scheduler.batch import Batch
from .context import Context
from .errors import DashboardError
from .link import follow, remember
from .load import measured_runs, predicted_run

WINDOW = 256
"""Iterations that are formed again together: stepping on from one of them costs nothing."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A run, and a name for exactly it."""

    run: Run
    key: tuple[str, ...]


def choose_run(context: Context) -> Shown:
    """The cell's prediction or one of its measured runs; draws the choice where there is one. Raises
    ``DashboardError`` if the sweep has no cell that works (yet), and ``BatchTwinError`` or ``TraceError`` if the run
    cannot be had.
    """
    results = context.opened
    if context.cell is None and not results.cells:
        raise DashboardError("No cell of this sweep is predicted yet: resume it on the page Sweep.")
    if context.cell is None:
        raise DashboardError("No cell of this sweep can work, so there is no iteration to show: choose another sweep.")
    cell = context.cell.cell
    measured = measured_runs(results, cell)
    names = ["predicted", *(f"measured-{i}" for i in range(len(measured)))]
    name = follow("run", names, "predicted")
    if measured:
        st.segmented_control(
            "Run",
            names,
            key="run",
            required=True,
            on_change=remember("run"),
            format_func=lambda name: _in_words(name, len(measured)),
            label_visibility="collapsed",
        )
    run = predicted_run(results, cell) if name == "predicted" else measured[names.index(name) - 1]
    return Shown(run, (str(results.sweep.folder), results.sweep.spec.profile_hash, cell.key, name))


def _in_words(name: str, num_measured: int) -> str:
    kind, _, repeat = name.partition("-")
    return f"{kind} {int(repeat) + 1}" if repeat and num_measured > 1 else kind


def batch_at(shown: Shown, iteration: int) -> Batch:
    """One iteration's batch. Raises as ``experiments.inspect.batches``."""
    first = iteration // WINDOW * WINDOW
    first = max(first, first_of_replica(shown.run, iteration))
    return _window(shown.key, first, _run=shown.run)[iteration - first]


def batches_of(shown: Shown, first: int, stop: int) -> list[Batch]:
    """The batches of ``first`` to ``stop`` (left out), all of one replica."""
    return [batch_at(shown, iteration) for iteration in range(first, stop)]


def first_of_replica(run: Run, iteration: int) -> int:
    """The first iteration of the replica that ``iteration`` ran on: of several they stand one after the other."""
    replicas = run.records.iterations["replica"]
    return int(replicas.searchsorted(replicas[iteration]))


@st.cache_resource(max_entries=16, show_spinner="Replaying up to this iteration …")
def _window(key: tuple[str, ...], first: int, *, _run: Run) -> list[Batch]:
    return batches(_run, first, first + WINDOW)

"""Measuring on this machine: a calibration, and some cells of a sweep; both run as their command lines."""

from __future__ import annotations

import streamlit as st

from ..commands import SweepOrder, calibrate_command, resume_command, shown
from ..context import Context
from ..data import heatmap_data, heatmap_frame
from ..heatmaps import What, heatmap, legend
from ..jobs import Job, measured_cells, seconds_of
from ..link import put
from ..results import Results
from ..show import show
from ..watch import jobs, watch
from ..words import plain

TITLE = "Measure"
ICON = ":material/speed:"


def page(context: Context) -> None:
    """Draw it."""
    left, right = st.columns([4, 7], gap="large")
    with left:
        _calibrate(context)
    with right:
        if context.results is None:
            st.markdown("#### Measure cells")
            st.info(
                "No sweep yet whose cells could be measured: with a profile, predict one on the page **Sweep**.",
                icon=":material/grid_on:",
            )
        else:
            _measure(context, context.results)


def _calibrate(context: Context) -> None:
    st.markdown("#### Calibrate this device")
    target = context.root / "profiles"
    with st.form("calibrate", border=True):
        name = st.text_input("Name of the profile", "this-machine")
        model, minutes = st.columns(2)
        chosen = model.text_input("Model", context.question.scenario.model, help="A preset, a folder or a hub id.")
        budget = minutes.number_input("Minutes", 0.1, 120.0, 1.0, format="%g", help="How long it may measure.")
        device, threads = st.columns(2)
        where = device.selectbox("Device", ["cpu", "cuda"])
        cores = threads.number_input("CPU threads", 1, 256, 1)
        asked = st.form_submit_button("Calibrate", type="primary", icon=":material/play_arrow:")
    path = target / f"{name.strip()}.json"
    scenario = context.question.scenario.model_copy(update={"model": chosen.strip(), "device": where})
    if asked:
        SweepOrder(name.strip(), "", scenario, "", "", ()).folder(target)  # refuses what is no name
        command = calibrate_command(path, scenario, minutes=budget, threads=int(cores) if where == "cpu" else None)
        jobs().start("calibrate", context.root, path, command, seconds_of(budget))
    if (job := jobs().latest("calibrate")) is not None:
        watch(job.target)
        _say_profile(job)


def _say_profile(job: Job) -> None:
    path = job.target
    if not job.is_running and job.error is None and path.exists():
        st.success(plain(f"Wrote {path}."), icon=":material/check:")
        st.code(job.output(14), language=None)
        if st.button("Use it", type="primary"):
            put(profile=str(path))
            jobs().forget(path)
            st.rerun()


def _measure(context: Context, results: Results) -> None:
    sweep = results.sweep
    st.markdown("#### Measure cells of the open sweep")
    asked = st.columns([1, 1, 1.3], vertical_alignment="bottom")
    count = int(asked[0].number_input("Cells, at least", 1, len(sweep.spec.cells), min(8, len(sweep.spec.cells))))
    repeats = int(asked[1].number_input("Repeats", 1, 20, 2, help="So that the device's own noise is known."))
    plan = sweep.to_measure(count)
    job = jobs().of(sweep.folder)
    busy = job is not None and job.is_running
    command = resume_command(sweep, measure=count, repeats=repeats)
    if asked[2].button(
        "Measure", type="primary", icon=":material/play_arrow:", width="stretch", disabled=busy or not plan
    ):
        counter = measured_cells(sweep.folder, repeats * len(plan))
        jobs().start("measure", context.root, sweep.folder, command, counter)
        st.rerun()
    watch(sweep.folder)
    known = len(sweep.measured_cells())
    st.caption(
        plain(
            f"Takes corners, vLLM's default, the predicted best and what lies farthest between: {len(plan)} cells × "
            f"{repeats}. {known} cells are measured so far; what is measured is not measured again."
        )
    )
    chosen = context.recommendation.cell if context.recommendation else None
    data = heatmap_data(results, sweep.spec.objective, context.policy, context.question.scenario.slo, chosen)
    if data.is_measured:
        columns = st.columns(2)
        kinds: tuple[What, ...] = ("measured", "error")
        for column, what in zip(columns, kinds, strict=True):
            with column:
                show(heatmap(data, what, height_px=330), lambda: heatmap_frame(data), f"measure-{what}")
    else:
        show(heatmap(data, "predicted", height_px=330), lambda: heatmap_frame(data), "measure-predicted")
        st.caption(legend(data))
    with st.expander("The same on the command line"):
        st.code(shown(command), language="bash", wrap_lines=True)

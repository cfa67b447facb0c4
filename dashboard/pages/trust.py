"""How far to believe the predictions, and why."""

from __future__ import annotations

import streamlit as st

from .. import frames
from ..context import Context
from ..data import parity_data
from ..figures import parity
from ..labels import label, percent
from ..link import follow, remember
from ..load import measured_runs, whole_results_of
from ..results import Results
from ..show import show
from ..trust import (
    FEATURES,
    calibration_card,
    law_text,
    residual_figure,
    residuals,
    split_figure,
    split_frame,
    validation,
)
from ..words import plain
from .sweep import choose_metric

TITLE = "Trust"
ICON = ":material/verified:"
VIEWS = ("Parity", "Error split", "Step times", "Calibration")


def page(context: Context) -> None:
    """Draw it."""
    results = context.opened
    _verdict(results)
    switch, chooser = st.columns([3, 3], vertical_alignment="bottom")
    with switch:
        follow("trust", VIEWS, VIEWS[0])
        view = st.segmented_control(
            "View", VIEWS, key="trust", on_change=remember("trust"), required=True, label_visibility="collapsed"
        )
    if view == "Calibration":
        _calibration(results)
        return
    if results.comparison is None and not results.problems:
        st.info(
            "Nothing of this sweep is measured, so every number of it rests on the calibration alone (see there). The "
            "page **Measure** runs some of its cells on the device.",
            icon=":material/speed:",
        )
    if results.comparison is None:
        if view == "Parity":
            st.dataframe(validation(results), hide_index=True)
        return
    with chooser:
        metric = choose_metric(results) if view != "Step times" else _choose_feature()
    {"Parity": _parity, "Error split": _split, "Step times": _steps}[str(view)](results, metric)


def _verdict(results: Results) -> None:
    if results.comparison is None:
        unread = "measurements that cannot be read" if results.problems else "not measured"
        st.markdown(f"#### Predicted, {unread}")
        return
    objective = results.comparison.objective
    rows = results.comparison.summary
    (row,) = rows[rows["metric"] == objective].to_dict("records")
    noise = percent(row["repeat_noise_percent"])
    beside = (
        f"; the device's own repeats differ by {noise}"
        if noise != "–"
        else "; measured once, so its noise is not known"
    )
    lost = percent(results.comparison.regret_percent["predicted"])
    st.markdown(
        f"#### {label(objective).text}: {percent(row['median_error_percent'])} off in the median of "
        f"{row['num_cells']} measured cells, {percent(row['worst_error_percent'])} at worst"
    )
    st.caption(plain(f"Choosing by the prediction loses {lost} of the measured best{beside}."))


def _parity(results: Results, metric: str) -> None:
    plot, words = st.columns([5, 7], gap="medium")
    rows = parity_data(results, metric)
    with plot:
        show(parity(rows, metric, height_px=430), rows, "parity")
    with words:
        st.dataframe(validation(results), hide_index=True, height="content")
        st.caption("Size of the error by load, and from how many cells. Bars in the plot: half the range of repeats.")


def _split(opened: Results, metric: str) -> None:
    results = whole_results_of(opened.sweep.folder)
    if results.comparison is None:
        st.warning(plain(" ".join(results.problems)), icon=":material/warning:")
        return
    rows = split_frame(results, metric)
    plot, words = st.columns([7, 5], gap="medium")
    with plot:
        show(split_figure(rows, metric, height_px=420), rows, "error-split")
    with words:
        st.caption(f"In {label(metric).unit or 'counts'}:")
        st.dataframe(frames.split(results, metric), hide_index=True, height=282)
        st.caption(
            "Cost model: the recorded batches with the fit's durations instead of the device's. Other decisions: "
            "batches that differ because time ran differently. Host gaps and clock: the rest. The three sum to "
            "measured − predicted of a cell's first repeat (the maps show the median of all)."
        )
        st.dataframe(frames.regret(results), hide_index=True)
        st.caption(frames.rank_text(results.comparison.rank_correlation))


def _choose_feature() -> str:
    names = tuple(FEATURES)
    follow("feature", names, names[0])
    return str(
        st.selectbox(
            "Feature",
            names,
            key="feature",
            format_func=lambda name: FEATURES[name],
            on_change=remember("feature"),
            label_visibility="collapsed",
        )
    )


def _steps(results: Results, feature: str) -> None:
    runs = [run for cell in results.sweep.measured_cells() for run in measured_runs(results, cell)[:1]]
    rows = residuals(runs, results.sweep.profile)
    show(residual_figure(rows, feature, height_px=470), rows, "residuals")
    st.caption(f"{len(rows):,} measured iterations of {len(runs)} cells (first repeats) under the fitted law.")


def _calibration(results: Results) -> None:
    profile = results.sweep.profile
    st.markdown(
        f"**{plain(profile.model.name)}** in {plain(profile.model.dtype)} on **{plain(profile.device.name)}** "
        f"({plain(profile.device.type)}), profile `{results.sweep.spec.profile_hash}`"
    )
    st.caption(plain(f"Step time = {law_text(profile)}."))
    card = calibration_card(profile)
    st.dataframe(
        {"What": [fact.label for fact in card], "Value": [fact.text for fact in card]},
        hide_index=True,
        height=min(38 + 35 * len(card), 560),
        column_config={"Value": st.column_config.TextColumn(width="large")},
    )

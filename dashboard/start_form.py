"""Starting a sweep from the page: the grid; all else is in the scenario bar."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from ..experiments.sweep import Sweep
from ..scheduler import POLICIES
from .commands import SweepOrder, numbers, resume_command
from .context import Context
from .jobs import measured_cells, predicted_cells
from .link import close_form
from .question import FIELDS
from .watch import jobs, wait_for_start
from .words import plain


def start_form(context: Context, *, first: bool) -> None:
    """The form, and where nothing is there yet what to do about it."""
    if first:
        st.markdown("#### No sweep here yet")
        st.markdown(
            f"`{context.root}` holds no results. Say above what is asked (a profile, which requests, how many), and "
            "below which values to try; or let the command line do it: `batchtwin sweep --help`."
        )
    else:
        heading, back = st.columns([5, 1.3], vertical_alignment="center")
        heading.markdown("#### New sweep")
        back.button("Back to the results", icon=":material/arrow_back:", on_click=close_form, width="stretch")
    if not context.question.profile_path:
        st.warning(
            "There is no profile yet, and a prediction needs one: choose it above, or measure one on the page "
            "**Measure**.",
            icon=":material/memory:",
        )
    order = _ask(context)
    if order is not None:
        _start(order, context.root)


def free_name(root: Path) -> str:
    """The first of ``sweep-1``, ``sweep-2`` … that is not taken."""
    number = 1
    while (root / f"sweep-{number}").exists():
        number += 1
    return f"sweep-{number}"


def _ask(context: Context) -> SweepOrder | None:
    with st.form("new-sweep", border=True):
        name = st.text_input("Name", free_name(context.root), help="The folder's name among the results.")
        grid = st.columns([2, 2, 2, 1])
        seqs = grid[0].text_input("max_num_seqs", "4, 8, 16, 32, 64, 128")
        tokens = grid[1].text_input("max_num_batched_tokens", "128, 256, 512, 1024, 2048")
        chosen = grid[2].multiselect("Policies", sorted(POLICIES), ["vllm_v1"])
        workers = grid[3].number_input("Processes", 1, 64, 1, help="Cells predicted at the same time.")
        if not st.form_submit_button("Predict", type="primary", icon=":material/play_arrow:"):
            return None
    question = context.question
    return SweepOrder(name.strip(), question.profile_path, question.scenario, seqs, tokens, tuple(chosen), int(workers))


def _start(order: SweepOrder, root: Path) -> None:
    folder = order.folder(root)
    if (folder / "sweep.json").exists():
        st.error(plain(f"{folder} holds a sweep already: choose another name."), icon=":material/error:")
        return
    command = order.command(root)
    size = len(numbers(order.max_num_seqs, "max_num_seqs"))
    size *= len(numbers(order.max_num_batched_tokens, "max_num_batched_tokens")) * len(order.policies)
    job = jobs().start("sweep", root, folder, command, predicted_cells(folder, size))
    if not wait_for_start(job, (folder / "sweep.json").exists):
        st.error(plain(job.error or "It was stopped."), icon=":material/error:")
        return
    for key in ("new", "profile", *FIELDS, "policy", "cell"):
        st.query_params.pop(key, None)
    st.query_params["sweep"] = order.name
    st.rerun()


def offer_to_resume(sweep: Sweep, root: Path, num_predicted: int) -> None:
    """Says that a sweep is not finished, and goes on with it if asked."""
    total = len(sweep.spec.cells)
    said, button = st.columns([5, 1.2], vertical_alignment="center")
    said.info(f"{num_predicted} of {total} cells are predicted so far.", icon=":material/hourglass_top:")
    if button.button("Resume", type="primary", icon=":material/play_arrow:", width="stretch"):
        start_again(sweep, root)


def start_again(sweep: Sweep, root: Path, *, measure: int | None = None, repeats: int = 1) -> None:
    """Go on with a sweep in a process of its own, and measure if asked."""
    command = resume_command(sweep, measure=measure, repeats=repeats)
    if measure is None:
        jobs().start("sweep", root, sweep.folder, command, predicted_cells(sweep.folder, len(sweep.spec.cells)))
    else:
        total = repeats * len(sweep.to_measure(measure))
        jobs().start("measure", root, sweep.folder, command, measured_cells(sweep.folder, total))
    st.rerun()

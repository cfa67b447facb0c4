"""The page: which sweep, what is known of it, and the sweep itself; or the form that starts one."""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from ..scheduler.errors import BatchTwinError
from . import sections
from .data import first_policy, policies
from .facts import facts
from .launch import RESULTS_VARIABLE
from .results import Results, find_sweeps, read_results, stamp
from .start_form import predict_rest, start_form
from .state import NEW, follow, open_form, remember, remember_sweep
from .theme import ICON, WORDMARK
from .words import plain


def main() -> None:
    """Everything that is on the screen."""
    root = Path(os.environ.get(RESULTS_VARIABLE, "results"))
    sweeps = find_sweeps(root)
    with st.sidebar:
        st.logo(WORDMARK, size="large", icon_image=ICON)
        name = _choose(list(sweeps))
    if name is None or NEW in st.query_params:
        start_form(root, first=not sweeps)
        return
    try:
        results = _read(str(sweeps[name]), stamp(sweeps[name]))
    except BatchTwinError as error:
        st.error(plain(str(error)), icon=":material/error:")
        return
    _show(results)


@st.cache_resource(max_entries=16, show_spinner="Reading the results …")
def _read(folder: str, changes: tuple[tuple[str, int], ...]) -> Results:
    """The one loader; ``changes`` makes a result that was added or replaced a reason to read again."""
    return read_results(Path(folder))


def _choose(names: list[str]) -> str | None:
    if not names:
        return None
    name = follow("sweep", names, names[0])
    st.selectbox("Sweep", names, key="sweep", on_change=remember_sweep)
    st.button("New sweep", icon=":material/add:", on_click=open_form, width="stretch")
    return name


def _show(results: Results) -> None:
    for problem in results.problems:
        st.warning(plain(problem), icon=":material/warning:")
    with st.sidebar:
        policy = _choose_policy(results)
        _facts(results)
    if results.num_missing:
        predict_rest(results)
    if results.recommendation is not None:
        sections.answer(results.recommendation)
    if results.cells:
        sections.key_metrics(results, policy)
        metric = sections.maps(results, policy)
        sections.accuracy(results, metric)
        sections.all_cells(results, metric)


def _choose_policy(results: Results) -> str:
    names = policies(results)
    policy = follow("policy", names, first_policy(results))
    if len(names) > 1:
        st.selectbox("Policy", names, key="policy", on_change=remember)
    return policy


def _facts(results: Results) -> None:
    lines = [f":small[:gray[{plain(fact.label)}]]  \n:small[{plain(fact.text)}]" for fact in facts(results)]
    st.markdown("\n\n".join(lines))

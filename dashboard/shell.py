"""What is around every page: its links, the open sweep and cell at the side, the scenario bar above."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import streamlit as st

from ..experiments.grid import CellResult
from ..experiments.recommend import Recommendation
from ..experiments.scenario import Scenario, TraceSpec
from ..scheduler.errors import BatchTwinError
from ..traces import TraceError
from .context import Context
from .data import first_policy, policies
from .errors import NoSweepError
from .facts import facts
from .launch import RESULTS_VARIABLE
from .link import follow, open_form, parameters, remember, remember_sweep
from .load import profile_of, recommendation_of, results_of
from .question import Question, ask
from .results import Results, find_sweeps
from .scenario_bar import forget_changes, profiles, scenario_bar
from .theme import ICON, STYLE, WORDMARK
from .words import cell_name, plain

PAGES = ("sweep", "load", "iterations", "shapes", "compare", "trust", "measure")
"""In this order, by the name of their module in ``pages`` and in the address; the first is the start."""

FIRST = Scenario(trace=TraceSpec(num_requests=500))
"""What is asked before there is a sweep: little enough to be answered in a minute."""


def main() -> None:
    """Everything that is on the screen."""
    root = Path(os.environ.get(RESULTS_VARIABLE, "results"))
    modules = {name: import_module(f".pages.{name}", __package__) for name in PAGES if _exists(name)}
    pages = {name: _registered(name, module, root) for name, module in modules.items()}
    current = st.navigation(list(pages.values()), position="hidden")
    st.html(STYLE)
    with st.sidebar:
        st.logo(WORDMARK, size="large", icon_image=ICON)
        for name, page in pages.items():
            st.page_link(page, label=modules[name].TITLE, icon=modules[name].ICON, query_params=parameters())
    current.run()


def _exists(name: str) -> bool:
    return find_spec(f"{__package__}.pages.{name}") is not None


def _registered(name: str, module: ModuleType, root: Path) -> st.Page:
    def run() -> None:
        _run(root, module.page)

    return st.Page(run, title=module.TITLE, icon=module.ICON, url_path=name, default=name == PAGES[0])


def _run(root: Path, page: Callable[[Context], None]) -> None:
    """A page in its frame; whatever is wrong with what it shows is one sentence."""
    try:
        page(_context(root))
    except NoSweepError as error:
        _say_how_to_start(error)
    except (BatchTwinError, TraceError) as error:
        st.error(plain(str(error)), icon=":material/error:")


def _say_how_to_start(error: NoSweepError) -> None:
    st.info(
        f"{plain(str(error))} This page shows one: predict a grid of both knobs on the page **Sweep**, or with "
        "`batchtwin sweep`; `batchtwin demo` makes one with everything in it.",
        icon=":material/lightbulb:",
    )


def _context(root: Path) -> Context:
    """Draw the frame and gather what the page is given. Raises ``BatchTwinError`` if the open sweep is broken."""
    sweeps = find_sweeps(root)
    with st.sidebar:
        st.divider()
        name = _choose_sweep(list(sweeps))
    try:
        results = results_of(sweeps[name]) if name is not None else None
    except BatchTwinError:
        scenario_bar(root, _question(root, None))
        raise
    question = _question(root, results)
    scenario_bar(root, question)
    if results is None:
        return Context(root, question, None, "", None)
    _say_what_is_off(results, question)
    recommendation = _recommend(results, question)
    with st.sidebar:
        policy = _choose_policy(results)
        cell = _choose_cell(results, policy, recommendation)
        with st.expander("What this rests on"):
            _facts(results)
    return Context(root, question, results, policy, cell, recommendation)


def _question(root: Path, results: Results | None) -> Question:
    base = results.sweep.spec.scenario if results else FIRST
    if "profile" in st.query_params:
        path = st.query_params["profile"]
    elif results:
        path = str(results.sweep.folder / "profile.json")
    else:
        path = next(iter(profiles(root)), "")
    address = {key: st.query_params[key] for key in st.query_params}
    if results and "profile" not in st.query_params:
        return ask(base, address, results.sweep.profile, path)
    try:
        return ask(base, address, profile_of(path) if path else None, path)
    except BatchTwinError as error:
        st.error(plain(str(error)), icon=":material/error:")
        return ask(base, address, None, path)


def _choose_sweep(names: list[str]) -> str | None:
    if not names:
        return None
    name = follow("sweep", names, names[0])
    st.selectbox("Sweep", names, key="sweep", on_change=remember_sweep)
    st.button("New sweep", icon=":material/add:", on_click=open_form, width="stretch")
    return name


def _recommend(results: Results, question: Question) -> Recommendation | None:
    slo = question.scenario.slo
    if results.recommendation is None or slo == results.sweep.spec.scenario.slo:
        return results.recommendation
    return recommendation_of(results, slo)


def _choose_policy(results: Results) -> str:
    names = policies(results)
    policy = follow("policy", names, first_policy(results))
    if len(names) > 1:
        st.selectbox("Policy", names, key="policy", on_change=remember("policy"))
    return policy


def _choose_cell(results: Results, policy: str, recommendation: Recommendation | None) -> CellResult | None:
    mine = {result.cell.key: result for result in results.cells if result.cell.policy == policy and result.metrics}
    if not mine:
        return None
    default, picked = results.default(policy), recommendation.cell if recommendation else None

    def name(key: str) -> str:
        cell = mine[key].cell
        note = " · recommended" if cell == picked else " · default" if default and cell == default.cell else ""
        return cell_name(cell) + note

    first = picked.key if picked and picked.key in mine else next(iter(mine))
    chosen = follow("cell", list(mine), first)
    st.selectbox(
        "Cell",
        list(mine),
        key="cell",
        format_func=name,
        on_change=remember("cell"),
        help="max_num_seqs × max_num_batched_tokens",
    )
    return mine[chosen]


def _say_what_is_off(results: Results, question: Question) -> None:
    for problem in results.problems:
        st.warning(plain(problem), icon=":material/warning:")
    if question.changed:
        said, ask_again, back = st.columns([6, 1.4, 1.4], vertical_alignment="center")
        what = ", ".join(question.changed)
        said.info(f"The open sweep answers another question ({plain(what)}).", icon=":material/compare_arrows:")
        ask_again.button("Predict this", on_click=open_form, type="primary", width="stretch")
        back.button("Back to it", on_click=forget_changes, width="stretch")


def _facts(results: Results) -> None:
    lines = [f":small[:gray[{plain(fact.label)}]]  \n:small[{plain(fact.text)}]" for fact in facts(results)]
    st.markdown("\n\n".join(lines))

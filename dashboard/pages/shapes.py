"""What one iteration gives the model: the arrays of a flattened forward, beside the rectangle they replace."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import streamlit as st

from ...experiments.examples import Example, examples
from ...scheduler.batch import Batch, Bound
from ...scheduler.config import SchedulerConfig
from ...sim.cost.profile import ModelFacts
from ..context import Context
from ..forward_data import Forward, forward
from ..forward_figures import flat_batch
from ..iteration_data import BOUNDS
from ..iteration_panels import BOUND_TEXTS
from ..ladder import NAMES, ladder, ladder_html
from ..link import follow, put, remember
from ..padding_figures import gauges, rectangle
from ..pool_figure import pool_map
from ..runs import Shown, batch_at, choose_run
from ..show import show, to_csv
from ..words import plain

TITLE = "Forward shapes"
ICON = ":material/view_array:"
CELL = "cell"
EVERYBODY = "everybody"
PLAYING = "playing"
"""In the session's state: the iteration that a film has come to, while it plays."""
STOPPED = "stopped"
"""In the session's state: where a film was stopped, for a run that began before the address said so."""
SECONDS_A_STEP = 1.0


@dataclass(frozen=True, slots=True)
class Film:
    """Iterations to look at, one after the other."""

    count: int
    first: int
    """Where to begin."""
    config: SchedulerConfig
    model: ModelFacts | None
    story: str
    shown: Shown | None
    """The run they are of; None for an example."""
    example: Example | None

    def batch(self, iteration: int) -> Batch:
        """One of them."""
        if self.shown is not None:
            return batch_at(self.shown, iteration)
        assert self.example is not None
        return _played(self.example.name)[iteration]


@st.cache_resource(show_spinner=False)
def _played(name: str) -> list[Batch]:
    return examples()[name].batches()


def page(context: Context) -> None:
    """Draw it."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        film = _choose(context)
        iteration = _iteration(film)
        _controls(film, iteration)
    data = forward(film.batch(iteration), film.config)
    _say(film, data, iteration)
    left, right = st.columns([62, 38], gap="medium")
    with left:
        show(flat_batch(data), data.tokens, "flat-batch")
        _ladder(data, film.model)
    with right:
        st.plotly_chart(gauges(data), key="gauges", config={"displayModeBar": False})
        show(rectangle(data), data.sequences, "padded-rectangle")
        _pool(data)
    if st.session_state.get(PLAYING):
        _play_on(film, iteration)


def _choose(context: Context) -> Film:
    known = examples()
    titles = {name: example.title for name, example in known.items()}
    if context.results is not None:
        titles = {CELL: "The cell chosen at the side"} | titles
    name = follow("what", list(titles), next(iter(titles)))
    st.selectbox(
        "What to look at",
        list(titles),
        key="what",
        format_func=titles.__getitem__,
        on_change=_another,
        label_visibility="collapsed",
        width=280,
    )
    return _of_run(context, choose_run(context)) if name == CELL else _of_example(known[name])


def _another() -> None:
    """Another film begins at its own beginning."""
    st.session_state.update({PLAYING: None, STOPPED: None})
    put(iteration=None, reads=None)
    remember("what")()


def _of_example(example: Example) -> Film:
    return Film(len(_played(example.name)), example.start, example.config, None, example.story, None, example)


def _of_run(context: Context, shown: Shown) -> Film:
    columns = shown.run.records.iterations
    mixed = np.flatnonzero((columns["num_decodes"] > 0) & (columns["num_prefills"] > 0))
    first = int(mixed[0]) if len(mixed) else 0
    config = shown.run.scenario.config(shown.run.num_gpu_blocks)
    model = context.opened.sweep.profile.model
    return Film(len(columns["end_s"]), first, config, model, "", shown, None)


def _iteration(film: Film) -> int:
    """Which one: where the film plays, or what the address says."""
    text = st.session_state.get(PLAYING) or st.query_params.get("iteration") or st.session_state.get(STOPPED)
    try:
        return min(max(int(text), 0), film.count - 1) if text is not None else film.first
    except ValueError:
        return film.first


def _play_on(film: Film, iteration: int) -> None:
    """Show the next one in a second. The address waits until the film stops, or Back would lead nowhere."""
    if iteration + 1 >= film.count:
        _go(iteration)
    else:
        time.sleep(SECONDS_A_STEP)
        st.session_state[PLAYING] = str(iteration + 1)
    st.rerun()


def _go(to: int) -> None:
    st.session_state.update({PLAYING: None, STOPPED: str(to)})
    put(iteration=str(to))


def _play(at: int) -> None:
    st.session_state[PLAYING] = str(at)


def _go_typed() -> None:
    _go(int(st.session_state["iteration-number"]))


def _controls(film: Film, iteration: int) -> None:
    last = film.count - 1
    at_end = iteration == last
    icon = ":material/{}:".format
    st.button(
        "",
        key="back",
        icon=icon("skip_previous"),
        help="Back",
        on_click=_go,
        args=(iteration - 1,),
        disabled=not iteration,
    )
    if st.session_state.get(PLAYING):
        st.button("", key="stop", icon=icon("pause"), help="Stop", on_click=_go, args=(iteration,), type="primary")
    else:
        st.button(
            "", key="play", icon=icon("play_arrow"), help="Play", on_click=_play, args=(iteration,), disabled=at_end
        )
    st.button(
        "", key="forward", icon=icon("skip_next"), help="Forward", on_click=_go, args=(iteration + 1,), disabled=at_end
    )
    st.session_state["iteration-number"] = iteration
    st.number_input(
        "Iteration", 0, last, key="iteration-number", on_change=_go_typed, label_visibility="collapsed", width=140
    )
    st.caption(f"of {film.count:,}, from 0", width=110)


def _say(film: Film, data: Forward, iteration: int) -> None:
    """What this iteration is, and the way to the next of a kind."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.markdown(_caption(data, film), width="stretch")
        if film.shown is not None:
            for name, column in (("Next prompt", "num_prefills"), ("Next preemption", "num_preempted")):
                found = _next(film.shown, column, iteration)
                st.button(name, on_click=_go, args=(found or 0,), disabled=found is None, type="tertiary")


def _next(shown: Shown, column: str, after: int) -> int | None:
    found = np.flatnonzero(shown.run.records.iterations[column][after + 1 :])
    return after + 1 + int(found[0]) if len(found) else None


def _caption(data: Forward, film: Film) -> str:
    shapes = data.shapes
    chunks = f" of {shapes.num_prefill_tokens:,} tokens" if shapes.num_prefills else ""
    parts = [
        f"**{shapes.num_decodes:,}** decode{'s' * (shapes.num_decodes != 1)}",
        f"**{shapes.num_prefills:,}** chunk{'s' * (shapes.num_prefills != 1)}{chunks}",
        f"{data.num_waiting:,} waiting",
        f"bound: {_bound(data.bound)}",
    ]
    if data.num_padded_tokens:
        parts.append(f"the policy pads {data.num_padded_tokens:,} slots more")
    now = " · ".join([*parts, *(plain(event) for event in data.events)])
    return f"{now}  \n:small[:gray[{film.story}]]" if film.story else now


def _bound(bound: Bound) -> str:
    text = BOUND_TEXTS[BOUNDS.index(bound)]
    return f"`{text}`" if "_" in text else text


def _pool(data: Forward) -> None:
    names = [EVERYBODY, *data.names]
    chosen = follow("reads", names, EVERYBODY)
    st.selectbox(
        "Whose blocks",
        names,
        key="reads",
        format_func=lambda name: f"Blocks that the queries of {name} may read",
        on_change=remember("reads"),
        label_visibility="collapsed",
    )
    seq = data.names.index(chosen) if chosen != EVERYBODY else None
    show(pool_map(data, seq), data.sequences, "block-tables")


def _ladder(data: Forward, model: ModelFacts | None) -> None:
    found = ladder(data, model)
    st.html(ladder_html(found))
    with st.container(horizontal=True, gap="small"):
        st.download_button(
            "CSV",
            to_csv(found.frame()),
            file_name="shape-ladder.csv",
            mime="text/csv",
            icon=":material/download:",
            type="tertiary",
            on_click="ignore",
        )
        with st.popover("Their names in other systems", type="tertiary"):
            st.markdown("\n".join(f"* `{name}`: {names}" for name, names in NAMES))

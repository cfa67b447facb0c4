"""What the server did, iteration by iteration: why a cell is as fast as it is."""

from __future__ import annotations

import math

import streamlit as st

from ...experiments.chrome_trace import trace_json
from ..context import Context
from ..iteration_data import (
    ChunkBars,
    Series,
    Timeline,
    Window,
    around,
    chunk_bars,
    preempted_requests,
    series,
    shifted,
    timeline,
    zoomed,
)
from ..iteration_figures import Limits, iterations
from ..iteration_words import summary
from ..labels import number
from ..link import follow, put, remember
from ..runs import Shown, batches_of, choose_run
from ..show import show
from ..words import plain

TITLE = "Iterations"
ICON = ":material/view_timeline:"
_CHART = "iterations"


def page(context: Context) -> None:
    """Draw it."""
    said, choice = st.columns([5, 2], vertical_alignment="center")
    with choice:
        shown = choose_run(context)
        replica = _choose_replica(shown)
    said.markdown(summary(shown.run), unsafe_allow_html=True)
    all_of = _series(shown.key, replica, _shown=shown)
    window = _window(all_of)
    _tools(shown, all_of, window)
    data = timeline(all_of, window)
    chunks, preempted = _details(shown, data)
    cell = shown.run.scenario
    figure = iterations(data, Limits(cell.max_num_seqs, cell.max_num_batched_tokens), chunks, preempted)
    show(figure, data.frame, _CHART, on_click=_zoom, choose="box")


@st.cache_resource(max_entries=8, show_spinner=False)
def _series(key: tuple[str, ...], replica: int, *, _shown: Shown) -> Series:
    return series(_shown.run, replica)


def _details(shown: Shown, data: Timeline) -> tuple[ChunkBars | None, list[str]]:
    """Chunks by request and who was preempted, where iterations are drawn one by one."""
    if not data.is_exact or not len(data.first):
        return None, []
    found = batches_of(shown, int(data.first[0]), int(data.first[-1]) + 1)
    return chunk_bars(found), preempted_requests(found)


def _choose_replica(shown: Shown) -> int:
    count = shown.run.records.num_replicas
    if count == 1:
        return 0
    names = [str(replica) for replica in range(count)]
    chosen = follow("replica", names, "0")
    st.selectbox("Replica", names, key="replica", on_change=remember("replica"), format_func=lambda n: f"Replica {n}")
    return int(chosen)


def _window(all_of: Series) -> Window:
    """What the address asks for, within the run; all of it if that is nonsense."""
    span = all_of.span_s
    try:
        low, high = (float(part) for part in st.query_params.get("window", "").split("-"))
    except ValueError:
        return span
    if not (math.isfinite(low) and math.isfinite(high) and span[0] <= low < high <= span[1] * (1 + 1e-9)):
        return span
    return low, min(high, span[1])


def _go_to(window: Window | None) -> None:
    put(window=None if window is None else f"{window[0]:.9g}-{window[1]:.9g}")


def _zoom() -> None:
    """A range was drawn over the figure."""
    boxes = st.session_state[_CHART]["selection"]["box"]
    if boxes:
        low, high = sorted(float(x) for x in boxes[0]["x"])
        _go_to((max(low, 0.0), high))


def _tools(shown: Shown, all_of: Series, window: Window) -> None:
    span = all_of.span_s
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        whole = window == span
        st.button("All", on_click=_go_to, args=(None,), disabled=whole, icon=":material/fit_width:")
        wider = zoomed(window, span, 4.0)
        st.button("Wider", on_click=_go_to, args=(wider,), disabled=whole, icon=":material/zoom_out:")
        for name, icon, share in (("Earlier", "chevron_left", -0.5), ("Later", "chevron_right", 0.5)):
            args = (shifted(window, span, share),)
            st.button(name, on_click=_go_to, args=args, disabled=whole, icon=f":material/{icon}:")
        st.number_input(
            "Iteration",
            all_of.first,
            all_of.first + max(len(all_of) - 1, 0),
            value=None,
            key="to-iteration",
            placeholder="Go to iteration …",
            label_visibility="collapsed",
            width=170,
            on_change=_go_to_iteration,
            args=(all_of,),
        )
        st.caption(_where(all_of, window), width="stretch")
        _export(shown)


def _go_to_iteration(all_of: Series) -> None:
    asked = st.session_state["to-iteration"]
    if asked is not None:
        put(iteration=str(int(asked)))  # the page of its shapes opens there as well
        _go_to(around(all_of, int(asked)))


def _where(all_of: Series, window: Window) -> str:
    shown = all_of.within(window)
    count = shown.stop - shown.start
    if count == 0:
        return f"Nothing runs from {window[0]:.3f} to {window[1]:.3f} s."
    numbers = f"{count:,} iterations from {all_of.first + shown.start:,}"
    chosen = st.query_params.get("iteration", "")
    more = (
        f"Forward shapes opens at {int(chosen):,}"
        if chosen.isdecimal()
        else "draw a range over the figure to look closer"
    )
    return plain(f"{numbers}, {number(window[1] - window[0])} s · {more}")


def _export(shown: Shown) -> None:
    st.download_button(
        "Perfetto trace",
        data=lambda: "".join(trace_json(shown.run)),
        file_name="-".join((*shown.key[-2:], "trace.json")),
        mime="application/json",
        icon=":material/download:",
        on_click="ignore",
        help="Chrome-trace JSON of the whole run: open it in https://ui.perfetto.dev",
    )

"""Starting a sweep from the page: a form that makes a scenario and a grid, and a bar while they are predicted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from ..experiments.scenario import Scenario, TraceSpec, make_scenario
from ..experiments.sweep import Progress, Sweep, sweep
from ..scheduler import POLICIES
from ..scheduler.errors import BatchTwinError
from ..sim.cost.profile import Profile, load_profile
from ..traces import GENERATORS, TraceError
from .errors import DashboardError
from .link import close_form
from .results import Results
from .words import plain

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SLOS = {"ttft_ms": "P99 TTFT", "tpot_ms": "P99 TPOT", "e2el_ms": "P99 E2E"}


@dataclass(frozen=True, slots=True)
class Order:
    """What the form asks for, as it was typed."""

    name: str
    profile: str
    trace: TraceSpec
    num_gpu_blocks: int
    max_num_seqs: str
    max_num_batched_tokens: str
    policies: tuple[str, ...]
    slo: dict[str, float]
    workers: int

    def run(self, root: Path, progress: Progress) -> Sweep:
        """Predict it. Raises ``BatchTwinError`` or ``TraceError``."""
        if not _NAME.fullmatch(self.name):
            raise DashboardError(f"{self.name!r} is no name for a folder: use letters, digits, dots and dashes.")
        if not self.profile:
            raise DashboardError("A prediction needs a profile: choose one, or type its path.")
        profile = load_profile(self.profile)
        return sweep(
            root / self.name,
            self._scenario(profile),
            profile,
            max_num_seqs=numbers(self.max_num_seqs, "max_num_seqs"),
            max_num_batched_tokens=numbers(self.max_num_batched_tokens, "max_num_batched_tokens"),
            policies=self.policies,
            workers=self.workers,
            progress=progress,
        )

    def _scenario(self, profile: Profile) -> Scenario:
        return make_scenario(
            trace=self.trace,
            model=profile.model.name,
            dtype=profile.model.dtype,
            device=profile.device.type,
            max_model_len=profile.model.max_model_len,
            block_size=profile.block_size,
            num_gpu_blocks=self.num_gpu_blocks,
            policy=self.policies[0] if self.policies else "vllm_v1",
            slo=self.slo,
        )


def numbers(text: str, knob: str) -> list[int]:
    """The whole numbers in ``4, 8, 16``. Raises ``DashboardError``."""
    parts = [part for part in re.split(r"[\s,;]+", text) if part]
    if not parts or not all(part.isdecimal() and part.isascii() and 0 < int(part) < 10**7 for part in parts):
        raise DashboardError(f"{knob} needs whole numbers above 0 with commas between them, not {text!r}.")
    return [int(part) for part in parts]


def start_form(root: Path, *, first: bool) -> None:
    """The form, and where nothing is there yet what to do about it."""
    if first:
        st.markdown("#### No sweep here yet")
        st.markdown(
            f"`{root}` holds no results. Predict a grid of both knobs below, or let the command line do it: "
            f"`batchtwin sweep --help`."
        )
    else:
        heading, back = st.columns([5, 1.3], vertical_alignment="center")
        heading.markdown("#### New sweep")
        back.button("Back to the results", icon=":material/arrow_back:", on_click=close_form, width="stretch")
    order = _ask(root)
    if order is not None:
        _run(order, root)


def predict_rest(results: Results) -> None:
    """Says that a sweep is not finished, and finishes it if asked."""
    total = len(results.sweep.spec.cells)
    st.info(f"{len(results.cells)} of {total} cells are predicted so far.", icon=":material/hourglass_top:")
    if st.button("Predict the rest", type="primary"):
        bar = st.progress(0.0)
        try:
            results.sweep.predict(progress=_shown_in(bar))
        except (BatchTwinError, TraceError) as error:
            st.error(plain(str(error)), icon=":material/error:")
            return
        st.rerun()


def _ask(root: Path) -> Order | None:
    with st.form("new-sweep", border=True):
        top = st.columns(2, gap="large")
        name = top[0].text_input("Name", "first-sweep", help="The folder's name among the results.")
        with top[1]:
            profile = _ask_profile(root)
        st.markdown("###### Grid")
        grid = st.columns([2, 2, 2, 1])
        seqs = grid[0].text_input("max_num_seqs", "8, 16, 32, 64, 128, 256")
        tokens = grid[1].text_input("max_num_batched_tokens", "512, 1024, 2048, 4096, 8192")
        chosen = grid[2].multiselect("Policies", sorted(POLICIES), ["vllm_v1"])
        blocks = grid[3].number_input("KV blocks", 2, 10_000_000, 4096, help="The same for every cell.")
        st.markdown("###### Requests")
        trace = _ask_trace()
        st.markdown("###### Limits")
        slo, workers = _ask_limits()
        if not st.form_submit_button("Predict", type="primary", icon=":material/play_arrow:"):
            return None
    return Order(name.strip(), profile, trace, int(blocks), seqs, tokens, tuple(chosen), slo, workers)


def _ask_profile(root: Path) -> str:
    found = sorted({*root.glob("profiles/*.json"), *Path.cwd().glob("profiles/*.json"), *root.glob("*/profile.json")})
    text = "What batchtwin calibrate wrote; any path may be typed."
    chosen = st.selectbox(
        "Profile", [str(path) for path in found], accept_new_options=True, help=text, placeholder="Path of a profile"
    )
    return chosen or ""


def _ask_limits() -> tuple[dict[str, float], int]:
    columns = st.columns(4)
    asked = {
        name: column.number_input(f"{text} at most (ms)", 0.0, value=None, placeholder="no limit")
        for column, (name, text) in zip(columns, _SLOS.items(), strict=False)
    }
    workers = columns[-1].number_input("Processes", 1, 64, 1, help="Cells predicted at the same time.")
    return {name: float(limit) for name, limit in asked.items() if limit}, int(workers)


def _ask_trace() -> TraceSpec:
    row = st.columns([4, 2, 2, 2, 2, 2], vertical_alignment="bottom")
    text = "A trace file (Azure, Mooncake, Vidur, vLLM and others are known), or a generator."
    source = row[0].selectbox("Trace", sorted(GENERATORS), accept_new_options=True, help=text)
    num = row[1].number_input("At most", 1, value=1000, help="So many requests from the trace's start.")
    rate = row[2].number_input("Rate ×", 0.001, value=1.0, format="%g", help="2: requests arrive twice as fast.")
    prompts = row[3].number_input("Prompts ×", 0.001, value=1.0, format="%g", help="Scales the prompt lengths.")
    outputs = row[4].number_input("Outputs ×", 0.001, value=1.0, format="%g", help="Scales the output lengths.")
    offline = row[5].checkbox("Offline", help="All requests arrive at once.")
    return TraceSpec(
        source=source or "",
        num_requests=int(num),
        prompt_scale=prompts,
        output_scale=outputs,
        rate_scale=rate,
        offline=offline,
    )


def _run(order: Order, root: Path) -> None:
    bar = st.progress(0.0, "Reading the trace …")
    try:
        order.run(root, _shown_in(bar))
    except (BatchTwinError, TraceError) as error:
        bar.empty()
        st.error(plain(str(error)), icon=":material/error:")
        return
    st.query_params.from_dict({"sweep": order.name})
    st.rerun()


def _shown_in(bar: st.delta_generator.DeltaGenerator) -> Progress:
    def show(what: str, done: int, total: int) -> None:
        bar.progress(done / total if total else 1.0, f"{what.capitalize()}: {done} of {total} cells")

    return show

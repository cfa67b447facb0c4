"""The scenario bar over every page: what is asked, each part a button that opens what can be changed of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import streamlit as st

from ..sim.metrics import SLO_NAMES
from ..traces import GENERATORS
from .facts import trace_text
from .link import put
from .question import FIELDS, PRESETS, Question, feasibility, value_of, write, write_slo
from .words import plain

_PREFIX = "bar-"
_UPLOADS = "traces"
SLO_WORDS = {"ttft_ms": "P99 TTFT", "tpot_ms": "P99 TPOT", "e2el_ms": "P99 E2E"}


def scenario_bar(root: Path, question: Question) -> None:
    """Draw it, with the feasibility line under it."""
    scenario = question.scenario
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="scenario-bar"):
        with st.popover(_model_text(question), icon=":material/memory:"):
            _profile(root, question)
        with st.popover(_short(trace_text(scenario.trace)), icon=":material/list_alt:"):
            _trace(root, question)
        with st.popover(_load_text(question), icon=":material/speed:"):
            _load(question)
        with st.popover(_slo_text(scenario.slo), icon=":material/flag:"):
            _slos(question)
        with st.popover(f"Seed {scenario.seed}", icon=":material/casino:"):
            _number(question, "seed", "Seed", minimum=0, step=1)
    st.caption(plain(feasibility(question)), width="stretch")


def profiles(root: Path) -> list[str]:
    """Profiles that lie about: beside the results, in the sweeps, in the working directory."""
    places = (*root.glob("profiles/*.json"), *Path.cwd().glob("profiles/*.json"), *Path.cwd().glob("profile*.json"))
    return sorted({str(path) for path in (*places, *root.glob("*/profile.json"))})


def _model_text(question: Question) -> str:
    profile = question.profile
    if profile is None:
        return "No profile"
    return f"{profile.model.name} · {profile.model.dtype} · {profile.device.type}"


def _short(text: str, longest: int = 52) -> str:
    """A button's text: a file without its folders, cut where it is too long."""
    head, *rest = text.split(" · ")
    short = " · ".join([Path(head).name, *rest])
    return short if len(short) <= longest else short[: longest - 1] + "…"


def _load_text(question: Question) -> str:
    scenario = question.scenario
    if scenario.num_clients is not None:
        return f"{scenario.num_clients:,} clients"
    return "All at once" if scenario.trace.offline else f"Rate × {scenario.trace.rate_scale:.3g}"


def _slo_text(slo: dict[str, float]) -> str:
    limits = ", ".join(f"{SLO_WORDS[name].removeprefix('P99 ')} {slo[name]:g}" for name in SLO_NAMES if name in slo)
    preset = write_slo(slo)
    if not limits:
        return "No SLOs"
    return f"{preset}: {limits} ms" if preset in PRESETS else f"{limits} ms"


def _profile(root: Path, question: Question) -> None:
    known = profiles(root)
    options = list(dict.fromkeys([*([question.profile_path] if question.profile_path else []), *known]))
    st.session_state[_PREFIX + "profile"] = question.profile_path or None
    st.selectbox(
        "Profile",
        options,
        key=_PREFIX + "profile",
        accept_new_options=True,
        placeholder="Path of a profile",
        help="What batchtwin calibrate wrote: a model on a device. Any path may be typed; the page Measure makes one.",
        on_change=_write_text("profile"),
    )
    _number(question, "context", "max_model_len", minimum=2, step=256)
    if question.scenario.kv_memory_bytes is None:
        _number(question, "blocks", "KV blocks", minimum=2, step=256, help="The same for every cell.")


def _trace(root: Path, question: Question) -> None:
    key = _PREFIX + "trace"
    source = question.scenario.trace.source
    st.session_state[key] = source
    uploads = [str(path) for path in sorted(root.glob(f"{_UPLOADS}/*")) if path.is_file()]
    st.selectbox(
        "Trace",
        list(dict.fromkeys([source, *sorted(GENERATORS), *uploads])),
        key=key,
        accept_new_options=True,
        help="A file (Azure, Mooncake, Vidur, vLLM and others are known) by its path, or a generator.",
        on_change=_write_text("trace"),
    )
    file = st.file_uploader("Or upload one", type=["csv", "json", "jsonl"], key=_PREFIX + "upload")
    if file is not None and st.button("Use the uploaded file", icon=":material/upload:"):
        put(trace=str(_keep(root, file.name, file.getvalue())))
        st.rerun()
    left, right, last = st.columns(3)
    with left:
        _number(question, "requests", "Requests", minimum=1, step=100, help="So many from the trace's start.")
    with right:
        _number(question, "prompts", "Prompts ×", minimum=0.001, help="Scales the prompt lengths.")
    with last:
        _number(question, "outputs", "Outputs ×", minimum=0.001, help="Scales the output lengths.")


def _keep(root: Path, name: str, content: bytes) -> Path:
    """An uploaded trace beside the results, under a name that can do no harm."""
    path = root / _UPLOADS / (re.sub(r"[^A-Za-z0-9._-]", "_", Path(name).name).lstrip(".") or "trace")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _load(question: Question) -> None:
    _number(question, "rate", "Rate ×", minimum=0.001, help="2: requests arrive twice as fast as in the trace.")
    key = _PREFIX + "offline"
    st.session_state[key] = question.scenario.trace.offline
    st.checkbox("All at once (offline)", key=key, on_change=_write("offline"))
    _number(question, "clients", "Clients", minimum=1, step=1, help="Closed loop with so many clients, if given.")


def _slos(question: Question) -> None:
    slo = question.scenario.slo
    preset = write_slo(slo)
    st.session_state[_PREFIX + "preset"] = preset if preset in PRESETS else None
    st.segmented_control(
        "Kind of service", list(PRESETS), key=_PREFIX + "preset", on_change=_write_preset, help="A starting point."
    )
    for name, text in SLO_WORDS.items():
        st.session_state[_PREFIX + name] = slo.get(name)
        st.number_input(
            f"{text} at most (ms)", 0.0, key=_PREFIX + name, placeholder="no limit", on_change=_write_slos, format="%g"
        )


def _number(question: Question, name: str, label: str, *, minimum: float, **options: Any) -> None:
    key = _PREFIX + name
    value = value_of(question.scenario, name)
    st.session_state[key] = value
    if "step" not in options:
        options["format"] = "%g"
    st.number_input(label, minimum, key=key, placeholder="not set", on_change=_write(name), **options)


def _write(name: str) -> Callable[[], None]:
    return lambda: put(**{name: write(name, st.session_state[_PREFIX + name])})


def _write_text(name: str) -> Callable[[], None]:
    return lambda: put(**{name: (st.session_state[_PREFIX + name] or "").strip() or None})


def _write_preset() -> None:
    put(slo=st.session_state[_PREFIX + "preset"] or "none")


def _write_slos() -> None:
    limits = {name: st.session_state[_PREFIX + name] for name in SLO_NAMES}
    put(slo=write_slo({name: limit for name, limit in limits.items() if limit}) or "none")


def forget_changes(names: Iterable[str] = (*FIELDS, "profile")) -> None:
    """Ask what the open sweep answers."""
    put(**dict.fromkeys(names))

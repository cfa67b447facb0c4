"""Watching a job from the page: a bar, the time left, a way to stop it, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import streamlit as st

from .jobs import Job, Jobs, Progress
from .labels import number
from .words import plain

EVERY_S = 1.0
STARTS_WITHIN_S = 60.0
_DOING = {"sweep": "Predicting", "measure": "Measuring", "calibrate": "Calibrating"}
_UNIT = {"sweep": "cells", "measure": "runs", "calibrate": "s"}


@st.cache_resource
def jobs() -> Jobs:
    """The jobs of this server."""
    return Jobs()


def watch(target: Path) -> None:
    """Show the job of ``target``, if there is one, until it has ended; the page is drawn again as results come in."""
    job = jobs().of(target)
    if job is None:
        return
    if job.is_running:
        _running(job)
        return
    if job.error is not None:
        st.error(plain(job.error), icon=":material/error:")
        with st.expander("Its output"):
            st.code(job.output(), language=None)
    elif job.cancelled:
        st.info("Stopped. What was finished is kept, and the same command goes on from there.")


def _running(job: Job) -> None:
    shown_at = job.progress().done

    @st.fragment(run_every=EVERY_S)
    def bar() -> None:
        now = job.progress()
        if not job.is_running or (job.what != "calibrate" and now.done != shown_at):
            st.rerun(scope="app")
        said, button = st.columns([6, 1], vertical_alignment="center")
        said.progress(now.share, in_words(job.what, now))
        button.button("Stop", icon=":material/stop:", on_click=job.cancel, width="stretch", key="stop-job")

    bar()


def in_words(what: str, now: Progress) -> str:
    """How far a job is; a calibration whose time is used still has to warm up, check and fit."""
    if what == "calibrate" and now.done >= now.total:
        so_far = duration(now.elapsed_s)
        return f"Calibrating: the {now.total:.0f} s are used, what was begun is finished ({so_far} so far)"
    eta = "" if now.eta_s is None else f", about {duration(now.eta_s)} left"
    return f"{_DOING[what]}: {now.done:.0f} of {now.total:.0f} {_UNIT[what]}{eta}"


def duration(seconds: float) -> str:
    """``40 s`` or ``3 min``."""
    return f"{number(round(seconds))} s" if seconds < 90 else f"{number(round(seconds / 60))} min"


def wait_for_start(job: Job, started: Callable[[], bool]) -> bool:
    """Wait until a job has shown its first sign of life; False if it ended before."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    with st.spinner("Starting …"):
        while not started() and time.monotonic() < deadline:
            if not job.is_running:
                return started()
            time.sleep(0.1)
    return True

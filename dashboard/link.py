"""What is shown is written in the address, so that a view is a link: the address is the only truth, widgets follow.

The address is written when the user chooses something, and never on its own, or the browser's Back button would lead
nowhere. A page's name is the address's path; everything else are the query parameters named here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

SWEEP_KEYS = ("policy", "cell", "cells")
"""What belongs to the open sweep and is dropped with it."""
NEW = "new"
"""In the address while the form for a new sweep is open."""


def parameters() -> dict[str, str | list[str]]:
    """All that the address says, for a link to another page."""
    every = {key: st.query_params.get_all(key) for key in st.query_params if key != NEW}
    return {key: values[0] if len(values) == 1 else values for key, values in every.items()}


def follow(key: str, options: Sequence[str], default: str) -> str:
    """What the address says of ``key`` if that is one of ``options``, otherwise the default; the widget of this key
    will show it. Call it before the widget, and give the widget ``on_change=remember(key)``.
    """
    found = st.query_params.get(key)
    value = found if found is not None and found in options else default
    st.session_state[key] = value
    return value


def follow_many(key: str, options: Sequence[str], default: Sequence[str]) -> list[str]:
    """``follow`` for a widget with several values: those of the address that are options, or the default."""
    found = [value for value in dict.fromkeys(st.query_params.get_all(key)) if value in options]
    values = found or list(default)
    st.session_state[key] = values
    return values


def remember(*keys: str) -> Callable[[], None]:
    """A widget's callback: write these keys into the address, and which sweep they belong to."""

    def write() -> None:
        found = {key: st.session_state.get(key) for key in ("sweep", *keys)}
        st.query_params.update({key: value for key, value in found.items() if value is not None})

    return write


def put(**values: str | None) -> None:
    """Write values into the address; None takes one out."""
    for key, value in values.items():
        if value is None:
            st.query_params.pop(key, None)
        elif st.query_params.get_all(key) != [value]:
            st.query_params[key] = value


def remember_sweep() -> None:
    """Another sweep was chosen: it asks another question and has other cells, but is looked at by the same metric."""
    kept = {key: st.session_state[key] for key in ("sweep", "metric") if st.session_state.get(key) is not None}
    st.query_params.from_dict(kept)


def open_form() -> None:
    """Ask for a new sweep."""
    st.query_params[NEW] = "1"


def close_form() -> None:
    """Go back to the results."""
    st.query_params.pop(NEW, None)

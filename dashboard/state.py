"""What is shown is written in the address, so that a view is a link: the address is the only truth, widgets follow.

The address is written when the user chooses something, and then whole; never on its own, or the browser's Back button
would lead nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

KEYS = ("sweep", "policy", "cell", "metric")
NEW = "new"
"""In the address while the form for a new sweep is open."""


def follow(key: str, options: Sequence[str], default: str) -> str:
    """What the address says of ``key`` if that is one of ``options``, otherwise the default; the widget of this key
    will show it. Call it before the widget.
    """
    found = st.query_params.get(key)
    value = found if found is not None and found in options else default
    st.session_state[key] = value
    return value


def remember() -> None:
    """Write all that is chosen into the address (a widget's callback)."""
    st.query_params.update({key: st.session_state[key] for key in KEYS if key in st.session_state})


def remember_sweep() -> None:
    """Another sweep was chosen: it has other cells and policies, but is looked at by the same metric."""
    kept = {key: st.session_state[key] for key in ("sweep", "metric") if key in st.session_state}
    st.query_params.from_dict(kept)


def open_form() -> None:
    """Ask for a new sweep."""
    st.query_params[NEW] = "1"


def close_form() -> None:
    """Go back to the results."""
    st.query_params.pop(NEW, None)

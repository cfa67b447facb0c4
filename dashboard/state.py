"""What is shown is written in the address, so that a view is a link: the address is the only truth, widgets follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st


def from_address(key: str, options: Sequence[str], default: str) -> str:
    """What the address says of ``key``, if it is one of ``options``; otherwise the default."""
    found = st.query_params.get(key)
    return found if found is not None and found in options else default


def follow(key: str, options: Sequence[str], default: str) -> str:
    """Let the widget of this key show what the address says, and complete the address. Call it before the widget."""
    value = from_address(key, options, default)
    st.session_state[key] = value
    if st.query_params.get(key) != value:
        st.query_params[key] = value
    return value


def remember(key: str) -> Callable[[], None]:
    """A callback that writes the widget's new value into the address."""

    def write() -> None:
        value = st.session_state[key]
        if value is None:
            st.query_params.pop(key, None)
        else:
            st.query_params[key] = value

    return write


def forget(*keys: str) -> None:
    """Take keys out of the address."""
    for key in keys:
        st.query_params.pop(key, None)

"""How a figure is shown: with its picture and its data to take away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pandas as pd
import plotly.graph_objects as go
import streamlit as st


def show(
    figure: go.Figure,
    data: pd.DataFrame | Callable[[], pd.DataFrame],
    key: str,
    *,
    on_click: Callable[[], None] | None = None,
    choose: Literal["points", "box"] = "points",
) -> None:
    """Draw ``figure``. The camera over it saves the picture (PNG, twice the size); the button under it saves ``data``
    (CSV). ``key`` names widget and files; ``on_click`` is called with a point (or, if asked for, a range of the figure)
    chosen, found in the state under ``key``.
    """
    config = {
        "displaylogo": False,
        "modeBarButtons": [["toImage"]],
        "toImageButtonOptions": {"format": "png", "filename": key, "scale": 2},
    }
    if on_click is None:
        st.plotly_chart(figure, key=key, config=config)
    else:
        st.plotly_chart(figure, key=key, config=config, on_select=on_click, selection_mode=choose)
    st.download_button(
        "CSV",
        data=(lambda: to_csv(data())) if callable(data) else to_csv(data),
        file_name=f"{key}.csv",
        mime="text/csv",
        icon=":material/download:",
        key=f"{key}-csv",
        type="tertiary",
        on_click="ignore",
        help="The figure's data",
    )


def to_csv(data: pd.DataFrame) -> str:
    """The data as text."""
    return data.to_csv(index=False)

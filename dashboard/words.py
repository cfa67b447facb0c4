"""Text for Streamlit's Markdown: nothing that comes from a file may be taken for markup."""

from __future__ import annotations

import re

from ..experiments.grid import Cell

_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#~$|:])")
KNOB = re.compile(r"\bmax_num_(?:seqs|batched_tokens)(?:=\d+)?")
"""A knob's name, with its value if one follows."""


def plain(text: str) -> str:
    """``text`` with every Markdown character escaped."""
    return _SPECIAL.sub(r"\\\1", text)


def with_knobs(text: str) -> str:
    """``text`` escaped, but for the names of the knobs, which are set as code."""
    return "".join(
        f"`{part}`" if KNOB.fullmatch(part) else plain(part) for part in re.split(rf"({KNOB.pattern})", text)
    )


def cell_name(cell: Cell) -> str:
    """``16 × 64``: sequences × tokens."""
    return f"{cell.max_num_seqs:,} × {cell.max_num_batched_tokens:,}"

"""The colours: one for what is predicted, one for what is measured, wherever either is shown.

Both are of Okabe and Ito's palette, made to be told apart with every common kind of colour blindness; both stand out
on white and on black.
"""

from __future__ import annotations

PREDICTED = "#0072B2"
MEASURED = "#D55E00"
NEUTRAL = "#868E99"
"""Whatever is neither: hatches, bands, baselines. Visible on light and on dark."""
FAINT = "rgba(134, 142, 153, 0.16)"
GRID_LINE = "rgba(134, 142, 153, 0.28)"
MARK_FILL = "#FFFFFF"
MARK_LINE = "#111418"

VALUES = (
    (0.0, "#00224E"),
    (0.25, "#434E6C"),
    (0.5, "#7D7C78"),
    (0.75, "#BCAF6F"),
    (1.0, "#FEE838"),
)
"""Cividis in five steps: one scale for predicted and measured values, since they are compared. Bright is better."""
ERRORS = (
    (0.0, "#1B7837"),
    (0.25, "#7FBF7B"),
    (0.5, "#F7F7F7"),
    (0.75, "#AF8DC3"),
    (1.0, "#762A83"),
)
"""ColorBrewer's PRGn, turned: green where the prediction is too low, purple where it is too high; neither is the
colour of predicted or measured."""

SEQS, TOKENS, BLOCKS, UNBOUND = "#44AA99", "#C9A227", "#CC6677", "rgba(134, 142, 153, 0.22)"
"""What bounds an iteration: max_num_seqs, max_num_batched_tokens, KV blocks, nothing; and what each bounds, the
running, the batched and the cached, has its colour."""
DECODE, PREFILL, WAITING = "#868E99", "#9C7BD1", "#AA4499"
"""Decode tokens, those of chunks where they are not told apart by request, and who waits."""
REQUESTS = (
    "#88CCEE",
    "#CC6677",
    "#DDCC77",
    "#44AA99",
    "#B07CC6",
    "#999933",
    "#E8A87C",
    "#6699CC",
    "#AA4499",
    "#7FB069",
)
"""Requests, by turns: Paul Tol's muted scheme in its lighter part, which can be told apart with every common kind of
colour blindness and carries dark text, with four colours between."""
REQUEST_TEXT = "#16191D"


def request_color(index: int) -> str:
    """The colour of a request, the same wherever it is shown."""
    return REQUESTS[index % len(REQUESTS)]


def tint(color: str, share: float = 0.45) -> str:
    """A ``#RRGGBB`` colour with white mixed in, so that dark text stands on it on any page."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + share * (255 - part)):02X}" for part in parts)


def reversed_scale(scale: tuple[tuple[float, str], ...]) -> tuple[tuple[float, str], ...]:
    """The same colours from the other end."""
    return tuple((1.0 - at, color) for at, color in reversed(scale))

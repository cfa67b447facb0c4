"""The physical KV pool as a map: whose each block is, what this forward writes, and what a query may read."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from .colors import FAINT, NEUTRAL, REQUEST_TEXT, REQUESTS
from .figures import new_figure
from .forward_data import FREE, NULL, SHARED, Forward, IntArray
from .forward_figures import heading

MOST_SLOTS = 1200
"""Slots that are drawn one by one; larger pools are drawn by the block."""
MOST_NUMBERED = 180
"""Blocks that have their number on them."""
ASPECT = 1.25
"""Width of the map over its height."""
_NOBODY = "rgba(134, 142, 153, 0.10)"
_EMPTY = "rgba(134, 142, 153, 0.34)"
_PALETTE = (_NOBODY, NEUTRAL, "#4A5058", FAINT, _EMPTY, *REQUESTS)
_COLOR_FREE, _COLOR_SHARED, _COLOR_NULL, _COLOR_OTHER, _COLOR_EMPTY, _COLOR_FIRST = range(6)


class Grid(NamedTuple):
    """Where blocks stand: row by row, ``columns`` a row."""

    columns: int
    rows: int

    @classmethod
    def of(cls, num_blocks: int, cells_wide: float = 1.0) -> Grid:
        """About as wide as the map; a block is ``cells_wide`` times as wide as high."""
        columns = max(1, min(num_blocks, round(math.sqrt(num_blocks * ASPECT / cells_wide))))
        return cls(columns, -(-num_blocks // columns))


def pool_map(data: Forward, chosen: int | None = None, *, height_px: int = 300) -> go.Figure:
    """Draw the pool. ``chosen`` is a sequence: only the blocks that its queries may read have a colour."""
    figure = new_figure("", height_px)
    usable = data.config.num_usable_blocks
    used = usable - data.num_free_blocks
    detail = f"{used:,} of {usable:,} blocks of {data.config.block_size} in use · ● written now"
    figure.update_layout(title=heading("block_tables", detail), margin={"l": 8, "r": 8, "t": 34, "b": 8})
    if data.config.num_gpu_blocks * data.config.block_size <= MOST_SLOTS:
        _slots(figure, data, chosen)
    else:
        _blocks(figure, data, chosen)
    figure.update_xaxes(visible=False, constrain="domain")
    figure.update_yaxes(visible=False, autorange="reversed")
    return figure


def block_colors(data: Forward, chosen: int | None = None) -> IntArray:
    """[num_gpu_blocks] The colour of each block, an index into the palette."""
    owner = data.owner
    colors = np.select(
        [owner == NULL, owner == FREE, owner == SHARED], [_COLOR_NULL, _COLOR_FREE, _COLOR_SHARED], _COLOR_OTHER
    )
    owned = owner >= 0
    colors[owned] = _COLOR_FIRST + data.request[owner[owned]] % len(REQUESTS)
    if chosen is not None:
        colors[owned | (owner == SHARED)] = _COLOR_OTHER
        table = data.shapes.readable_blocks(chosen, data.config.block_size)
        colors[table] = _COLOR_FIRST + int(data.request[chosen]) % len(REQUESTS)
    return colors


def _blocks(figure: go.Figure, data: Forward, chosen: int | None) -> None:
    grid = Grid.of(data.config.num_gpu_blocks)
    colors = block_colors(data, chosen)
    hovers = np.array(block_hovers(data), dtype=object)
    figure.add_trace(_heatmap(_on_grid(colors, grid), _on_grid(hovers, grid, ""), 1 if grid.columns < 120 else 0))
    if len(colors) <= MOST_NUMBERED:
        figure.add_trace(_ids(colors >= _COLOR_FIRST, grid, 1))
    written = _written(data, chosen)
    shift = 0.15 if len(colors) <= MOST_NUMBERED else 0.0  # beside the number
    size = max(2.5, min(8.0, 220 / grid.columns))
    figure.add_trace(
        go.Scatter(
            x=written % grid.columns + shift,
            y=written // grid.columns + shift,
            mode="markers",
            marker={"color": REQUEST_TEXT, "size": size, "line": {"color": "#FFFFFF", "width": 0.6}},
            hoverinfo="skip",
            name="written",
        )
    )


def _slots(figure: go.Figure, data: Forward, chosen: int | None) -> None:
    """A block is a row of its slots, with a gap beside it."""
    size = data.config.block_size
    grid = Grid.of(data.config.num_gpu_blocks, (size + 1) / 1.7)
    colors = np.repeat(block_colors(data, chosen)[:, None], size, axis=1)
    held = _held_slots(data)
    colors[~held & (colors >= _COLOR_FIRST)] = _COLOR_EMPTY
    z = np.full((grid.rows, grid.columns * (size + 1)), np.nan)
    texts = np.full(z.shape, "", dtype=object)
    hovers = block_hovers(data)
    for block in range(data.config.num_gpu_blocks):
        row, x = block // grid.columns, block % grid.columns * (size + 1)
        z[row, x : x + size] = colors[block]
        texts[row, x : x + size] = hovers[block]
    figure.add_trace(_heatmap(z, texts, 2))
    figure.add_trace(_ids(colors[:, 0] >= _COLOR_FIRST, grid, size + 1))
    slots = data.shapes.slot_mapping if chosen is None else data.shapes.slot_mapping[data.seq_of_token == chosen]
    figure.add_trace(
        go.Scatter(
            x=slots // size % grid.columns * (size + 1) + slots % size,
            y=slots // size // grid.columns + 0.12,
            mode="markers",
            marker={"color": REQUEST_TEXT, "size": 7, "line": {"color": "#FFFFFF", "width": 1}},
            hoverinfo="skip",
            name="written",
        )
    )


def _ids(on_color: NDArray[np.bool_], grid: Grid, width: int) -> go.Scatter:
    """The number of each block in its corner; ``width`` is that of a block with its gap, in cells."""
    blocks = np.arange(len(on_color))
    return go.Scatter(
        x=blocks % grid.columns * width - 0.45,
        y=blocks // grid.columns - 0.36,
        mode="text",
        text=[str(block) for block in blocks],
        textposition="bottom right",
        textfont={"size": 9.5, "color": np.where(on_color, REQUEST_TEXT, NEUTRAL)},
        hoverinfo="skip",
        name="block ids",
    )


def _held_slots(data: Forward) -> NDArray[np.bool_]:
    """[num_gpu_blocks, block_size] Slots that hold a token of a sequence when this forward has run."""
    size = data.config.block_size
    held = np.zeros((data.config.num_gpu_blocks, size), dtype=bool)
    for seq in range(data.num_seqs):
        length = int(data.shapes.seq_lens[seq])
        table = np.array(data.shapes.readable_blocks(seq, size), dtype=np.int64)
        positions = np.arange(length)
        held[table[positions // size], positions % size] = True
    return held


def _written(data: Forward, chosen: int | None) -> IntArray:
    if chosen is None:
        return data.written
    mine = data.shapes.slot_mapping[data.seq_of_token == chosen]
    return np.unique(mine // data.config.block_size)


def block_hovers(data: Forward) -> list[str]:
    """What is known of each block."""
    size = data.config.block_size
    out = [f"block {block:,}: free or not served" for block in range(len(data.owner))]
    out[0] = "<b>block 0</b><br>the null block: never handed out"
    written = set(data.written.tolist())
    readers: dict[int, list[int]] = {}
    for seq in range(data.num_seqs):
        length = int(data.shapes.seq_lens[seq])
        for logical, block in enumerate(data.shapes.readable_blocks(seq, size)):
            readers.setdefault(block, []).append(seq)
            last = min((logical + 1) * size, length) - 1
            now = "<br>written by this forward" if block in written else ""
            out[block] = (
                f"<b>block {block:,}</b><br>{data.names[seq]}, its block {logical:,}: positions "
                f"{logical * size:,} … {last:,}{now}"
            )
    for block, seqs in readers.items():
        if len(seqs) > 1:
            out[block] = f"<b>block {block:,}</b><br>a cached prefix that {len(seqs):,} sequences share"
    return out


def _on_grid(values: NDArray[np.generic], grid: Grid, filler: object = np.nan) -> NDArray[np.generic]:
    dtype = object if isinstance(filler, str) else float
    cells = np.full(grid.columns * grid.rows, filler, dtype=dtype)
    cells[: len(values)] = values
    return cells.reshape(grid.rows, grid.columns)


def _heatmap(z: NDArray[np.generic], texts: NDArray[np.generic], gap_px: int) -> go.Heatmap:
    count = len(_PALETTE)
    scale = [(edge / count, color) for i, color in enumerate(_PALETTE) for edge in (i, i + 1)]
    return go.Heatmap(
        z=z,
        zmin=-0.5,
        zmax=count - 0.5,
        colorscale=scale,
        showscale=False,
        xgap=gap_px,
        ygap=gap_px,
        customdata=texts,
        hovertemplate="%{customdata}<extra></extra>",
        name="blocks",
    )

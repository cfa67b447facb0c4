"""Writes docs/scenarios.md from the rows and what their checks give now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from field_rows import CHECKED, data, outcome, rows

TABLE = Path(__file__).resolve().parents[2] / "docs" / "scenarios.md"
TIERS = {
    "T1": "Arithmetic",
    "T2": "Policy, step by step",
    "T3": "Direction or shape under a stated cost law",
    "T4": "Figures for a GPU, from its data sheet at efficiencies that operator tables show",
}
HEAD = """# What people ask about the two knobs, and what BatchTwin answers

Written by `python tests/scenarios/write_table.py`; a test holds this file against what the checks give.

Questions and figures are those of public threads, in our own words. "Given" are the figures that their authors printed;
we measured none of them. The inputs of each row are in `tests/data/field_rows.json`, its check in `tests/scenarios/`.
The cost laws below are stated, not measured: rows of the third table claim a direction or a shape, never a magnitude.

"""


def table() -> str:
    """The whole file."""
    parts = [HEAD, _summary(), *(_section(tier) for tier in TIERS), _laws()]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _summary() -> str:
    verdicts = [row["verdict"] for row in rows()]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    return f"{len(verdicts)} rows: {counts}."


def _section(tier: str) -> str:
    chosen = sorted((row for row in rows() if row["tier"] == tier), key=lambda row: row["id"])
    lines = [
        f"## {tier}: {TIERS[tier]}",
        "",
        "| row | question | given | expected | came out | verdict |",
        "|---|---|---|---|---|---|",
        *(_line(row) for row in chosen),
    ]
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    came_out = outcome(row["id"]).came_out if row["verdict"] in CHECKED else "–"
    said = " ".join(part for part in (came_out, f"*{row['note']}*" if row["note"] else "") if part)
    where = f"{row['id']}<br>{row['source']}"
    cells = (where, row["question"], row["given"], row["expectation"], said, f"**{row['verdict']}**")
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"


def _laws() -> str:
    used = {row["inputs"]["profile"] for row in rows() if "profile" in row["inputs"]}
    profiles = data()["profiles"].items()
    lines = [f"- `{name}`: {profile['about']}" for name, profile in profiles if name in used]
    return "\n".join(["## Cost laws", "", *lines])


if __name__ == "__main__":
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(table(), encoding="utf-8")

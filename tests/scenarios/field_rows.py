"""The rows of the field and what each check makes of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import checks_arithmetic
import checks_budget
import checks_exchange
import checks_gpus
import checks_latency
import checks_load
import checks_memory
import checks_pressure
from field_replays import Outcome

PATH = Path(__file__).resolve().parents[1] / "data" / "field_rows.json"
CHECKS = {
    **checks_arithmetic.CHECKS,
    **checks_budget.CHECKS,
    **checks_exchange.CHECKS,
    **checks_gpus.CHECKS,
    **checks_latency.CHECKS,
    **checks_load.CHECKS,
    **checks_memory.CHECKS,
    **checks_pressure.CHECKS,
}
CHECKED = ("pass", "fail")
"""Verdicts that rest on a check; the others (``not modelled``, ``next``) rest on a stated reason."""


@cache
def data() -> dict[str, Any]:
    """``profiles`` by name and ``rows``; a row names its profile."""
    loaded: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return loaded


def rows() -> list[dict[str, Any]]:
    return list(data()["rows"])


def row(row_id: str) -> dict[str, Any]:
    return next(row for row in rows() if row["id"] == row_id)


@cache
def outcome(row_id: str) -> Outcome:
    """Run the check of a row; once a process."""
    inputs = dict(row(row_id)["inputs"])
    if "profile" in inputs:
        inputs["profile"] = data()["profiles"][inputs["profile"]]
    return CHECKS[row_id](inputs)

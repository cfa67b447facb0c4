"""Leaving out cells that cannot matter: successive halving on a growing prefix of the trace. Only if asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from ..sim.cost.profile import Profile
from .cells import predict_cells
from .grid import TOLERANCE, Cell, CellResult, best_of
from .pool import Pool
from .scenario import Scenario

SHARES = (0.25, 0.5)
"""Share of the trace of each round; who is left after the last is predicted on all of it."""
FEWEST = 4
"""Cells of a policy that are not halved any more."""


class Rung(NamedTuple):
    """One round: what it scored, and who is left out."""

    num_requests: int
    scores: dict[Cell, float]
    skipped: dict[Cell, str]
    """With the reason: the round, the cell's score and the cut."""

    def by_key(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "num_requests": self.num_requests,
            "scores": {cell.key: score for cell, score in self.scores.items()},
            "skipped": {cell.key: why for cell, why in self.skipped.items()},
        }


def halve(
    cells: Sequence[Cell], scenario: Scenario, profile: Profile, objective: str, pool: Pool[CellResult]
) -> Iterator[Rung]:
    """Rounds over ``cells``, policy by policy. A cell is left out if its objective on the round's prefix is below the
    median of its policy's cells *and* more than the tolerance of a recommendation below their best.

    This is a rule of thumb, not a proof: a queue that only builds up later is not seen. Where the prefix loads no cell
    to its limit all score alike, and nobody is left out. A cell without a score (it cannot work, or failed) stays in,
    so that its reason is that of the whole trace.
    """
    left = list(cells)
    for number, share in enumerate(SHARES, 1):
        shorter = prefix(scenario, share)
        found = {result.cell: result for result in predict_cells(left, shorter, profile, pool, bare=True)}
        scored = [found[cell] for cell in left if found[cell].status == "ok"]
        num_requests = shorter.trace.num_requests or 0
        head = f"Left out after round {number} (the first {num_requests:,} requests)"
        skipped: dict[Cell, str] = {}
        for policy in dict.fromkeys(cell.policy for cell in left):
            mine = [result for result in scored if result.cell.policy == policy]
            if len(mine) > FEWEST:
                skipped |= {cell: f"{head}: {why}" for cell, why in _below(mine, objective).items()}
        yield Rung(num_requests, {result.cell: result.metrics[objective] for result in scored}, skipped)
        left = [cell for cell in left if cell not in skipped]


def _below(results: Sequence[CellResult], objective: str) -> Mapping[Cell, str]:
    scores = {result.cell: result.metrics[objective] for result in results}
    best = best_of(results, objective).metrics[objective]
    cut = min(median(scores.values()), (1 - TOLERANCE) * best)
    return {
        cell: f"its {objective} of {score:,.1f} is below the cut of {cut:,.1f} (best of {len(results)}: {best:,.1f})."
        for cell, score in scores.items()
        if score < cut
    }


def prefix(scenario: Scenario, share: float) -> Scenario:
    """``scenario`` with the first ``share`` of its requests, at least one."""
    spec = scenario.trace
    num_read = len(spec.model_copy(update={"thin": 1.0, "repeat": 1}).load())
    shorter = spec.model_copy(update={"num_requests": max(1, round(share * num_read))})
    return scenario.with_(trace=shorter.model_dump())

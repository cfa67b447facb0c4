"""The grid of both knobs: which cells there are, and which are worth measuring."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from ..scheduler.policies import load_policy
from .scenario import Scenario

TOLERANCE = 0.02
"""Throughput that smaller knobs may cost, as a share."""
DEFAULTS = {
    "cpu": {"llm_class": (256, 4096), "server": (128, 2048)},
    "gpu": {"llm_class": (256, 8192), "server": (256, 2048)},
    "large_gpu": {"llm_class": (1024, 16384), "server": (1024, 8192)},
}
"""vLLM 0.33's (max_num_seqs, max_num_batched_tokens) by device class: a CPU at world size 1; GPUs; GPUs with at least
70 GiB (H100, H200; not the A100)."""
Status = Literal["ok", "infeasible", "failed", "skipped"]


def policy_label(spec: str) -> str:
    """A policy's name as every result shows it: an oracle, which uses what no server knows, is called one."""
    return f"{spec} (oracle)" if load_policy(spec).is_oracle else spec


class Cell(NamedTuple):
    """One setting of the knobs."""

    policy: str
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def key(self) -> str:
        """A name fit for a folder."""
        return f"{self.policy.replace(':', '-')}-seqs{self.max_num_seqs}-tokens{self.max_num_batched_tokens}"

    def of(self, scenario: Scenario) -> Scenario:
        """``scenario`` with this cell's knobs."""
        return scenario.with_(**self._asdict())


class CellResult(NamedTuple):
    """One cell, predicted: its metrics, or why there are none: it cannot work, predicting it failed twice, or a search
    left it out.
    """

    cell: Cell
    status: Status
    reason: str
    num_gpu_blocks: int
    metrics: dict[str, float]
    nulls: dict[str, dict[str, float]]
    low: Mapping[str, float] = {}
    """The metrics that are compared, at the lower end of the calibration's interval (``intervals``)."""
    high: Mapping[str, float] = {}
    seeds: Sequence[Mapping[str, float]] = ()
    """The same metrics with each further seed of a drawn trace."""
    timeline: Mapping[str, Sequence[float]] = {}
    """Running, waiting and KV usage over time (``timeline``)."""


def best_of(results: Sequence[CellResult], objective: str) -> CellResult:
    """The predicted best of feasible cells; ties go to the first, that is to the smaller knobs."""
    return max(results, key=lambda result: result.metrics[objective])


def nearly_best(results: Sequence[CellResult], objective: str, tolerance: float = TOLERANCE) -> CellResult:
    """The smallest knobs within ``tolerance`` of the best: the smallest product, then the fewest sequences."""
    least = (1 - tolerance) * best_of(results, objective).metrics[objective]
    near = [result for result in results if result.metrics[objective] >= least]
    return min(near, key=lambda r: (r.cell.max_num_seqs * r.cell.max_num_batched_tokens, r.cell))


def default_cell(scenario: Scenario) -> Cell:
    """What vLLM would choose on this device class (scenario field ``default_cell`` says for which entry point)."""
    device_class = scenario.device_class or ("cpu" if scenario.device == "cpu" else "gpu")
    seqs, tokens = DEFAULTS[device_class][scenario.default_cell]
    return Cell(scenario.policy, seqs, tokens)


def cells(policies: Sequence[str], max_num_seqs: Sequence[int], max_num_batched_tokens: Sequence[int]) -> list[Cell]:
    """All cells, policy by policy, row by row."""
    return [
        Cell(policy, seqs, tokens)
        for policy in policies
        for seqs in sorted(set(max_num_seqs))
        for tokens in sorted(set(max_num_batched_tokens))
    ]


def cells_to_measure(
    feasible: Sequence[Cell], grid: Collection[Cell], best: Sequence[Cell], default: Cell, k: int
) -> list[Cell]:
    """At least ``k`` of the feasible cells: per policy the corners of ``grid`` (vLLM's default may lie off it), vLLM's
    default and the predicted best, whatever ``k``; then those farthest (in octaves of the knobs) from all chosen, ties
    to the smaller knobs.
    """
    chosen: list[Cell] = []
    for policy in dict.fromkeys(cell.policy for cell in feasible if cell in grid):
        chosen += _corners([cell for cell in feasible if cell.policy == policy and cell in grid])
    chosen += [cell for cell in (*best, *(default._replace(policy=cell.policy) for cell in best)) if cell in feasible]
    chosen = list(dict.fromkeys(chosen))
    while len(chosen) < min(k, len(feasible)):
        chosen.append(max((cell for cell in feasible if cell not in chosen), key=lambda c: _distance(c, chosen)))
    return sorted(chosen)


def _corners(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Extreme cells that exist: of the smallest and the largest ``max_num_seqs``, both ends of the budget."""
    for seqs in (min(c.max_num_seqs for c in cells), max(c.max_num_seqs for c in cells)):
        row = [c for c in cells if c.max_num_seqs == seqs]
        yield min(row, key=lambda c: c.max_num_batched_tokens)
        yield max(row, key=lambda c: c.max_num_batched_tokens)


def _distance(cell: Cell, chosen: Sequence[Cell]) -> float:
    def octaves(other: Cell) -> float:
        if other.policy != cell.policy:
            return float("inf")
        seqs = cell.max_num_seqs / other.max_num_seqs
        tokens = cell.max_num_batched_tokens / other.max_num_batched_tokens
        return max(seqs, 1 / seqs) * max(tokens, 1 / tokens)

    return min(octaves(other) for other in chosen)

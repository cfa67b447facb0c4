"""Which values to choose, and what holds the others back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..scheduler.batch import Bound
from .errors import ExperimentError
from .exchange.serve_command import serve_command
from .grid import TOLERANCE, Cell, CellResult, best_of, nearly_best, policy_label
from .sweep import Sweep

KNOB = {
    Bound.MAX_NUM_SEQS: "max_num_seqs",
    Bound.MAX_NUM_BATCHED_TOKENS: "max_num_batched_tokens",
    Bound.KV_BLOCKS: "the KV blocks",
}
SLO_METRIC = {"ttft_ms": "p99_ttft_ms", "tpot_ms": "p99_tpot_ms", "e2el_ms": "p99_e2el_ms"}
SLO_WORD = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "E2E"}
UNITS = {
    "output_throughput": "output tokens/s",
    "request_throughput": "requests/s",
    "total_token_throughput": "tokens/s",
    "request_goodput": "requests/s within the SLOs",
}


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The smallest knobs that do (nearly) as well as the best."""

    cell: Cell
    metrics: dict[str, float]
    best: Cell
    meets_slo: bool
    sentence: str
    serve_command: str
    """A line for a shell: the command, or a comment that says why vLLM cannot serve this."""


def recommend(
    sweep: Sweep, *, slo: Mapping[str, float] | None = None, policy: str | None = None, tolerance: float = TOLERANCE
) -> Recommendation:
    """The smallest knobs within ``tolerance`` of the predicted best among the cells whose P99s meet the SLOs (in ms;
    those of the scenario if none are given). If no cell meets them the best cell is named, and the sentence says so.

    Raises ``ExperimentError`` if no cell is feasible.
    """
    scenario = sweep.spec.scenario
    limits = dict(scenario.slo if slo is None else slo)
    unknown = set(limits) - set(SLO_METRIC)
    if unknown:
        raise ExperimentError(f"There is no SLO {sorted(unknown)[0]!r}; known are {', '.join(SLO_METRIC)}.")
    feasible = [result for result in sweep.feasible() if policy in (None, result.cell.policy)]
    if not feasible:
        raise ExperimentError(_none_feasible(sweep, policy))
    objective = sweep.spec.objective
    meeting = [result for result in feasible if _meets(result, limits)]
    pool = meeting or feasible
    best = best_of(pool, objective)
    chosen = nearly_best(pool, objective, tolerance)
    choice = _choice(chosen, objective, limits, bool(meeting), tolerance)
    return Recommendation(
        cell=chosen.cell,
        metrics=chosen.metrics,
        best=best.cell,
        meets_slo=bool(meeting),
        sentence=f"{choice} {_rest(chosen, feasible, objective, tolerance)}",
        serve_command=serve_command(scenario, chosen),
    )


def dominant_bound(metrics: Mapping[str, float]) -> Bound:
    """The bound that was active for most of the busy time."""
    return max(Bound, key=lambda bound: metrics[f"bound_{bound.name.lower()}_share"])


def _none_feasible(sweep: Sweep, policy: str | None) -> str:
    found = [result for result in sweep.predicted() if policy in (None, result.cell.policy)]
    if not found:
        asked = f" of policy {policy}" if policy else ""
        return f"{sweep.folder} has no predicted cell{asked}: run the sweep with it."
    return f"No cell of {sweep.folder} is feasible; the first, {found[0].cell.key}: {found[0].reason}"


def _meets(result: CellResult, limits: Mapping[str, float]) -> bool:
    return all(result.metrics[SLO_METRIC[name]] <= limit for name, limit in limits.items())


def _choice(chosen: CellResult, objective: str, limits: Mapping[str, float], meets: bool, tolerance: float) -> str:
    cell, value = chosen.cell, chosen.metrics[objective]
    policy = f"{policy_label(cell.policy)} with " if cell.policy != "vllm_v1" else ""
    text = (
        f"Choose {policy}max_num_seqs={cell.max_num_seqs} and max_num_batched_tokens={cell.max_num_batched_tokens}: "
        f"the smallest knobs within {tolerance:.0%} of the best, {value:,.1f} {UNITS.get(objective, objective)}"
    )
    if not limits:
        return text + "."
    named = ", ".join(f"P99 {SLO_WORD[name]} ≤ {limit:g} ms" for name, limit in limits.items())
    if not meets:
        return f"No cell meets {named}: the load is too high for any. Without the SLOs: {text[0].lower()}{text[1:]}."
    return f"{text}, meeting {named}."


def _rest(chosen: CellResult, feasible: list[CellResult], objective: str, tolerance: float) -> str:
    worse = [r for r in feasible if r.metrics[objective] < (1 - tolerance) * chosen.metrics[objective]]
    if not worse:
        bound = dominant_bound(chosen.metrics)
        if bound is Bound.NONE:
            return "No bound holds any cell back for long: the load, not a knob, sets the throughput."
        return f"The other cells do as well; what is active most of the time here is {KNOB[bound]}."
    bounds = Counter(dominant_bound(result.metrics) for result in worse)
    bound, count = max(bounds.items(), key=lambda item: (item[1], -item[0]))
    share = f"{count} of the {len(worse)} slower cells"
    if bound is Bound.NONE:
        return f"In {share} no bound is active for most of the time: their steps themselves are slower."
    return (
        f"{KNOB[bound]} holds back {share}." if bound is not Bound.KV_BLOCKS else (f"The KV blocks hold back {share}.")
    )

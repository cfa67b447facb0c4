"""Which values to choose, and what holds the others back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..scheduler.batch import Bound
from .errors import ExperimentError
from .exchange.serve_command import serve_command
from .grid import TOLERANCE, Cell, CellResult, best_of, default_cell, nearly_best, policy_label
from .intervals import MIN_SEEDS, interval, lead_half, over_seeds
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
    """The smallest knobs that do (nearly) as well as the best: on average over the seeds where there are several."""

    cell: Cell
    metrics: dict[str, float]
    """With the sweep's own seed, which is the one that is measured."""
    best: Cell
    meets_slo: bool
    sentence: str
    serve_command: str
    """A line for a shell: the command, or a comment that says why vLLM cannot serve this."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Over the seeds; ``low`` and ``high`` are the ends of their intervals."""
    low: Mapping[str, float] = field(default_factory=dict)
    high: Mapping[str, float] = field(default_factory=dict)
    tied: tuple[Cell, ...] = ()
    """Cells whose difference from the chosen one lies within the interval of that difference, vLLM's default first."""


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
    predicted = {result.cell: result for result in sweep.feasible() if policy in (None, result.cell.policy)}
    if not predicted:
        raise ExperimentError(_none_feasible(sweep, policy))
    feasible = [result._replace(metrics=over_seeds(result)) for result in predicted.values()]
    objective = sweep.spec.objective
    meeting = [result for result in feasible if _meets(result, limits)]
    pool = meeting or feasible
    best = best_of(pool, objective)
    chosen = nearly_best(pool, objective, tolerance)
    own = predicted[chosen.cell]
    ends = {name: interval(own, name) for name in own.low}
    tied = _tied(own, [predicted[result.cell] for result in pool], objective, default_cell(scenario))
    sentences = (
        _choice(chosen, objective, limits, bool(meeting), tolerance),
        _rest(chosen, feasible, objective, tolerance),
        _certainty(own, [predicted[result.cell] for result in pool], tied, objective),
        _doubtful_slo(ends, limits, bool(meeting)),
        _overload(feasible),
        _ground(sweep),
    )
    return Recommendation(
        cell=chosen.cell,
        metrics=own.metrics,
        best=best.cell,
        meets_slo=bool(meeting),
        sentence=" ".join(sentence for sentence in sentences if sentence),
        serve_command=serve_command(scenario, chosen),
        means=chosen.metrics,
        low={name: low for name, (low, _) in ends.items()},
        high={name: high for name, (_, high) in ends.items()},
        tied=tied,
    )


def _tied(chosen: CellResult, pool: list[CellResult], objective: str, default: Cell) -> tuple[Cell, ...]:
    tied = [
        other.cell
        for other in pool
        if other.cell != chosen.cell and abs(_lead(chosen, other, objective)) < lead_half(chosen, other, objective)
    ]
    return tuple(sorted(tied, key=lambda cell: cell != default))


def _lead(ahead: CellResult, behind: CellResult, objective: str) -> float:
    return over_seeds(ahead)[objective] - over_seeds(behind)[objective]


def _certainty(chosen: CellResult, pool: list[CellResult], tied: tuple[Cell, ...], objective: str) -> str:
    """A tie, or by how much the chosen cell leads the next one beyond the interval of that lead."""
    if not chosen.low:
        return ""
    low, high = interval(chosen, objective)
    text = f"Its interval is {low:,.1f} to {high:,.1f}"
    if tied:
        first = tied[0]
        named = f"{first.max_num_seqs} × {first.max_num_batched_tokens}"
        more = f" and {len(tied) - 1} more" if len(tied) > 1 else ""
        return f"{text}: a tie with {named}{more}, the difference lies within its interval."
    rivals = [other for other in pool if other.cell != chosen.cell]
    if not rivals:
        return f"{text}."
    rival = min(rivals, key=lambda other: _lead(chosen, other, objective))
    lead, half = _lead(chosen, rival, objective), lead_half(chosen, rival, objective)
    return f"{text}; it leads the next by {lead:,.1f} ± {half:,.1f}."


def _doubtful_slo(ends: Mapping[str, tuple[float, float]], limits: Mapping[str, float], meets: bool) -> str:
    """Limits that are met by the prediction, but not all over its interval."""
    doubtful = [
        f"P99 {SLO_WORD[name]} may be as high as {high:,.4g} ms"
        for name, limit in limits.items()
        if (high := ends.get(SLO_METRIC[name], (0.0, 0.0))[1]) > limit
    ]
    return f"{' and '.join(doubtful)}, beyond the limit." if meets and doubtful else ""


def _overload(feasible: list[CellResult]) -> str:
    """Where more is offered than any cell can take, no knob helps: that is the first thing to know."""
    rho = [result.metrics["offered_rho"] for result in feasible if "offered_rho" in result.metrics]
    if not rho or min(rho) <= 1 or min(rho) == float("inf"):
        return ""
    return f"Load ρ is {min(rho):.2f} at the best: more is offered than any of these cells can take."


def _ground(sweep: Sweep) -> str:
    """What the answer rests on, where that is less than three seeds of drawn requests."""
    spec = sweep.spec
    if not spec.scenario.trace.is_drawn or spec.num_seeds >= MIN_SEEDS:
        return ""
    seeds = "one seed" if spec.num_seeds == 1 else f"{spec.num_seeds} seeds"
    return f"It rests on {seeds} of drawn requests: sweep with {MIN_SEEDS} seeds or more before relying on it."


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
    if chosen.seeds:
        text += f" on average over {1 + len(chosen.seeds)} seeds"
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
    share = f"{count} of the {len(worse)} slower cells" if len(worse) > 1 else "the one slower cell"
    if bound is Bound.NONE:
        return f"In {share} no bound is active for most of the time: their steps themselves are slower."
    return (
        f"{KNOB[bound]} holds back {share}." if bound is not Bound.KV_BLOCKS else (f"The KV blocks hold back {share}.")
    )

"""What a run's iterations come to, in a sentence."""

from __future__ import annotations

from ..experiments.run import Run
from ..scheduler.batch import Bound
from .colors import MEASURED, PREDICTED
from .labels import number, percent

_TEXTS = {
    Bound.MAX_NUM_SEQS: "`max_num_seqs`",
    Bound.MAX_NUM_BATCHED_TOKENS: "`max_num_batched_tokens`",
    Bound.KV_BLOCKS: "the KV blocks",
}
LITTLE = 0.01
"""A share of the busy time below which a bound is not spoken of."""


def summary(run: Run) -> str:
    """How many iterations, what held them back, how often somebody was preempted; as Markdown, with a coloured dot."""
    found = run.metrics
    color = PREDICTED if run.kind == "predicted" else MEASURED
    kind = f"<span style='color:{color}'>●</span> {run.kind.capitalize()}:"
    counts = f"**{number(found['num_iterations'])} iterations** of {number(found['mean_iteration_ms'])} ms on average"
    return f"{kind} {counts}. {_held_back(found)} {_preemptions(found)}"


def _held_back(found: dict[str, float]) -> str:
    shares = {bound: found[f"bound_{bound.name.lower()}_share"] for bound in _TEXTS}
    named = sorted((bound for bound in _TEXTS if shares[bound] >= LITTLE), key=lambda bound: -shares[bound])
    if not named:
        return "Nothing held it back: whoever waited was admitted at once."
    words = [f"{_TEXTS[bound]} for {percent(100 * shares[bound])}" for bound in named]
    return f"What held it back: {', '.join(words)} of the busy time."


def _preemptions(found: dict[str, float]) -> str:
    count = int(found["num_preemptions"])
    if not count:
        return "Nobody was preempted."
    again = number(found["recomputed_tokens"])
    return f"{count:,} preemption{'s' if count > 1 else ''}, {again} tokens computed again."

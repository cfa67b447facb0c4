"""The random workloads of ``batchtwin.testing`` as Hypothesis draws them (and shrinks what fails), for every policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import strategies as st

from batchtwin.scheduler import POLICIES, load_policy
from batchtwin.sim.cost.models import Constant
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.testing import play as testing_play
from batchtwin.testing.workloads import ROOMS, Room, Workload, draw_workload

ROOMS_OF: dict[str, tuple[Room, ...]] = {
    "static_batch": ("roomy",),
    "prefill_first": ("whole", "roomy"),
    "orca": ("whole", "roomy"),
}
"""Where a policy can work at all: a rectangle, or any whole prompt, must fit one step."""


@dataclass(frozen=True)
class Case:
    policy: str
    workload: Workload


@st.composite
def cases(draw: st.DrawFn, policies: tuple[str, ...] = tuple(POLICIES)) -> Case:
    policy = draw(st.sampled_from(policies))
    room = draw(st.sampled_from(ROOMS_OF.get(policy, ROOMS)))
    return Case(policy, draw_workload(lambda low, high: draw(st.integers(low, high)), room))


def play(case: Case) -> testing_play.Played:
    """Play a case to its end in steps of 1 s; rules 1 to 6 are checked at every step."""
    return testing_play.play(case.workload, load_policy(case.policy), CostModelBackend(Constant(1.0)))


def check_outcome(case: Case, played: testing_play.Played) -> None:
    """Nobody lost or duplicated, everybody got exactly what was asked for: counted from the decisions alone."""
    ended = Counter(name for decision in played.decisions for name in decision.finishing)
    tokens = Counter(name for decision in played.decisions for name, _, _, samples, _ in decision.rows if samples)
    model_len = case.workload.config.max_model_len
    assert not ended or max(ended.values()) == 1
    for index, ask in enumerate(case.workload.asks):
        name = str(index)
        if name in played.refused:
            assert tokens[name] == ended[name] == 0
        elif name not in played.aborted:
            assert ended[name] == 1
            assert tokens[name] == min(ask.output_len, model_len - ask.num_prompt_tokens)

"""The conformance suite for policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..scheduler import ConfigError, InfeasibleBatch, Policy, UnknownPolicy, load_policy
from ..sim.cost.models import Constant, Fitted
from ..sim.cost_backend import CostModelBackend
from ..sim.records import Records
from .play import Played, Uneven, play
from .violation import BLIND, LEAPING, SAME_AGAIN, TIMING, PolicyViolation
from .workloads import ROOMS, Workload, draw_workload

Make = Callable[[], Policy]
_LAW = Fitted(fixed_s=0.3, token_slopes_s=(0.02,), per_decode_kv_token_s=0.003, per_prefill_s=0.1)


def check_policy(policy: str | type[Policy] | Make, *, examples: int = 100, seed: int = 0) -> None:
    """Play ``examples`` random workloads with ``policy`` (a class, a function that makes one, or what ``--policy``
    takes) and raise ``PolicyViolation`` for the first rule it breaks, with the step and the example.

    Every step: budget (1), blocks (2, 3), nobody lost or starved for ever (4), clock and tokens (5), work (6). Every
    workload: the same batches again (7), the records of stepping when leaping (8), the same batches under other
    durations where all arrive at once (9), and, unless the policy is an oracle, the same batches under other output
    lengths, until the first that differs ends. What two runs in one process cannot tell apart is not seen: the order
    of a set of strings differs between processes only.

    An example that the policy cannot serve (``ConfigError``, ``InfeasibleBatch``) is tried with more room.
    """
    make = _maker(policy)
    served = [_check_example(make, seed, example) for example in range(examples)]
    if not any(served):
        raise PolicyViolation("Nothing was checked", f"none of {examples} examples is feasible under this policy.")


def _maker(policy: str | type[Policy] | Make) -> Make:
    if isinstance(policy, str):
        return lambda: load_policy(policy)
    if callable(policy) and isinstance(made := policy(), Policy):
        del made
        return policy
    raise UnknownPolicy(
        f"check_policy got {policy!r}: give a subclass of Policy, a function that makes a policy, or its name; every "
        f"run needs a policy object of its own."
    )


def _check_example(make: Make, seed: int, example: int) -> bool:
    """Whether the example could be served."""
    rng = np.random.Generator(np.random.PCG64([seed, example]))

    def pick(low: int, high: int) -> int:
        return int(rng.integers(low, high, endpoint=True))

    for room in ROOMS[pick(0, len(ROOMS) - 1) :]:
        workload = draw_workload(pick, room)
        try:
            check_workload(make, workload)
        except (ConfigError, InfeasibleBatch):
            continue
        except PolicyViolation as violation:
            where = f"{violation.sentence} (example {example} of seed {seed})"
            found = PolicyViolation(violation.rule, where)
            found.add_note(f"The workload: {workload}")
            raise found from violation
        return True
    return False


def check_workload(make: Make, workload: Workload) -> Played:
    """Hold all rules against one workload; returns how it was played first."""
    first = play(workload, make(), _even())
    _same(SAME_AGAIN, "the same workload again", first, play(workload, make(), _even()))
    offline = play(workload, make(), _even(), offline=True)
    _same(TIMING, "other durations", offline, play(workload, make(), Uneven(), offline=True))
    stepped = play(workload, make(), CostModelBackend(_LAW))
    if _bytes(stepped.records) != _bytes(play(workload, make(), CostModelBackend(_LAW), leap=True).records):
        raise PolicyViolation(LEAPING, "records differ when steady stretches are leapt over: can_leap must be false.")
    if not make().is_oracle:
        _check_blind(workload, first, play(workload, make(), _even(), other_lengths=True))
    return first


def _even() -> CostModelBackend:
    """Every iteration takes 1 s, so that arrivals fall on the ends of steps, too."""
    return CostModelBackend(Constant(1.0))


def _same(rule: str, under: str, one: Played, other: Played) -> None:
    if one.decisions != other.decisions:
        pairs = zip(one.decisions, other.decisions, strict=False)
        step = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.decisions), len(other.decisions)))
        raise PolicyViolation(rule, f"step {step} is another one under {under}.")


def _check_blind(workload: Workload, one: Played, other: Played) -> None:
    """Batches are equal up to and including the one with which the first request of another length ends."""
    asks = workload.asks
    differing = {str(i) for i, ask in enumerate(asks) if ask.output_len != ask.other_output_len}
    for step, (mine, theirs) in enumerate(zip(one.decisions, other.decisions, strict=False)):
        if replace(mine, finishing=()) != replace(theirs, finishing=()):
            raise PolicyViolation(
                BLIND, f"step {step} is another one under other output lengths, of which none has been seen by then."
            )
        if differing & {*mine.finishing, *theirs.finishing}:
            return


def _bytes(records: Records) -> list[bytes]:
    tables = (records.requests, records.iterations, {"gaps": records.gaps})
    return [column.tobytes() for table in tables for column in table.values()]

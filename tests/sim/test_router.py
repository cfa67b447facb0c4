"""Several replicas behind a router, on cases worked out by hand: every iteration takes 1 s."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records_digest import digest
from replays import HOST, LAW

from batchtwin.scheduler import Request, Scheduler, SchedulerConfig
from batchtwin.scheduler.request import Segment
from batchtwin.sim.clients import closed_loop, open_loop
from batchtwin.sim.clock import ARRIVAL, Clock
from batchtwin.sim.cost.models import Constant, CostModel, HostTerm
from batchtwin.sim.cost_backend import CostModelBackend
from batchtwin.sim.merge import merge
from batchtwin.sim.records import Recorder, Records
from batchtwin.sim.replica import Replica
from batchtwin.sim.router import PrefixAffinity, Router, make_rule
from batchtwin.sim.server import Server

ROUTERS = ("round_robin", "least_outstanding", "prefix_affinity")
CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, block_size=4)
QUICK = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def _replicas(
    clock: Clock, num: int, num_requests: int, model: CostModel, host: HostTerm, *, leap: bool = True
) -> list[Replica]:
    return [
        Replica(
            clock,
            Scheduler(CONFIG),
            CostModelBackend(model, host),
            Recorder(num_requests, index),
            leap=leap,
            index=index,
        )
        for index in range(num)
    ]


def _requests(asked: Sequence[tuple[float, int, int]]) -> list[Request]:
    return [Request(str(i), prompt, output, arrival_s=at, index=i) for i, (at, prompt, output) in enumerate(asked)]


def _play(
    router: str,
    num_replicas: int,
    asked: Sequence[tuple[float, int, int]],
    *,
    model: CostModel | None = None,
    aborts: Sequence[tuple[float, int]] = (),
    num_clients: int | None = None,
    leap: bool = True,
) -> Records:
    clock, requests = Clock(), _requests(asked)
    law, host = (Constant(1.0), HostTerm()) if model is None else (model, HOST)
    replicas = _replicas(clock, num_replicas, len(requests), law, host, leap=leap)
    server: Server = replicas[0] if router == "none" else Router(replicas, make_rule(router, CONFIG.block_size))
    if num_clients is None:
        open_loop(clock, server, requests)
    else:
        closed_loop(clock, server, requests, num_clients=num_clients)
    for at, index in aborts:
        clock.at(at, ARRIVAL).callbacks.append(lambda _, index=index: server.abort(str(index)))
    clock.run()
    for replica in replicas:
        replica.scheduler.check_integrity()
        assert not replica.scheduler.has_work
    return merge([replica.recorder.records() for replica in replicas])


def test_round_robin_sends_one_after_the_other_whatever_they_have_to_do() -> None:
    records = _play("round_robin", 3, [(0.0, 4, 30), (0.1, 4, 1), (0.2, 4, 1), (0.3, 4, 30), (5.0, 4, 1)])
    assert records.requests["replica"].tolist() == [0, 1, 2, 0, 1]


def test_least_outstanding_counts_what_was_sent_and_has_not_ended() -> None:
    """
    =======  ========  ========================  =======  ===========
    request  sent at   outstanding before        goes to  ends at
    =======  ========  ========================  =======  ===========
    A        0         0, 0 (a tie)              0        5 (5 tokens)
    B        0.5       1, 0                      1        1.5
    C        1         1, 1 (a tie)              0        4 (3 tokens)
    D        2         2, 0                      1        3
    E        2.5       2, 1                      1        4 (starts at 3)
    F        4.5       1, 0                      1        5.5
    G        5         1, 1 (A ends after it)    0
    =======  ========  ========================  =======  ===========
    """
    asked = [(0.0, 4, 5), (0.5, 4, 1), (1.0, 4, 3), (2.0, 4, 1), (2.5, 4, 1), (4.5, 4, 1), (5.0, 4, 1)]
    records = _play("least_outstanding", 2, asked)
    assert records.requests["replica"].tolist() == [0, 1, 0, 1, 1, 1, 0]
    ends_s = records.iterations["end_s"][records.requests["last_token_at"]]
    assert ends_s.tolist() == [5.0, 1.5, 4.0, 3.0, 4.0, 5.5, 6.0]


def test_an_aborted_request_is_no_longer_outstanding() -> None:
    records = _play(
        "least_outstanding", 2, [(0.0, 4, 30), (0.0, 4, 30), (2.0, 4, 1)], aborts=[(1.5, 1), (1.7, 1), (1.8, 7)]
    )
    assert records.requests["replica"].tolist() == [0, 1, 1]


def _sent(rule: PrefixAffinity, prompt: list[Segment], outstanding: list[int]) -> int:
    name = "+".join(f"{stream}{length}" for stream, _, length in prompt)
    tokens = sum(length for _, _, length in prompt)
    return rule.choose(Request(name, tokens, 1, prompt=prompt), outstanding)


def test_prefix_affinity_sends_one_beginning_to_one_replica_and_others_to_the_least_loaded() -> None:
    rule = PrefixAffinity(block_size=4)
    assert _sent(rule, [("sys", 0, 8), ("a", 0, 4)], [3, 2, 2]) == 1
    assert _sent(rule, [("b", 0, 12)], [3, 5, 2]) == 2
    assert _sent(rule, [("sys", 0, 8), ("c", 0, 4)], [0, 9, 0]) == 1, "two blocks in common"
    assert _sent(rule, [("sys", 0, 4), ("d", 0, 8)], [0, 9, 0]) == 1, "one block in common"
    assert _sent(rule, [("sys", 0, 3), ("e", 0, 9)], [0, 9, 0]) == 0, "less than a block in common"
    assert _sent(rule, [("sys", 4, 8)], [1, 9, 0]) == 2, "the same tokens elsewhere are no common beginning"
    assert _sent(rule, [("f", 0, 3)], [1, 9, 0]) == 2, "a prompt shorter than a block has no beginning to share"


def test_prefix_affinity_goes_by_the_longest_beginning_and_of_equals_by_the_last() -> None:
    """A beginning counts from half of the prompt's blocks, so that ``s`` alone does not bind."""
    rule = PrefixAffinity(block_size=4, min_share=0.5)
    assert _sent(rule, [("s", 0, 4), ("a", 0, 8)], [0, 1]) == 0
    assert _sent(rule, [("s", 0, 4), ("b", 0, 8)], [1, 0]) == 1, "1 of 3 blocks is not half"
    assert _sent(rule, [("s", 0, 4), ("a", 0, 4)], [9, 0]) == 0, "2 of 2 at replica 0, 1 of 2 at replica 1"
    assert _sent(rule, [("s", 0, 4), ("b", 0, 4)], [0, 9]) == 1, "2 of 2 at replica 1, 1 of 2 at replica 0"
    assert _sent(rule, [("s", 0, 4), ("c", 0, 4)], [0, 9]) == 1, "the last with s went to replica 1"


def test_affinity_holds_over_a_replay_with_a_shared_system_prompt() -> None:
    clock = Clock()
    requests = [
        Request(str(i), 12, 2, arrival_s=i / 4, prompt=[(f"sys{i % 3}", 0, 8), (f"own{i}", 0, 4)], index=i)
        for i in range(12)
    ]
    replicas = _replicas(clock, 3, 12, Constant(1.0), HostTerm())
    open_loop(clock, Router(replicas, make_rule("prefix_affinity", 4)), requests)
    clock.run()
    went = merge([replica.recorder.records() for replica in replicas]).requests["replica"]
    assert went.tolist() == [0, 1, 2] * 4


@st.composite
def loads(draw: st.DrawFn) -> dict[str, object]:
    time_s = st.integers(0, 200).map(lambda units: units * 1e-3)
    asked = st.lists(st.tuples(time_s, st.integers(1, 40), st.integers(1, 23)), min_size=1, max_size=16)
    chosen = sorted(draw(asked))
    return {
        "asked": chosen,
        "model": draw(st.sampled_from((LAW, Constant(0.01)))),
        "aborts": draw(st.lists(st.tuples(time_s, st.integers(0, len(chosen) - 1)), max_size=2)),
        "num_clients": draw(st.none() | st.integers(1, 6)),
    }


@pytest.mark.parametrize("router", ROUTERS)
@given(loads())
@QUICK
def test_one_replica_behind_a_router_leaves_the_bits_of_a_replica_alone(router: str, load: dict[str, object]) -> None:
    assert digest(_play(router, 1, **load)) == digest(_play("none", 1, **load))


@pytest.mark.parametrize("router", ROUTERS)
@given(loads())
@QUICK
def test_replicas_leap_as_they_step(router: str, load: dict[str, object]) -> None:
    assert digest(_play(router, 3, **load)) == digest(_play(router, 3, **load, leap=False))


@pytest.mark.parametrize("router", ROUTERS)
@given(loads())
@QUICK
def test_no_request_is_lost_or_served_twice(router: str, load: dict[str, object]) -> None:
    records = _play(router, 3, **load)
    requests, iterations = records.requests, records.iterations
    aborted = {index for _, index in load["aborts"]}
    for i, (_, prompt, output) in enumerate(load["asked"]):
        assert requests["replica"][i] in (0, 1, 2)
        if i not in aborted:
            assert requests["num_output_tokens"][i] == output
            assert requests["num_prompt_tokens"][i] == prompt
    for at in ("scheduled_at", "first_token_at", "last_token_at"):
        happened = requests[at] >= 0
        assert (iterations["replica"][requests[at][happened]] == requests["replica"][happened]).all()
    if not aborted:
        assert iterations["num_samples"].sum() == sum(output for _, _, output in load["asked"])
        gaps = iterations["num_itl"].sum() + len(records.gaps)
        assert gaps == sum(output - 1 for _, _, output in load["asked"])


def test_one_client_finds_every_replica_idle_and_always_gets_the_first() -> None:
    """A closed loop of one client waits for each answer, so that nothing is ever outstanding when it asks."""
    asked = [(0.0, 4, 3)] * 5
    assert _play("least_outstanding", 2, asked, num_clients=1).requests["replica"].tolist() == [0] * 5
    both = _play("least_outstanding", 2, asked, num_clients=2)
    assert both.requests["replica"].tolist() == [0, 1, 0, 1, 0]
    np.testing.assert_array_equal(both.requests["arrival_s"], [0.0, 0.0, 3.0, 3.0, 6.0])

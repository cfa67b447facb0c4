"""The conformance suite: every shipped policy passes it, and each way to be wrong is caught and named."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from batchtwin.scheduler import POLICIES, ConfigError, Policy, Request, SchedulerConfig, Step, UnknownPolicy
from batchtwin.scheduler.policies.vllm_v1 import VllmV1
from batchtwin.scheduler.waiting import ArrivalQueue, SortedQueue, WaitingQueue
from batchtwin.testing import PolicyViolation, check_policy

ROOT = Path(__file__).resolve().parent.parent
SPECS = (
    *POLICIES,
    "sjf:predicted=true",
    "srtf:predicted=true",
    "chunk_when_decoding:chunk_tokens=3",
)


@pytest.mark.parametrize("spec", SPECS)
def test_a_shipped_policy_passes(spec: str) -> None:
    check_policy(spec, examples=25)


@pytest.mark.full
@pytest.mark.parametrize("spec", SPECS)
def test_a_shipped_policy_passes_over_many_examples(spec: str) -> None:
    check_policy(spec, examples=1000, seed=1)


class Good(Policy):
    """First come, first served; every broken one below is this with one thing wrong."""

    name = "good"

    def schedule(self, step: Step) -> None:
        step.advance_running()
        if step.num_preempted:
            return
        while step.waiting and step.admit_next(whole=not step.config.enable_chunked_prefill):
            pass


@dataclass
class WithOptions(Good):
    """An option a policy object is made with."""

    slack: int = 0

    name = "with_options"


def test_a_correct_policy_passes_as_a_class_and_as_a_function_that_makes_it() -> None:
    check_policy(Good, examples=10)
    check_policy(partial(WithOptions, slack=3), examples=10)


class OverBudget(Good):
    """Takes more tokens than there are."""

    def schedule(self, step: Step) -> None:
        step.budget_tokens += 1000
        super().schedule(step)


class OverSeqs(Good):
    """Admits behind the scheduler's back."""

    def schedule(self, step: Step) -> None:
        super().schedule(step)
        scheduler = step._scheduler
        while step.waiting and step.num_running == step.config.max_num_seqs and scheduler.pool.num_free:
            scheduler.settle(step.waiting.pop(), [], 1)


class LeaksBlocks(Good):
    """Takes a block and gives it to nobody."""

    def schedule(self, step: Step) -> None:
        super().schedule(step)
        if step.num_free_blocks > 1:
            step._scheduler.pool.take(1)


class SharesBlocks(Good):
    """Has two requests write to one block."""

    def schedule(self, step: Step) -> None:
        super().schedule(step)
        tables = [request.block_table for request in step.running()]
        if len(tables) > 1:
            tables[1][-1], freed = tables[0][-1], tables[1][-1]
            step._scheduler.pool.give_back([freed])


class TellsTheCacheTooEarly(Good):
    """Lets the prefix cache know of blocks that are not full yet, and preempts their owner in the next step."""

    def __init__(self) -> None:
        self._told: list[Request] = []
        self._seen: set[str] = set()

    def schedule(self, step: Step) -> None:
        while self._told:
            if (request := self._told.pop()) in step.running():
                step.preempt(request)
                return
        super().schedule(step)
        for request in step._scheduler.prefilling.values():
            if request.request_id not in self._seen:
                self._seen.add(request.request_id)
                self._told.append(request)
                step._scheduler.kv.register(request, len(request.block_table) * step.config.block_size)


class Loses(Good):
    """Forgets every third request."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def schedule(self, step: Step) -> None:
        if step.waiting and next(self._count) % 3 == 0:
            step.waiting.pop()
        super().schedule(step)


class LosesTheSecond(Good):
    """Has a queue that drops what arrives while somebody waits."""

    class Queue(ArrivalQueue):
        def push(self, request: Request) -> None:
            if not len(self):
                super().push(request)

    def make_queue(self) -> WaitingQueue:
        return self.Queue()


class StarvesForEver(Good):
    """Takes everything from everybody before their last token."""

    def schedule(self, step: Step) -> None:
        for request in step.running():
            if request.num_output_tokens >= 2:
                step.preempt(request)
                return
        super().schedule(step)


class NeverServesLongPrompts(Good):
    """Leaves a long prompt at the head of the queue for ever."""

    def schedule(self, step: Step) -> None:
        step.advance_running()
        while step.waiting and step.waiting.head.num_prompt_tokens < 12 and step.admit_next():
            pass


class SkipsEverySecondStep(Good):
    """Lets the device idle although there is work."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def schedule(self, step: Step) -> None:
        if next(self._count) % 2 == 0:
            super().schedule(step)


class WaitsForFour(Good):
    """Starts only when four requests are there."""

    def schedule(self, step: Step) -> None:
        step.advance_running()
        while len(step.waiting) + step.num_running >= 4 and step.waiting and step.admit_next():
            pass


class Counterfeits(Good):
    """Makes a request believe that it has produced a token more than it has."""

    def schedule(self, step: Step) -> None:
        super().schedule(step)
        for request in step._scheduler.prefilling.values():
            request._output_tokens += 1
            return


class Unseeded(Good):
    """Admits by the toss of a coin that nobody seeded."""

    def schedule(self, step: Step) -> None:
        step.advance_running()
        while step.waiting and (not step.num_running or random.random() < 0.5) and step.admit_next():
            pass


class ReadsOutputLengths(Good):
    """Orders the queue by what no server knows."""

    def make_queue(self) -> WaitingQueue:
        return SortedQueue(lambda request: (request.output_len,))


class LearnsOutputLengths(Good):
    """Gets to know the same through the scheduler."""

    def schedule(self, step: Step) -> None:
        step.advance_running()
        limit = step._scheduler.output_limit
        while step.waiting and (not step.num_running or limit(step.waiting.head) < 12) and step.admit_next():
            pass


class WatchesTheClock(Good):
    """Admits by the time of day in the simulation, found by looking through the callers' frames."""

    def schedule(self, step: Step) -> None:
        frame = sys._getframe()
        while "clock" not in frame.f_locals:
            frame = frame.f_back
        step.advance_running()
        even = int(frame.f_locals["clock"].now * 2) % 4 == 0
        while step.waiting and (even or not step.num_running) and step.admit_next():
            pass


class LeapsWhereItMustNot(VllmV1):
    """Admits less and less often; the inherited ``can_leap`` says that nothing happens in between."""

    def __init__(self) -> None:
        self._countdown = 0

    def schedule(self, step: Step) -> None:
        self._countdown -= 1
        step.advance_running()
        if step.num_running and self._countdown > 0:
            step.held_back_by_blocks()
            return
        self._countdown = 5
        while step.waiting and step.admit_next():
            pass


class Crashes(Good):
    """Divides by the number of those that wait."""

    def schedule(self, step: Step) -> None:
        super().schedule(step)
        _ = 1 / len(step.waiting)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (OverBudget, r"^Rule 1 .*step \d+: \d+ tokens are more than max_num_batched_tokens"),
        (OverSeqs, r"^Rule 1 .*step \d+: \d+ sequences are resident, max_num_seqs is \d"),
        (LeaksBlocks, r"^Rule 2 .*step \d+: KV block \d+ is"),
        (SharesBlocks, r"^Rule (2|3) .*step \d+: "),
        (TellsTheCacheTooEarly, r"^Rule 3 .*step \d+: request '\d+' reads its token"),
        (Loses, r"^Rule 4 .*step \d+: request '\d+' neither waits nor runs"),
        (LosesTheSecond, r"^Rule 4 .*step \d+: request '\d+' neither waits nor runs"),
        (StarvesForEver, r"^Rule 4 .*after \d+ steps \d+ requests .* have not ended, and never will"),
        (NeverServesLongPrompts, r"^Rule 6 .*step \d+: nothing runs"),
        (SkipsEverySecondStep, r"^Rule 6 .*step \d+: nothing runs"),
        (WaitsForFour, r"^Rule 6 .*step \d+: nothing runs"),
        (Counterfeits, r"^Rule (5|2) .*step \d+: "),
        (Unseeded, r"^Rule 7 .*step \d+ is another one"),
        (LeapsWhereItMustNot, r"^Rule 8 .*can_leap must be false"),
        (WatchesTheClock, r"^Rule 9 .*step \d+ is another one under other durations"),
        (ReadsOutputLengths, r"^No oracle .*test_testing, line \d+, reads output_len"),
        (LearnsOutputLengths, r"^No oracle .*step \d+ is another one under other output lengths"),
        (Crashes, r"^No error: step \d+ ends in ZeroDivisionError"),
    ],
)
def test_a_broken_policy_is_caught_and_the_rule_named(broken: type[Policy], rule: str) -> None:
    with pytest.raises(PolicyViolation, match=rule) as caught:
        check_policy(broken, examples=100)
    assert "of seed 0)" in str(caught.value)
    assert caught.value.__notes__[0].startswith("The workload: Workload(")


class Oracle(ReadsOutputLengths):
    is_oracle = True


def test_an_oracle_may_read_output_lengths() -> None:
    check_policy(Oracle, examples=10)


class FindsNothingFeasible(Good):
    def check(self, config: SchedulerConfig) -> None:
        raise ConfigError("never")


def test_a_policy_that_refuses_every_workload_has_not_passed() -> None:
    with pytest.raises(PolicyViolation, match="Nothing was checked: none of 5 examples"):
        check_policy(FindsNothingFeasible, examples=5)


@pytest.mark.parametrize("policy", [Good(), 3, object, "no_such_policy"])
def test_what_makes_no_policy_is_refused(policy: object) -> None:
    with pytest.raises(UnknownPolicy):
        check_policy(policy, examples=1)  # type: ignore[arg-type]


def test_an_example_is_the_same_whatever_came_before_it() -> None:
    """The step and example of a violation are enough to see it again."""
    with pytest.raises(PolicyViolation) as first:
        check_policy(WaitsForFour, examples=100, seed=7)
    with pytest.raises(PolicyViolation) as again:
        check_policy(WaitsForFour, examples=100, seed=7)
    assert str(first.value) == str(again.value)


def test_the_suite_needs_neither_pytest_nor_hypothesis_nor_torch() -> None:
    """In a process of its own, where importing one of them fails."""
    code = (
        "import sys\n"
        "for name in ('pytest', 'hypothesis', 'torch', 'transformers', 'pandas'): sys.modules[name] = None\n"
        "from batchtwin.testing import check_policy\n"
        "check_policy('vllm_v1', examples=2)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)

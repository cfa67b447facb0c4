"""Policies that send contexts out and bring others in within one step, which vLLM's order never does."""

from __future__ import annotations

from batchtwin.scheduler.policies.vllm_v1 import VllmV1
from batchtwin.scheduler.request import Request
from batchtwin.scheduler.step import Step
from batchtwin.scheduler.waiting import ArrivalQueue, WaitingQueue


class MakesWayBefore(VllmV1):
    """Every second time somebody waits, who has run longest goes behind the queue before its head is admitted, which
    may then get the blocks just left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_turns = 0

    def make_queue(self) -> WaitingQueue:
        return LastInLine()

    def schedule(self, step: Step) -> None:
        if step.waiting and step.num_running > 1 and self._is_turn():
            step.preempt(step.running()[0])
        step.advance_running()
        if step.num_preempted <= 1 and step.waiting:
            step.admit_next()

    def _is_turn(self) -> bool:
        self._num_turns += 1
        return self._num_turns % 2 == 0


class MakesWayAfter(MakesWayBefore):
    """The same after the head was admitted, which has claimed its blocks on the host by then."""

    def schedule(self, step: Step) -> None:
        step.advance_running()
        if step.num_preempted or not step.waiting or not step.admit_next():
            return
        if step.num_running > 1 and self._is_turn():
            step.preempt(step.running()[0])


class LastInLine(ArrivalQueue):
    """Who was preempted goes to the end of the queue."""

    def push_back(self, request: Request) -> None:
        self.push(request)

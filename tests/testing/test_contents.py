"""Reading what nobody computed is a violation, but for the one block that vLLM's cache learns of too early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchtwin.scheduler import Request, SchedulerConfig, load_policy
from batchtwin.testing import PolicyViolation
from batchtwin.testing.contents import Contents
from batchtwin.testing.watched import Watched

PROMPT = (("p", 0, 8),)


def _contents() -> Contents:
    """Blocks of four tokens; of the first request's eight the first four are computed, in block 1, the others promised,
    in block 2."""
    contents = Contents(4)
    first = _request("first")
    first.block_table = [1, 2]
    contents.write(first, 0, 4, first.block_table)
    contents.promise(first, 4, 8)
    return contents


def _request(name: str, prompt: Any = PROMPT, output_len: int = 1) -> Request:
    return Request(name, sum(length for _, _, length in prompt), output_len, prompt=prompt)


def _run(contents: Contents, *rows: tuple[Request, int, int, list[int]], out: Any = (), back: Any = ()) -> str | None:
    named = [SimpleNamespace(request=r, start=s, num_tokens=n, block_table=table) for r, s, n, table in rows]
    return contents.run(SimpleNamespace(order=lambda: named, padding=(), copies_out=out, copies_in=back))


def _longer(name: str, stream: str = "p") -> Request:
    return _request(name, ((stream, 0, 8), (name, 0, 4)))


def test_a_promised_block_may_be_read_as_what_was_promised() -> None:
    assert _run(_contents(), (_longer("b"), 8, 4, [1, 2, 3])) is None


def test_it_may_not_be_read_as_anything_else() -> None:
    said = _run(_contents(), (_request("c", (("p", 0, 4), ("q", 0, 8))), 8, 4, [1, 2, 3]))
    assert said is not None
    assert "'c' reads its token ('q', 0) from slot 8" in said


def test_a_block_beside_it_may_not_be_read() -> None:
    said = _run(_contents(), (_longer("b"), 8, 4, [1, 4, 3]))
    assert said == "request 'b' reads its token ('p', 4) from slot 16, which holds none."


def test_a_promise_ends_when_somebody_writes_the_block() -> None:
    contents = _contents()
    assert _run(contents, (_request("other", (("o", 0, 2),)), 0, 2, [2])) is None
    said = _run(contents, (_longer("b"), 8, 4, [1, 2, 3]))
    assert said == "request 'b' reads its token ('p', 4) from slot 8, which holds ('o', 0)."


def test_what_is_copied_out_in_the_same_step_is_what_the_block_held_before() -> None:
    contents = Contents(4)
    early, late = _request("early", (("e", 0, 4),), 2), _request("late")
    contents.write(early, 0, 4, [2])
    late.block_table = [1, 2]
    contents.promise(late, 4, 8)
    assert _run(contents, out=[(2, 7)]) is None
    assert _run(contents, (early, 4, 1, [5, 6]), back=[(5, 7)]) is None


def test_a_promise_goes_where_its_block_is_copied() -> None:
    contents = _contents()
    assert _run(contents) is None
    assert _run(contents, out=[(2, 7)]) is None
    assert _run(contents, (_longer("b"), 8, 4, [1, 5, 3]), back=[(5, 7)]) is None


def _hazard() -> Watched:
    """Four blocks of four tokens. Step 0: 'v' computes 6 of its 11 prompt tokens (2 blocks), 'b' its 4 (1 block). Step
    1: 'v' is served the other 5, so that the cache learns of its second block, and takes the last free block; 'b'
    needs one more, and 'v', of lower priority, loses its three: tokens 6 and 7 of the second are never computed. 'b'
    takes the third, and ends. Step 2: 'v' finds its first two blocks in the cache, and goes on from token 8."""
    config = SchedulerConfig(
        max_num_seqs=2,
        max_num_batched_tokens=16,
        max_model_len=16,
        num_gpu_blocks=5,
        block_size=4,
        enable_prefix_caching=True,
        long_prefill_token_threshold=6,
        scheduler_reserve_full_isl=False,
        victim="lowest_priority",
    )
    scheduler = Watched(config, load_policy("vllm_v1"), max_steps=20)
    scheduler.add(Request("v", 11, 1, prompt=(("v", 0, 11),), priority=1))
    scheduler.add(Request("b", 4, 2, prompt=(("b", 0, 4),), priority=0, index=1))
    for _ in range(2):
        scheduler.complete(scheduler.schedule())
    assert scheduler.decisions[1].preempted == ("v",)
    return scheduler


def test_the_scheduler_meets_it_as_vllm_does_and_no_policy_is_blamed() -> None:
    scheduler = _hazard()
    scheduler.schedule()
    ((request_id, start, num_tokens, _, _),) = scheduler.decisions[2].rows
    assert (request_id, start, num_tokens) == ("v", 8, 3)


def test_without_the_promise_it_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contents, "promise", lambda *_: None)
    scheduler = _hazard()
    with pytest.raises(PolicyViolation, match=r"^Rule 3 .*step 2: request 'v' reads its token \('v', 6\)"):
        scheduler.schedule()

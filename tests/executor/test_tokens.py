from __future__ import annotations

import subprocess
import sys

import numpy as np

from batchtwin.executor.tokens import TokenStore
from batchtwin.scheduler.request import Request, RequestStatus


def test_the_same_identity_has_the_same_id_in_every_request() -> None:
    store = TokenStore(512, seed=1)
    one = Request("a", 10, 1, prompt=[("system", 0, 6), ("p:a", 0, 4)])
    two = Request("b", 9, 1, prompt=[("system", 2, 4), ("p:b", 0, 5)])
    assert store.ids(one, 2, 6).tolist() == store.ids(two, 0, 4).tolist()


def test_ids_fill_the_vocabulary_evenly_and_stay_within_it() -> None:
    ids = TokenStore(16, seed=0).ids(Request("a", 16_000, 1), 0, 16_000)
    counts = np.bincount(ids, minlength=16)
    assert counts.size == 16
    # 1000 expected each, standard deviation 31: 5 of them for the worst of 16
    assert abs(counts - 1000).max() < 155


def test_the_seed_and_the_stream_change_the_ids() -> None:
    def ids(seed: int, name: str) -> list[int]:
        return TokenStore(4096, seed).ids(Request(name, 50, 1), 0, 50).tolist()

    assert ids(1, "a") != ids(2, "a")
    assert ids(1, "a") != ids(1, "b")


def test_ids_are_the_same_in_another_process() -> None:
    code = (
        "from batchtwin.executor.tokens import TokenStore; from batchtwin.scheduler.request import Request;"
        "print(TokenStore(4096, 3).ids(Request('a', 20, 1), 0, 20).tolist())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other.strip() == str(TokenStore(4096, 3).ids(Request("a", 20, 1), 0, 20).tolist())


def test_any_stretch_is_a_slice_of_the_whole() -> None:
    store = TokenStore(512, seed=1)
    request = Request("a", 12, 20, prompt=[("x", 3, 5), ("y", 0, 7)])
    for k in range(4):
        store.record(request, 12 + k, 100 + k)
    whole = store.ids(request, 0, 20).tolist()
    assert whole[12:16] == [100, 101, 102, 103]
    for start in range(20):
        for stop in range(start + 1, 21):
            assert store.ids(request, start, stop).tolist() == whole[start:stop]


def test_a_later_turn_reads_what_was_really_produced() -> None:
    store = TokenStore(512, seed=1)
    first = Request("first", 4, 3)
    for k, token in enumerate((7, 8, 9)):
        store.record(first, 4 + k, token)
    store.release(first)
    turn = Request("turn", 9, 1, prompt=[("p:first", 0, 4), ("out:first", 0, 3), ("p:turn", 0, 2)])
    assert store.ids(turn, 4, 7).tolist() == [7, 8, 9]
    assert store.ids(turn, 0, 4).tolist() == store.ids(first, 0, 4).tolist()
    assert store.outputs("first") == [7, 8, 9]


def test_a_prompt_does_not_change_while_its_request_runs() -> None:
    store = TokenStore(512, seed=1)
    turn = Request("turn", 5, 1, prompt=[("out:first", 0, 5)])
    before = store.ids(turn, 0, 5).tolist()
    store.record(Request("first", 1, 1), 1, (before[0] + 1) % 512)
    assert store.ids(turn, 0, 5).tolist() == before


def test_a_token_given_again_is_not_counted_twice() -> None:
    store = TokenStore(512, seed=1)
    request = Request("a", 3, 200)
    for k in range(150):
        store.record(request, 3 + k, k)
    store.record(request, 3 + 149, 149)
    assert store.outputs("a") == list(range(150))
    assert store.outputs("nobody") == []


def test_prompts_of_aborted_requests_are_dropped() -> None:
    store = TokenStore(512, seed=0)
    for i in range(5000):
        request = Request(f"r{i}", 50, 8)
        store.ids(request, 0, 10)
        request.status = RequestStatus.RUNNING if i % 100 == 0 else RequestStatus.ABORTED
    assert store.num_prompts < 250  # 50 run


def test_what_an_aborted_request_produced_can_still_be_named() -> None:
    store = TokenStore(512, seed=0)
    request = Request("a", 3, 8)
    store.record(request, 3, 77)
    request.status = RequestStatus.ABORTED
    for i in range(200):
        store.ids(Request(f"r{i}", 5, 1), 0, 5)
    assert store.ids(Request("turn", 1, 1, prompt=[("out:a", 0, 1)]), 0, 1).tolist() == [77]

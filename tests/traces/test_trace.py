"""The table and its verbs."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from batchtwin.scheduler.request import Request
from batchtwin.traces import Fixed, Trace, TraceError, generate


def small(**changes: Any) -> Trace:
    columns: dict[str, Any] = {
        "name": "small",
        "arrival_s": [0.0, 1.0, 1.0, 4.0],
        "num_prompt_tokens": [10, 20, 30, 40],
        "output_len": [1, 2, 3, 5],
    }
    return Trace(**(columns | changes))


def hashed() -> Trace:
    blocks = [np.array([0]), np.array([0, 1]), np.array([0, 1]), np.array([0, 2, 3])]
    return small(prompt_blocks=blocks, hash_block_tokens=16)


def prompts(trace: Trace) -> list[int]:
    return trace.num_prompt_tokens.tolist()


def test_head_keeps_the_first_rows() -> None:
    trace = small().head(2)
    assert (len(trace), prompts(trace), trace.span_s) == (2, [10, 20], 1.0)
    assert small().head(100) == small()


def test_slice_counts_rows_as_python_does_and_starts_at_zero() -> None:
    assert small().slice(1, 4).arrival_s.tolist() == [0.0, 0.0, 3.0]
    assert prompts(small().slice(1, -1)) == [20, 30]


def test_between_holds_its_start_and_not_its_stop() -> None:
    trace = small().between(1.0, 4.0)
    assert (prompts(trace), trace.arrival_s.tolist()) == ([20, 30], [0.0, 0.0])
    assert prompts(small().between(0.5, 100.0)) == [20, 30, 40]


def test_every_column_is_cut_together() -> None:
    trace = dataclasses.replace(hashed(), priority=np.array([5, 6, 7, 8]), client_id=("a", "b", "c", "d")).slice(2, 4)
    assert trace.prompt_blocks is not None
    assert trace.priority is not None
    assert [ids.tolist() for ids in trace.prompt_blocks] == [[0, 1], [0, 2, 3]]
    assert (trace.priority.tolist(), trace.client_id, trace.output_len.tolist()) == ([7, 8], ("c", "d"), [3, 5])


def test_thin_keeps_the_asked_fraction_by_seed() -> None:
    trace = generate(20_000, 10.0, 3, prompt=Fixed(5), output=Fixed(5))
    half = trace.thin(0.5, seed=1)
    assert abs(len(half) - 10_000) < 4 * 70.7  # four standard deviations of a fair coin
    assert half == trace.thin(0.5, seed=1) != trace.thin(0.5, seed=2)
    assert trace.thin(1.0, seed=1) == trace


def test_scale_rate_two_is_twice_the_rate() -> None:
    trace = small().scale_rate(2)
    assert trace.arrival_s.tolist() == [0.0, 0.5, 0.5, 2.0]
    assert prompts(trace) == prompts(small())


def test_scale_lengths_rounds_keeps_one_token_and_obeys_caps() -> None:
    trace = small().scale_lengths(0.25, 1.5, max_prompt_tokens=8, max_output_tokens=6)
    assert prompts(trace) == [2, 5, 8, 8]  # 2.5, 5, 7.5, 10
    assert trace.output_len.tolist() == [2, 3, 4, 6]  # 1.5, 3, 4.5, 7.5
    assert small().scale_lengths(0.001, 0.001).output_len.tolist() == [1, 1, 1, 1]


def test_a_shrunken_prompt_keeps_its_leading_blocks_and_a_grown_one_gets_a_tail_of_its_own() -> None:
    last = hashed().scale_lengths(0.5).requests()[3]
    assert last.prompt == (("h:0", 0, 16), ("h:2", 0, 4))
    grown = hashed().scale_lengths(2.0).requests()[1:3]
    assert [request.prompt for request in grown] == [
        (("h:0", 0, 16), ("h:1", 0, 16), ("p:1", 0, 8)),
        (("h:0", 0, 16), ("h:1", 0, 16), ("p:2", 0, 28)),
    ]


def test_offline_puts_all_arrivals_at_zero() -> None:
    trace = small().offline()
    assert (trace.arrival_s.tolist(), trace.span_s) == ([0.0] * 4, 0.0)


def test_repeat_goes_on_after_a_mean_gap() -> None:
    trace = small().repeat(2)
    mean_gap_s = 4.0 / 3
    assert trace.arrival_s.tolist() == pytest.approx([0, 1, 1, 4, *(4 + mean_gap_s + t for t in (0, 1, 1, 4))])
    assert prompts(trace) == prompts(small()) * 2
    assert small().head(1).repeat(3).arrival_s.tolist() == [0.0, 0.0, 0.0]
    assert hashed().repeat(2).requests()[7].prompt == hashed().requests()[3].prompt


def test_requests_are_rows_with_plain_numbers() -> None:
    trace = small(priority=[0, 9, 0, 0], client_id=["x", "y", "x", "x"])
    requests = trace.requests()
    assert [request.request_id for request in requests] == ["0", "1", "2", "3"]
    one = requests[1]
    found = (one.index, one.arrival_s, one.num_prompt_tokens, one.output_len, one.priority, one.client_id)
    assert found == (1, 1.0, 20, 2, 9, "y")
    assert {type(one.arrival_s), type(one.num_prompt_tokens), type(one.output_len)} == {float, int}
    assert all(isinstance(request, Request) for request in trace.iter_requests())


def test_prompts_without_blocks_are_each_a_stream_of_their_own() -> None:
    streams = {request.prompt for request in small().requests()}
    assert streams == {(("p:0", 0, 10),), (("p:1", 0, 20),), (("p:2", 0, 30),), (("p:3", 0, 40),)}


def test_segments_cover_every_prompt_token_once() -> None:
    for trace in (hashed(), hashed().scale_lengths(0.3), hashed().scale_lengths(7.0)):
        for request in trace.requests():
            assert sum(length for _, _, length in request.prompt) == request.num_prompt_tokens
            assert all(length > 0 for _, _, length in request.prompt)


@pytest.mark.parametrize(
    "changed",
    [
        small(arrival_s=[0.0, 1.0, 1.0, 4.0000001]),
        small(num_prompt_tokens=[10, 20, 30, 41]),
        small(output_len=[1, 2, 3, 6]),
        small(priority=[0, 0, 0, 0]),
        small(client_id=["", "", "", ""]),
        small(client_id=["a", "b", "", ""]),
        small(client_id=["ab", "", "", ""]),
        hashed(),
        dataclasses.replace(hashed(), hash_block_tokens=15),
        dataclasses.replace(hashed(), prompt_blocks=[*hashed().prompt_blocks[:3], np.array([0, 2, 4])]),
        small().head(3),
    ],
    ids=range(11),
)
def test_the_digest_tells_any_change_of_a_column(changed: Trace) -> None:
    others = [small(), small(priority=[0, 0, 0, 1]), small(client_id=["a", "", "b", ""])]
    assert changed.digest() not in {other.digest() for other in others}
    assert changed != small()


def test_the_digest_leaves_name_and_source_out() -> None:
    renamed = dataclasses.replace(small(), name="other", source="elsewhere")
    assert renamed == small()
    assert len({renamed, small()}) == 1
    assert renamed.digest() == small().digest()
    assert small() != "small"


def test_the_source_line_tells_every_verb() -> None:
    trace = dataclasses.replace(small(), source="file x").scale_rate(2).thin(1.0, 7).scale_lengths(2).offline()
    assert trace.source == "file x | scale_rate(2) | thin(1, seed=7) | scale_lengths(2, 1) | offline()"


def test_a_trace_cannot_be_changed_from_outside() -> None:
    given = np.array([0.0, 1.0, 1.0, 4.0])
    trace = small(arrival_s=given)
    given[3] = 9.0
    assert trace.span_s == 4.0
    with pytest.raises(ValueError, match="read-only"):
        trace.arrival_s[0] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace.name = "x"  # type: ignore[misc]


def test_a_trace_travels_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(hashed())) == hashed()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"arrival_s": [], "num_prompt_tokens": [], "output_len": []}, "has no requests"),
        ({"output_len": [1, 2, 3]}, "column output_len of trace 'small' has 3 rows, arrival_s has 4"),
        ({"client_id": ["a"]}, "column client_id of trace 'small' has 1 rows"),
        ({"arrival_s": [1.0, 2.0, 3.0, 4.0]}, "start at 0 s"),
        ({"arrival_s": [0.0, 2.0, 1.0, 4.0]}, "never go back"),
        ({"arrival_s": [0.0, 2.0, np.nan, 4.0]}, "must be finite"),
        ({"arrival_s": [0.0, 2.0, 3.0, np.inf]}, "must be finite"),
        ({"output_len": [1, 2, 0, 4]}, "output_len of trace 'small' must lie between 1 and"),
        ({"num_prompt_tokens": [1, 2, -1, 4]}, "num_prompt_tokens of trace 'small' must lie between 1 and"),
        ({"output_len": [1.5, 2.0, 3.0, 4.0]}, "column output_len .* int64 values, not .* float64"),
        ({"arrival_s": [[0.0, 1.0, 2.0, 3.0]]}, "2 dimensions"),
        ({"prompt_blocks": [[1, 2]] * 4}, "row 0 .* more hash blocks than its prompt has room for"),
        ({"prompt_blocks": [[1]] * 4, "hash_block_tokens": 0}, "must hold a token or more"),
    ],
)
def test_columns_that_contradict_a_trace_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        small(**changes)


@pytest.mark.parametrize(
    ("verb", "sentence"),
    [
        (lambda: small().head(0), r"head\(0\) leaves no request of the 4 in trace 'small'"),
        (lambda: small().slice(9, 12), "leaves no request"),
        (lambda: small().between(2.0, 3.0), r"between\(2 s, 3 s\) leaves no request"),
        (lambda: small().thin(0.0, 1), "to a fraction above 0 and up to 1, not to 0"),
        (lambda: small().thin(1.5, 1), "not to 1.5"),
        (lambda: small().thin(float("nan"), 1), "not to nan"),
        (lambda: small().thin(1e-9, 1), "leaves no request"),
        (lambda: small().scale_rate(0), "the rate can be scaled by a finite factor above 0, not by 0"),
        (lambda: small().scale_rate(float("inf")), "not by inf"),
        (lambda: small().scale_rate(5e-324), "must be finite"),
        (lambda: small().scale_lengths(-1), "prompt lengths can be scaled by a finite factor above 0, not by -1"),
        (lambda: small().scale_lengths(1, float("nan")), "output lengths can be scaled .* not by nan"),
        (lambda: small().scale_lengths(1e308), "would exceed 1,000,000,000 tokens; use a smaller factor or a cap"),
        (lambda: small().scale_lengths(max_prompt_tokens=0), "cannot be capped at 0 tokens"),
        (lambda: small().repeat(0), "repeated 1 time or more, not 0 times"),
    ],
)
def test_a_verb_that_makes_no_sense_says_so(verb: Any, sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        verb()

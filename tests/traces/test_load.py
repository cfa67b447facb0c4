"""A trace by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batchtwin.traces import TraceError, azure_conv_like, load_trace, read_trace


def test_a_path_is_read(write: Callable[..., Path], valid_files: dict[str, bytes]) -> None:
    path = write(valid_files["azure"])
    assert load_trace(str(path)) == read_trace(path)


def test_a_generator_is_called_with_count_and_seed() -> None:
    assert load_trace("azure-conv-like:50", seed=3) == azure_conv_like(50, 3)
    assert len(load_trace("azure-conv-like")) == 19_366


def test_reading_options_are_passed_on(write: Callable[..., Path]) -> None:
    path = write("arrived_at,num_prefill_tokens,num_decode_tokens\n5,3,0\n4,3,2\n3,3,1\n")
    assert load_trace(str(path), sort=True, drop_zero_output=True).output_len.tolist() == [1, 2]


def test_a_file_named_like_a_generator_is_reached_by_its_path(
    write: Callable[..., Path], valid_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(valid_files["vidur"], "azure-conv-like")
    monkeypatch.chdir(path.parent)
    assert len(load_trace("./azure-conv-like")) == 3
    assert len(load_trace("azure-conv-like")) == 19_366


@pytest.mark.parametrize("spec", ["azure-conv", "nowhere.csv", "", "azure-conv-like-2", "a\0b", "x" * 5000])
def test_an_unknown_name_is_answered_with_the_known_ones(spec: str) -> None:
    with pytest.raises(TraceError, match=r"neither a file nor a generated trace; .*azure-conv-like"):
        load_trace(spec)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("azure-conv-like:", "asks for '' requests; write a whole number"),
        ("azure-conv-like:many", "asks for 'many' requests"),
        ("azure-conv-like:-5", "asks for '-5' requests"),
        ("azure-conv-like:²", "write a whole number"),
        ("azure-conv-like:0", "a trace of 1 to 10,000,000 requests can be generated, not of 0"),
        ("azure-conv-like:999999999", "not of 999,999,999"),
    ],
)
def test_a_count_that_makes_no_sense_is_refused(spec: str, sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        load_trace(spec)

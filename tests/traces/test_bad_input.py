"""Whatever is wrong with a file: one sentence that says where, what, and what to do."""

from __future__ import annotations

import os
import random
import re
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from batchtwin.traces import TraceError, generate, read_trace, write_vidur_csv
from batchtwin.traces.lengths import Fixed

Write = Callable[..., Path]

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
GOOD_TIME = "2023-11-16 18:15:46.6805900"


def mooncake(timestamp: object = 0, prompt: object = 100, output: object = 5, ids: object = "[1]") -> str:
    return f'{{"timestamp": {timestamp}, "input_length": {prompt}, "output_length": {output}, "hash_ids": {ids}}}\n'


CASES = {
    "azure without a column": ("TIMESTAMP,ContextTokens\n" + f"{GOOD_TIME},3\n", r"line 1: .*lacks.* GeneratedTokens"),
    "vidur without arrivals": (
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3,4,7,0.75\n",
        r"line 1: .*lacks the column arrived_at",
    ),
    "mooncake without a key": ('{"timestamp": 0, "input_length": 3, "output_length": 4}', r"line 1: lacks .*hash_ids"),
    "a key missing further down": (
        mooncake() + '{"timestamp": 0, "output_length": 4, "hash_ids": []}',
        r"line 2: lacks the key input_length",
    ),
    "a length that is no number": (AZURE + f"{GOOD_TIME},many,4\n", r"line 2: ContextTokens is 'many'"),
    "a length that is a fraction": (VIDUR + "0,3,4.5\n", r"line 2: num_decode_tokens is '4.5'"),
    "a length in foreign digits": (VIDUR + "0,٣,4\n", r"line 2: num_prefill_tokens is '\\u0663'"),
    "a length with a separator": (VIDUR + "0,1_000,4\n", r"line 2: num_prefill_tokens is '1_000'"),
    "a negative length": (AZURE + f"{GOOD_TIME},3,4\n{GOOD_TIME},3,-4\n", r"line 3: GeneratedTokens is '-4'"),
    "an endless length": (VIDUR + f"0,{'9' * 400},4\n", r"line 2: num_prefill_tokens is '9+'…"),
    "a length past belief": (VIDUR + "0,99999999999,4\n", r"line 2: its prompt of 99,999,999,999 tokens"),
    "a negative length in JSON": (mooncake(output=-2), r"line 1: its output of -2 tokens is not between"),
    "a boolean length in JSON": (mooncake(prompt="true"), r"line 1: input_length is true"),
    "a list as length in JSON": (mooncake(prompt="[3]"), r"line 1: input_length is a list"),
    "a text length in JSON": (mooncake(prompt='"3"'), r"line 1: input_length is '3'"),
    "an output of zero": (
        AZURE + f"{GOOD_TIME},3,4\n{GOOD_TIME},3,0\n",
        r"line 3: .*0 output tokens.*drop_zero_output",
    ),
    "a prompt of zero": (VIDUR + "0,0,4\n", r"line 2: .*0 prompt tokens.*remove the row"),
    "azure times that go back": (
        AZURE + f"{GOOD_TIME},3,4\n\n2023-11-16 18:15:46.6805899,3,4\n",
        r"line 4: arrives before the row above it \(line 2\); .*sort=True",
    ),
    "mooncake times that go back": (mooncake(5) + mooncake(4), r"line 2: arrives before .*\(line 1\)"),
    "a time of another kind": (AZURE + "1700158546.68,3,4\n", r"line 2: TIMESTAMP is '1700158546.68', not a time like"),
    "a day that does not exist": (AZURE + "2023-02-30 10:00:00,3,4\n", r"line 2: TIMESTAMP is '2023-02-30"),
    "an hour that does not exist": (AZURE + "2023-02-03 24:00:00,3,4\n", r"line 2: TIMESTAMP is "),
    "a year that does not exist": (AZURE + "0000-01-01 00:00:00,3,4\n", r"line 2: TIMESTAMP is "),
    "an empty time": (AZURE + ",3,4\n", r"line 2: TIMESTAMP is ''"),
    "a word for a time": (VIDUR + "now,3,4\n", r"line 2: arrived_at is 'now'"),
    "a time that is not a number": (VIDUR + "nan,3,4\n", r"line 2: arrived_at is 'nan'"),
    "an infinite time": (VIDUR + "1e999,3,4\n", r"line 2: arrived_at is '1e999'"),
    "a time below zero": (VIDUR + "-1.0,3,4\n", r"line 2: arrived_at is '-1.0'"),
    "NaN in JSON": (mooncake("NaN"), r"line 1: timestamp is 'nan'"),
    "a text time in JSON": (mooncake('"0"'), r"line 1: timestamp is '0'"),
    "too few ids": (
        mooncake(prompt=600),
        r"line 1: has 1 hash_ids where a prompt of 600 tokens has 2 .*hash_block_tok",
    ),
    "too many ids": (mooncake(ids="[1, 2]"), r"line 1: has 2 hash_ids where .* has 1 blocks of 512"),
    "ids of another type": (mooncake(ids='["a"]'), r"line 1: hash_ids is not a list of whole numbers"),
    "boolean ids": (mooncake(ids="[true]"), r"line 1: hash_ids is not a list"),
    "negative ids": (mooncake(ids="[-1]"), r"line 1: hash_ids is not a list"),
    "an id of 100 bits": (mooncake(ids=f"[{2**100}]"), r"line 1: hash_ids is not a list"),
    "no list of ids": (mooncake(ids="7"), r"line 1: hash_ids is not a list"),
    "a row cut short": (AZURE + f"{GOOD_TIME},3,4\n{GOOD_TIME},3\n", r"line 3: has 2 fields where the header has 3"),
    "a row too long": (VIDUR + "0,3,4,5\n", r"line 2: has 4 fields where the header has 3"),
    "a quote left open": (VIDUR + '0,3,4\n0,"3,4\n1,2,3\n', r"line 3: is not CSV"),
    "a line of JSON cut short": (mooncake() + mooncake()[:30], r"line 2: .* is not JSON"),
    "JSON that is no object": (mooncake() + "[1, 2]\n", r"line 2: is not a JSON object"),
    "JSON nested without end": (mooncake() + "[" * 100_000 + "\n", r"line 2: .* is not JSON"),
    "an empty file": ("", r"is empty; known are"),
    "nothing but blanks": (" \n\r\n\t\n", r"is empty; known are"),
    "a header alone": (AZURE, r"holds no requests"),
    "prose": (
        "Dear all,\nplease find attached\n",
        r"line 1: 'Dear all,' is not the header of a known trace; known are",
    ),
    "another trace's CSV": ("Timestamp,Model,Request tokens,Response tokens\n5,GPT,3,4\n", r"line 1: .*not the header"),
    "another trace's JSON lines": ('{"StartTimeOffset": 0, "ContextTokens": 3}\n', r"line 1: JSON lines with the keys"),
    "a Bailian trace": (
        mooncake().replace("{", '{"chat_id": 1, "turn": 1, '),
        r"line 1: JSON lines with the keys 'chat_id, turn, timestamp.* are not a known trace",
    ),
    "a JSON array": ("[\n" + mooncake() + "]\n", r"line 1: '\[' is not the header"),
    "a brace without JSON": ("{ hello\n", r"line 1: '\{ hello' is neither CSV nor a line of JSON"),
}


@pytest.mark.parametrize(("content", "sentence"), CASES.values(), ids=CASES.keys())
def test_a_bad_file_is_refused_in_one_sentence(write: Write, content: str, sentence: str) -> None:
    path = write(content)
    with pytest.raises(TraceError, match=sentence) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 600


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x1f\x8b\x08\x00rest", r"is compressed \(gzip\): unpack it first"),
        (b"PAR1\x15\x04\x15", r"is a Parquet file: write it as CSV first"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n".encode("utf-16"), r"UTF-16: save it as UTF-8"),
        (b"TIMESTAMP\x00,ContextTokens\n", r"is a binary file"),
    ],
)
def test_files_that_are_no_text_are_named_for_what_they_are(write: Write, content: bytes, sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        read_trace(write(content))


def test_paths_that_lead_nowhere_are_errors_of_ours(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"No such file.*check the path"):
        read_trace(tmp_path / "absent.csv")
    with pytest.raises(TraceError, match="is a folder; give the trace file in it"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="check the path"):
        read_trace("a\0b")
    trace = generate(2, 1.0, 0, prompt=Fixed(1), output=Fixed(1))
    with pytest.raises(TraceError, match="choose another place"):
        write_vidur_csv(trace, tmp_path / "absent" / "out.csv")


def test_a_hash_block_size_below_one_is_refused(write: Write) -> None:
    with pytest.raises(TraceError, match="a hash block holds 1 token or more, not 0"):
        read_trace(write(mooncake()), hash_block_tokens=0)


HUNDRED_MB = 100 * 2**20


def binary(noise: random.Random) -> bytes:
    return noise.randbytes(2**20)


def text_lines(noise: random.Random) -> bytes:
    return b"".join(b"%x\n" % noise.getrandbits(240) for _ in range(2**20 // 61))


def one_endless_line(noise: random.Random) -> bytes:
    return text_lines(noise).replace(b"\n", b" ")


@pytest.mark.parametrize("head", [b"", AZURE.encode(), VIDUR.encode() + b"0,3,4\n", mooncake().encode(), b'"', b"{"])
@pytest.mark.parametrize("garbage", [binary, text_lines, one_endless_line])
def test_100_mb_of_garbage_is_refused_at_once_and_in_little_memory(
    tmp_path: Path, head: bytes, garbage: Callable[[random.Random], bytes]
) -> None:
    path = tmp_path / "garbage"
    piece = garbage(random.Random(1))
    with path.open("wb") as file:
        file.write(head)
        for _ in range(HUNDRED_MB // len(piece) + 1):
            file.write(piece)
    assert path.stat().st_size >= HUNDRED_MB
    tracemalloc.start()
    begun_s = time.process_time()
    try:
        with pytest.raises(TraceError) as caught:
            read_trace(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        path.unlink()
    assert time.process_time() - begun_s < 1.0
    assert peak_bytes < 16 * 2**20
    assert len(str(caught.value)) < 600
    if b"\n" in head:
        below = head.count(b"\n") + 1
        assert re.search(rf"line {below}: ", str(caught.value)) or "binary file" in str(caught.value)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match="pipe is no regular file; give the trace file itself"):
        read_trace(pipe)

"""Each format, read from a small file whose values were worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from batchtwin.traces import Trace, csv_formats, generate, read_trace, write_vidur_csv
from batchtwin.traces.lengths import Lognormal

Write = Callable[..., Path]


def columns(trace: Trace) -> tuple[list[float], list[int], list[int]]:
    return trace.arrival_s.tolist(), trace.num_prompt_tokens.tolist(), trace.output_len.tolist()


def test_azure_timestamps_keep_all_seven_digits(write: Write) -> None:
    path = write(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-12-31 23:59:59.9999999,10,1\r\n"
        "2024-01-01 00:00:00.0000001,20,2\r\n"
        "2024-01-02 00:00:00,30,3\r\n"
    )
    assert columns(read_trace(path)) == ([0.0, 2e-7, 86_400.0000001], [10, 20, 30], [1, 2, 3])


def test_azure_timestamps_may_carry_a_zone(write: Write) -> None:
    path = write(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 02:00:01.009930+02:00,2399,6\n"
    )
    assert read_trace(path).arrival_s.tolist() == [0.0, 1.0]


def test_formats_are_told_by_content_not_by_name(write: Write, valid_files: dict[str, bytes]) -> None:
    azure = read_trace(write(valid_files["azure"], "mooncake.jsonl"))
    vidur = read_trace(write(valid_files["vidur"], "azure.txt"))
    mooncake = read_trace(write(valid_files["mooncake"], "vidur.csv"))
    assert columns(azure) == columns(vidur) == ([0.0, 4.314579, 4.541877], [374, 396, 879], [44, 109, 55])
    assert columns(mooncake) == ([0.0, 0.0, 3.5], [1100, 512, 900], [52, 26, 7])


def test_mooncake_keeps_its_prefix_blocks_as_shared_streams(write: Write, valid_files: dict[str, bytes]) -> None:
    first, second, third = read_trace(write(valid_files["mooncake"])).requests()
    assert first.prompt == (("h:0", 0, 512), ("h:1", 0, 512), ("h:2", 0, 76))
    assert second.prompt == (("h:0", 0, 512),)
    assert third.prompt == (("h:0", 0, 512), ("h:3", 0, 388))


def test_another_block_size_can_be_given(write: Write) -> None:
    path = write('{"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [7, 8]}\n')
    (request,) = read_trace(path, hash_block_tokens=64).requests()
    assert request.prompt == (("h:7", 0, 64), ("h:8", 0, 36))


def test_columns_in_another_order_and_columns_of_no_interest_do_not_matter(write: Write) -> None:
    path = write("id,num_decode_tokens,arrived_at,num_prefill_tokens\na,1,0.5,10\nb,2,1.5,20.0\n")
    assert columns(read_trace(path)) == ([0.0, 1.0], [10, 20], [1, 2])


@pytest.mark.parametrize("name", ["azure", "vidur", "mooncake"])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: b"\xef\xbb\xbf" + text, id="byte order mark"),
        pytest.param(lambda text: b"\n\r\n" + text, id="blank lines above"),
        pytest.param(lambda text: text + b"\r\n\r\n  \n", id="blank lines below"),
        pytest.param(lambda text: text.rstrip(b"\r\n"), id="no newline at the end"),
        pytest.param(lambda text: text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(lambda text: text.replace(b"\r\n", b"\n"), id="LF"),
    ],
)
def test_what_editors_do_to_a_file_changes_nothing(
    write: Write, valid_files: dict[str, bytes], name: str, change: Callable[[bytes], bytes]
) -> None:
    plain = read_trace(write(valid_files[name], "plain"))
    assert read_trace(write(change(valid_files[name]), "edited")) == plain


def test_quoted_csv_fields_are_read(write: Write, valid_files: dict[str, bytes]) -> None:
    quoted = b"\n".join(
        b",".join(b'"%s"' % field for field in line.split(b",")) for line in valid_files["vidur"].splitlines()
    )
    assert read_trace(write(quoted, "quoted")) == read_trace(write(valid_files["vidur"], "plain"))


def test_sort_puts_rows_in_order_and_keeps_ties_as_they_stand(write: Write) -> None:
    path = write(
        '{"timestamp": 2000, "input_length": 1, "output_length": 4, "hash_ids": [4]}\n'
        '{"timestamp": 1000, "input_length": 2, "output_length": 5, "hash_ids": [5]}\n'
        '{"timestamp": 2000, "input_length": 3, "output_length": 6, "hash_ids": [6]}\n'
    )
    trace = read_trace(path, sort=True)
    assert columns(trace) == ([0.0, 1.0, 1.0], [2, 1, 3], [5, 4, 6])
    assert trace.prompt_blocks is not None
    assert [ids.tolist() for ids in trace.prompt_blocks] == [[5], [4], [6]]


def test_sorting_many_ties_is_stable(write: Write) -> None:
    rows = [(row * 7 % 5, row) for row in range(1, 2000)]
    text = "".join(f"{time},{row},1\n" for time, row in rows)
    trace = read_trace(write("arrived_at,num_prefill_tokens,num_decode_tokens\n" + text), sort=True)
    assert columns(trace)[:2] == ([float(time) for time, _ in sorted(rows)], [row for _, row in sorted(rows)])


def test_rows_without_output_can_be_dropped(write: Write) -> None:
    path = write(
        '{"timestamp": 0, "input_length": 1, "output_length": 0, "hash_ids": [4]}\n'
        '{"timestamp": 1000, "input_length": 2, "output_length": 5, "hash_ids": [5]}\n'
        '{"timestamp": 3000, "input_length": 3, "output_length": 6, "hash_ids": [6]}\n'
    )
    trace = read_trace(path, drop_zero_output=True)
    assert columns(trace) == ([0.0, 2.0], [2, 3], [5, 6])
    assert [request.prompt for request in trace.requests()] == [(("h:5", 0, 2),), (("h:6", 0, 3),)]


def test_a_written_vidur_file_reads_back_bit_for_bit(tmp_path: Path) -> None:
    trace = generate(500, 3.7, 11, burstiness=0.5, prompt=Lognormal(300, 1.0), output=Lognormal(80, 0.7))
    write_vidur_csv(trace, tmp_path / "out.csv")
    again = read_trace(tmp_path / "out.csv")
    assert again == trace
    assert np.array_equal(again.arrival_s, trace.arrival_s)
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "arrived_at,num_prefill_tokens,num_decode_tokens"


@pytest.mark.parametrize(
    "rows",
    [
        "3,4,5\n3.5,6,7\n",
        "0.1,4,5\n",
        "+1,4,5\n+.5e2,+6,7\n",
        "1, 4,5\n\n 2 ,4, 5\n",
        "1,3,4\n2,99999999,1",
        "1e3,4.0,5\n",
    ],
)
def test_a_file_as_it_should_be_reads_at_once_what_it_reads_row_by_row(
    write: Write, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(",".join(csv_formats.VIDUR_COLUMNS) + "\n" + rows)
    at_once = columns(read_trace(path))
    monkeypatch.setattr(csv_formats, "_plain_vidur", lambda path: None)
    assert columns(read_trace(path)) == at_once


def test_a_plain_file_is_not_read_row_by_row(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(",".join(csv_formats.VIDUR_COLUMNS) + "\n3,4,5\n3.5,6,7\n")
    monkeypatch.setattr(csv_formats, "csv_rows", lambda *given: pytest.fail("read row by row"))
    assert columns(read_trace(path)) == ([0.0, 0.5], [4, 6], [5, 7])

"""The published files, against the figures that their publishers state and against pandas and Arrow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.json
import pytest

from batchtwin.traces import describe, read_trace, write_vidur_csv

SharedPath = Callable[[str], Path]
CONV = "data/azure_llm_2023/AzureLLMInferenceTrace_conv.csv"
CODE = "data/azure_llm_2023/AzureLLMInferenceTrace_code.csv"
MOONCAKE = "data/mooncake_fast25/conversation_trace_first6000.jsonl"


@pytest.mark.parametrize(
    ("file", "requests", "span_s", "prompt", "output"),
    [(CONV, 19_366, 3501.7, 1154.7, 211.1), (CODE, 8_819, 3435.9, 2047.8, 27.9)],
)
def test_azure_files_have_the_stated_rows_span_and_means(
    shared_path: SharedPath, file: str, requests: int, span_s: float, prompt: float, output: float
) -> None:
    trace = read_trace(shared_path(file))
    assert len(trace) == requests
    assert trace.span_s == pytest.approx(span_s, abs=0.05)
    assert trace.num_prompt_tokens.mean() == pytest.approx(prompt, abs=0.06)
    assert trace.output_len.mean() == pytest.approx(output, abs=0.06)


@pytest.mark.parametrize("file", [CONV, CODE])
def test_azure_columns_are_what_pandas_reads(shared_path: SharedPath, file: str) -> None:
    trace = read_trace(shared_path(file))
    frame = pd.read_csv(shared_path(file))
    moments = pd.to_datetime(frame["TIMESTAMP"]).to_numpy().astype("datetime64[ns]").astype(np.int64)
    assert np.array_equal(trace.arrival_s, (moments - moments[0]) / 1e9)
    assert np.array_equal(trace.num_prompt_tokens, frame["ContextTokens"])
    assert np.array_equal(trace.output_len, frame["GeneratedTokens"])


def test_the_mooncake_file_has_the_stated_figures(shared_path: SharedPath) -> None:
    trace = read_trace(shared_path(MOONCAKE))
    assert len(trace) == 6_000
    assert trace.span_s == 1872.0
    assert np.unique(trace.arrival_s).size == 625
    assert trace.num_prompt_tokens.mean() == pytest.approx(12_774, abs=1)
    assert trace.output_len.mean() == pytest.approx(347, abs=1)
    assert trace.prompt_blocks is not None
    counts = np.array([ids.size for ids in trace.prompt_blocks])
    assert np.array_equal(counts, np.ceil(trace.num_prompt_tokens / 512))


def test_mooncake_rows_are_what_arrow_reads(shared_path: SharedPath) -> None:
    trace = read_trace(shared_path(MOONCAKE))
    table = pyarrow.json.read_json(shared_path(MOONCAKE)).to_pydict()
    assert trace.arrival_s.tolist() == [timestamp / 1000 for timestamp in table["timestamp"]]
    assert trace.num_prompt_tokens.tolist() == table["input_length"]
    assert trace.output_len.tolist() == table["output_length"]
    assert trace.prompt_blocks is not None
    assert [ids.tolist() for ids in trace.prompt_blocks] == table["hash_ids"]


def test_mooncake_sharing_agrees_with_a_trie_of_prefixes(shared_path: SharedPath) -> None:
    trace = read_trace(shared_path(MOONCAKE)).head(1500)
    root: dict[int, dict[int, object]] = {}
    hits = total = 0
    for ids in trace.prompt_blocks or ():
        node: dict = root  # type: ignore[type-arg]
        for block in ids.tolist():
            hits += block in node
            node = node.setdefault(block, {})
        total += ids.size
    assert describe(trace).shared_block_share == pytest.approx(hits / total)


def test_a_real_trace_survives_vidurs_format(shared_path: SharedPath, tmp_path: Path) -> None:
    trace = read_trace(shared_path(CODE))
    write_vidur_csv(trace, tmp_path / "code.csv")
    assert read_trace(tmp_path / "code.csv") == trace


def test_reading_the_conversation_trace_takes_a_fraction_of_a_second(shared_path: SharedPath) -> None:
    path = shared_path(CONV)

    def cpu_s() -> float:
        begun_s = time.process_time()
        read_trace(path)
        return time.process_time() - begun_s

    assert min(cpu_s() for _ in range(3)) < 0.3

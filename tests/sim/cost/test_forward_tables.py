"""Exact batches that others timed: features by hand, and mutated files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchtwin.sim.cost.features import Features
from batchtwin.sim.cost.forward_tables import FPM_CELL, FPM_KEYS, read_bench_forward, read_fpm
from batchtwin.sim.cost.timings import FEWEST, TimingsError


def request(query: int, length: int, drafts: int = 0) -> dict[str, Any]:
    return {"query_len": query, "kv_len": length, "num_draft_tokens": drafts, "chunked": False}


def case(name: str, requests: list[dict[str, Any]], median_us: float = 6100.0) -> dict[str, Any]:
    """As ``vllm bench forward --output-json`` of vLLM 0.33.0 writes one, but for ranks beyond what we read."""
    rank = {
        "num_tokens": sum(r["query_len"] for r in requests),
        "kv_blocks": 9,
        "routing": "real",
        "latency_us": {"median": median_us, "sample_spread_pct": 0.4},
        "graph_vs_eager": {"relative_rms": 0.0},
    }
    return {"case": name, "requests": requests, "median_us": median_us, "ranks": [rank]}


def forward(tmp_path: Path, cases: object) -> Path:
    path = tmp_path / "forward.json"
    path.write_text(json.dumps(cases, indent=2))
    return path


def test_an_exact_batch_has_the_features_counted_by_hand(tmp_path: Path) -> None:
    """``mix=8192,32*1@8192`` and a chunk ``8192@40960c``: 8,192²/2 pairs, 32 · 8,191 tokens read, 8,192 · 36,864."""
    mix = case("mix", [request(8192, 8192), *[request(1, 8192)] * 32], 250_000.0)
    chunk = case("chunk", [request(8192, 40960)])
    found = read_bench_forward(forward(tmp_path, [mix, chunk, *[case("one", [request(1, 100)])] * FEWEST]))
    assert [column[0] for column in found.features] == [8224, 32, 32 * 8191, 1, 8192, 8192 * 4096.0, 33, 0, 33]
    assert found.features.prefill_attention_work[1] == 8192 * (32768 + 4096)
    assert found.seconds[0] == pytest.approx(0.25)
    assert found.repeat_noise_percent == pytest.approx(0.4)
    assert found.max_model_len == 40960


def test_draft_tokens_and_broken_cases_are_counted(tmp_path: Path) -> None:
    broken = [{"case": "x"}, 7, case("y", [request(9, 3)]), case("z", [request(1, 5)], float("nan"))]
    cases = [*broken, case("verify", [request(4, 4096, 3)]), *[case("one", [request(1, 100)])] * FEWEST]
    assert read_bench_forward(forward(tmp_path, cases)).left_out == {"cannot be read": 4, "with draft tokens": 1}


def fpm(tmp_path: Path, rows: list[tuple[object, ...]], cell: str = "c0") -> Path:
    """A table of (kind, batch, prefill tokens, KV tokens read, ms), in the documented order of columns."""
    path = tmp_path / "fpm.csv"
    same = ",".join([cell, *["x"] * (len(FPM_CELL) - 1)])
    lines = [",".join((*FPM_CELL, *FPM_KEYS, "partition_policy", "latency_ms"))]
    lines += [f"{same},{kind},{batch},{prefill},{kv},balanced_v1,{ms}" for kind, batch, prefill, kv, ms in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_decode_row_and_a_prefill_row_have_the_features_counted_by_hand(tmp_path: Path) -> None:
    """4 chunks of 256 over prefixes of 128: 1,024 · (128 + 128) pairs."""
    rows = [("decode", 32, 0, 4096, 7.5), ("prefill", 4, 1024, 512, 40.0), *[("decode", 1, 0, 9, 6.0)] * FEWEST]
    found = read_fpm(fpm(tmp_path, rows))
    columns = zip(*found.features, strict=True)
    assert Features(*next(columns)) == Features(32, 32, 4096, 0, 0, 0.0, 32, 0, 32)
    assert Features(*next(columns)) == Features(1024, 0, 0, 4, 1024, 1024 * 256.0, 4, 0, 4)
    assert found.seconds[:2] == pytest.approx([7.5e-3, 40e-3])


def test_a_parquet_table_is_the_same(tmp_path: Path) -> None:
    import pandas as pd

    path = fpm(tmp_path, [("decode", n, 0, 64 * n, 5.0 + n) for n in range(1, FEWEST + 1)])
    parquet = tmp_path / "fpm.parquet"
    pd.read_csv(path).to_parquet(parquet)
    one, other = read_fpm(path), read_fpm(parquet)
    assert one.seconds.tolist() == other.seconds.tolist()
    assert one.features.num_decode_kv_tokens.tolist() == other.features.num_decode_kv_tokens.tolist()


def test_rows_that_are_neither_or_broken_are_counted(tmp_path: Path) -> None:
    rows = [("mixed", 2, 8, 8, 1.0), ("decode", 0, 0, 8, 1.0), ("decode", 1, 0, "many", 1.0), ("decode", 1, 0, 9, 0)]
    found = read_fpm(fpm(tmp_path, [*rows, *[("decode", 1, 0, 9, 6.0)] * FEWEST]))
    assert found.left_out == {"of workload kind 'mixed'": 1, "cannot be read": 2, "a time of 0 or none": 1}


def test_a_table_of_several_cells_asks_which(tmp_path: Path) -> None:
    one = fpm(tmp_path, [("decode", 1, 0, 9, 6.0)] * FEWEST, "tp1").read_text()
    other = fpm(tmp_path, [("decode", 1, 0, 9, 3.0)] * FEWEST, "tp2").read_text().split("\n", 1)[1]
    path = tmp_path / "both.csv"
    path.write_text(one + other)
    with pytest.raises(TimingsError, match=r"holds 2 cells: choose one with --cell; they are 'tp1' \(20 rows\)"):
        read_fpm(path)
    assert read_fpm(path, "tp2").seconds[0] == pytest.approx(3e-3)
    with pytest.raises(TimingsError, match="holds no cell 'tp9'"):
        read_fpm(path, "tp9")


def test_another_table_is_told_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(TimingsError, match="lacks the column workload_kind"):
        read_fpm(path)
    with pytest.raises(TimingsError, match="is not JSON"):
        read_bench_forward(path)
    with pytest.raises(TimingsError, match="is no list of cases"):
        read_bench_forward(forward(tmp_path, {"cases": []}))


SPLICES = [b"\0", b'"', b",", b"{", b"]", b"null", b"NaN", b"1e400", b"-", b"9" * 400, b"\xff", b"[" * 3000, b"\n"]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), st.sampled_from(SPLICES)), min_size=1, max_size=4),
    table=st.sampled_from(("forward", "fpm")),
)
def test_a_mutated_table_is_a_table_or_one_sentence(
    tmp_path: Path, cuts: list[tuple[float, int, bytes]], table: str
) -> None:
    if table == "fpm":
        path, reader = fpm(tmp_path, [("decode", n, 0, 64 * n, 5.0) for n in range(1, 26)]), read_fpm
    else:
        path, reader = forward(tmp_path, [case("one", [request(1, 9 + n)]) for n in range(25)]), read_bench_forward
    content = path.read_bytes()
    for where, length, splice in cuts:
        at = int(where * len(content))
        content = content[:at] + splice + content[at + length :]
    path.write_bytes(content)
    found, sentence = None, ""
    try:
        found = reader(path)
    except TimingsError as error:
        sentence = str(error)
    assert "\n" not in sentence
    assert found is None or len(found.seconds) >= FEWEST
    assert found is None or (found.seconds > 0).all()

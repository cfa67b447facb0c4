"""Vidur's and AIConfigurator's layouts: composed where complete, told what is missing where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batchtwin.sim.cost.features import Features
from batchtwin.sim.cost.tables.aiconfigurator import Gemm, Heads, prefill_points, read_table
from batchtwin.sim.cost.tables.all_reduce import read_all_reduce
from batchtwin.sim.cost.tables.by_spec import spec_profile
from batchtwin.sim.cost.tables.csv_table import TableError
from batchtwin.sim.cost.tables.from_kernels import linear_shapes
from batchtwin.sim.cost.tables.open import open_tables
from batchtwin.sim.cost.tables.operator_table import attention_load
from batchtwin.sim.cost.tables.pieces import Wanted
from batchtwin.sim.facts.device import find_device
from batchtwin.sim.facts.library import load_model_config

Shared = Callable[[str], Path]
FRONTIER = "data/frontier_profiles/a800/meta-llama/Llama-2-7b-hf"
A100, H100 = "data/aiconfigurator_vllm/a100_sxm_vllm0.14.0", "data/aiconfigurator_vllm/h100_sxm_vllm0.24.0"
LLAMA_3 = "meta-llama/Meta-Llama-3-8B"
DECODES = Features(64, 64, 64 * 1024, 0, 0, 0.0, 64, 0, 64)
PROMPT = Features(2048, 0, 0, 1, 2048, 2048 * 1024.0, 1, 0, 1)


def test_linear_shapes_are_those_that_the_tables_readme_states() -> None:
    shapes = linear_shapes(load_model_config(LLAMA_3))
    assert list(shapes.values()) == [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]


def test_frontiers_tables_compose_a_step(shared_path: Shared) -> None:
    """Rows of the file, by hand: dense at 64 tokens, one decode row at 64 × 1,024 and the head by weights."""
    profile = open_tables(shared_path(FRONTIER))
    ms = 1e3 * profile.cost_model.duration_s(DECODES)
    attention_ms = 1e3 * profile.operators.attention.seconds(attention_load(DECODES))
    kv_bytes = 64 * 1024 * load_model_config("meta-llama/Llama-2-7b-hf").kv_bytes_per_token()
    assert attention_ms > 1e3 * kv_bytes / 2.04e12  # no faster than the A100's memory
    assert attention_ms < 2e3 * kv_bytes / 2.04e12
    weights_ms = 1e3 * 6.74e9 * 2 / 2.04e12
    assert attention_ms + weights_ms < ms < attention_ms + 2 * weights_ms
    assert any("no host times" in note for note in profile.notes)


def test_kernel_tables_compose_at_every_degree_measured(shared_path: Shared) -> None:
    ms = [
        1e3 * open_tables(shared_path(A100), Wanted(model=LLAMA_3, tensor_parallel=tp)).cost_model.duration_s(DECODES)
        for tp in (1, 2, 4)
    ]
    assert ms[0] > ms[1] > ms[2] > ms[0] / 4


@pytest.mark.parametrize(("folder", "gpu"), [(A100, "A100-80GB"), (H100, "H100")])
def test_a_data_sheet_at_measured_efficiencies_comes_near_the_tables(
    shared_path: Shared, folder: str, gpu: str
) -> None:
    measured = open_tables(shared_path(folder), Wanted(model=LLAMA_3)).cost_model
    sheet = spec_profile(load_model_config(LLAMA_3), find_device(gpu)).cost_model
    for step in (DECODES, PROMPT):
        assert sheet.duration_s(step) == pytest.approx(measured.duration_s(step), rel=0.1)


def test_a_layers_products_come_near_the_rows_measured(shared_path: Shared) -> None:
    gemm = Gemm(read_table(shared_path(A100), "gemm", ("m", "n", "k", "latency")))
    assert gemm(6144, 4096, 2048) == pytest.approx(405.9e-6, rel=1e-3)  # the row itself
    between = gemm(28672, 4096, 2048)
    assert gemm(16384, 4096, 2048) < between < gemm(65536, 4096, 2048)


def test_prompts_of_32_heads_are_there_and_decodes_are_not(shared_path: Shared) -> None:
    table = read_table(shared_path(A100), "context_attention", ("isl", "latency"))
    assert prefill_points(table, Heads(32, 32, 128))(1, 1024) > 0
    with pytest.raises(TableError, match="no rows of 32 query and 32 KV heads"):
        open_tables(shared_path(A100), Wanted(model="meta-llama/Llama-2-7b-hf"))


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("data/vidur_profiles/a100/meta-llama/Llama-2-7b-hf", "lacks attention.csv"),
        ("data/azure_llm_2023", "no operator tables of a known layout"),
        (A100, "give the model"),
    ],
)
def test_what_is_missing_is_said(shared_path: Shared, folder: str, said: str) -> None:
    with pytest.raises(TableError, match=said):
        open_tables(shared_path(folder))


def test_parquet_reads_as_csv_does(shared_path: Shared, tmp_path: Path) -> None:
    from pyarrow import csv, parquet

    for name in ("gemm", "context_attention", "generation_attention"):
        parquet.write_table(csv.read_csv(shared_path(f"{A100}/{name}.csv")), tmp_path / f"{name}_perf.parquet")
    wanted = Wanted(model=LLAMA_3)
    ours, theirs = (open_tables(folder, wanted).cost_model for folder in (tmp_path, shared_path(A100)))
    assert ours.duration_s(PROMPT) == theirs.duration_s(PROMPT)


def test_all_reduce_rows_of_a_graph_are_preferred(shared_path: Shared) -> None:
    """H100, 2 GPUs, 128 elements: the table's row is 4.29 µs in a graph."""
    line = read_all_reduce(shared_path(f"{H100}/allreduce.csv"), 2, 128)
    assert line(1) == pytest.approx(4.2915e-6, rel=1e-3)
    with pytest.raises(TableError, match="no all-reduce over 3 GPUs"):
        read_all_reduce(shared_path(f"{H100}/allreduce.csv"), 3, 128)


def test_a_folder_above_several_profiles_names_them(shared_path: Shared) -> None:
    with pytest.raises(TableError, match=r"2 profiles .*meta-llama/Llama-2-7b-hf, meta-llama/Meta-Llama-3-8B"):
        open_tables(shared_path("data/vidur_profiles/a100"))


def test_a_folder_above_one_profile_is_that_profile(shared_path: Shared) -> None:
    """a800 holds one model's tables, two levels below."""
    assert open_tables(shared_path(FRONTIER).parents[1]).hash() == open_tables(shared_path(FRONTIER)).hash()

"""The static roofline against hand calculations, published arithmetic and times that others measured."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from batchtwin.kernels.roofline import GPUS, AttentionShape, decode_work, prefill_work, write_kv_work

LLAMA = AttentionShape(32, 8, 128)
H100, H200 = GPUS["H100"], GPUS["H200"]
L2_BYTES = 50e6


def test_kv_bytes_of_llama_8b_are_the_published_ones() -> None:
    """131,072 bytes of bf16 KV a token over its 32 layers (vLLM's FP8-KV article of April 2026)."""
    assert 32 * LLAMA.kv_token_bytes == 131_072


def test_decode_counts_by_hand() -> None:
    """One KV head of 2 query heads of 64: 100 tokens · 2 · 64 · 2 bytes, the query and the output 2 · 64 · 2 bytes."""
    work = decode_work([100], AttentionShape(2, 1, 64), H100)
    assert work.bytes == 100 * 2 * 64 * 2 + 2 * 2 * 64 * 2
    assert work.flops == 2 * (2 * 100 * 64) * 2  # query heads · (QK and PV) of 2 operations
    assert work.exps == 200
    assert work.part_bytes == 0
    assert work.tile_flops == 4 * 128 * 16 * 64  # one tile of 128 tokens, 16 rows


def test_cut_decodes_count_their_parts() -> None:
    """8,192 tokens of 8 KV heads: 32 parts of 256 tokens, each 32 heads of 128 values and one sum, there and back."""
    assert decode_work([8192], LLAMA, H100).part_bytes == 2 * 32 * 32 * 129 * 4


def test_a_window_bounds_what_is_read() -> None:
    windowed = AttentionShape(32, 8, 128, window=1000)
    assert decode_work([5000], windowed, H100).bytes == decode_work([1000], LLAMA, H100).bytes
    assert prefill_work([(5000, 1)], windowed).flops == decode_work([1000], LLAMA, H100).flops


def test_prefill_counts_visible_pairs() -> None:
    """3 new tokens over 10 see 11 + 12 + 13 tokens, 13 of which have to be read."""
    work = prefill_work([(10, 3)], AttentionShape(2, 1, 64))
    assert work.flops == 4 * 36 * 2 * 64
    assert work.exps == 36 * 2
    assert work.bytes == 13 * 2 * 64 * 2 + 2 * 3 * 2 * 64 * 2


def test_every_block_of_rows_loads_its_own_context() -> None:
    """Group 4: 32 of 64 tokens a block of 128 rows; the first sees 32 tokens, the second 64."""
    work = prefill_work([(0, 64)], LLAMA)
    assert work.tile_bytes == (32 + 64) * LLAMA.kv_token_bytes
    assert work.tile_flops == 4 * (64 + 64) * 128 * 8 * 128


def test_write_counts_by_hand() -> None:
    assert write_kv_work(10, AttentionShape(4, 2, 8, cache_bytes=1)).bytes == 10 * (2 * 2 * 8 * (2 + 1) + 4)


def test_the_floor_is_the_slowest_of_three_units() -> None:
    assert decode_work([4096] * 128, LLAMA, H200).floor_s(H200) == pytest.approx(2.15e9 / 4.8e12, rel=1e-3)
    assert prefill_work([(0, 8192)], LLAMA).bound(H100) == "products"
    # Head size 32: 128 operations an exponential, where the units are at 989 to 3.9 TFLOPS.
    assert prefill_work([(0, 8192)], AttentionShape(8, 8, 32)).bound(H100) == "exponentials"


def _measured(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return [row for row in csv.DictReader(file) if row["kv_cache_dtype"] == "bfloat16"]


def test_no_measured_decode_is_under_the_floor_and_large_ones_are_near_it(shared_path: Callable[[str], Path]) -> None:
    """FlashAttention-3 on an H100 in vLLM 0.24.0, as AIConfigurator 0.12.0 holds it."""
    shares = []
    for row in _measured(shared_path("data/aiconfigurator_vllm/h100_sxm_vllm0.24.0/generation_attention.csv")):
        heads, kv_heads = int(row["num_heads"]), int(row["num_key_value_heads"])
        shape = AttentionShape(heads, kv_heads, int(row["head_dim"]))
        work = decode_work([int(row["step"]) + 1] * int(row["batch_size"]), shape, H100)
        if work.bytes > 4 * L2_BYTES:
            shares.append(work.floor_s(H100) / (float(row["latency"]) / 1e3))
    assert len(shares) > 50
    assert max(shares) <= 1.0
    assert median(shares) > 0.8


def test_no_measured_prefill_is_under_the_floor_and_large_ones_are_near_it(shared_path: Callable[[str], Path]) -> None:
    shares = []
    for row in _measured(shared_path("data/aiconfigurator_vllm/h100_sxm_vllm0.24.0/context_attention.csv")):
        heads, kv_heads = int(row["num_heads"]), int(row["num_key_value_heads"])
        shape = AttentionShape(heads, kv_heads, int(row["head_dim"]))
        work = prefill_work([(0, int(row["isl"]))] * int(row["batch_size"]), shape)
        if work.flops > 1e11:
            shares.append(work.floor_s(H100) / (float(row["latency"]) / 1e3))
    assert len(shares) > 50
    assert max(shares) <= 1.0
    assert median(shares) > 0.5

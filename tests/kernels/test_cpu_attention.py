"""Attention on the CPU, by every way it can go, against the naive reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from batchtwin.kernels import cpu_attention, reference

from .cases import PagedCase, paged_case, rms_ratio

BATCHES = {
    "decodes around a page": ([(14, 1), (15, 1), (16, 1), (1, 1), (31, 1)], 5),
    "decodes far apart": ([(3, 1), (211, 1), (97, 1), (5, 1)], 4),
    "prompts": ([(0, 1), (0, 15), (0, 16), (0, 17)], 0),
    "chunks over context": ([(13, 7), (32, 31), (1, 2)], 0),
    "decodes, then chunks": ([(9, 1), (33, 1), (0, 5), (17, 18), (0, 1)], 2),
}


def _run(case: PagedCase, num_decodes: int, *, use_numba: bool, window: int = 0) -> torch.Tensor:
    plan = cpu_attention.plan_attention(
        case.query_start_loc.numpy(),
        case.seq_lens.numpy(),
        case.block_tables.numpy(),
        num_decodes,
        case.key_cache.shape[1],
        dtype=case.query.dtype,
        window=window,
        use_numba=use_numba,
    )
    return cpu_attention.paged_attention(
        case.query, case.key, case.value, case.key_cache, case.value_cache, plan, case.scale
    )


def _expected(case: PagedCase, window: int = 0) -> torch.Tensor:
    return reference.paged_attention(
        case.query, case.key_cache, case.value_cache, case.query_start_loc, case.seq_lens, case.block_tables,
        case.scale, window,
    )  # fmt: skip


@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("use_numba", [True, False])
@pytest.mark.parametrize("batch", BATCHES)
def test_equals_the_reference_and_touches_no_poisoned_place(batch: str, use_numba: bool, window: int) -> None:
    rows, num_decodes = BATCHES[batch]
    case = paged_case(rows, num_heads=6, num_kv_heads=2, head_dim=24)
    assert rms_ratio(_run(case, num_decodes, use_numba=use_numba, window=window), _expected(case, window)) < 1e-6


def test_half_precision_goes_without_numba() -> None:
    rows, num_decodes = BATCHES["decodes, then chunks"]
    case = paged_case(rows, dtype=torch.bfloat16)
    assert rms_ratio(_run(case, num_decodes, use_numba=True), _expected(case)) < 0.01


def test_threads_share_decodes_out_without_changing_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    case = paged_case([(n, 1) for n in (3, 211, 97, 5, 40, 41, 160)])
    serial = _run(case, 7, use_numba=True)
    monkeypatch.setattr(cpu_attention, "_PARALLEL_FROM_ELEMENTS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(_run(case, 7, use_numba=True), serial)


def test_threads_get_equal_shares() -> None:
    lengths = np.array([10, 1000, 20, 990, 500, 510])
    order = cpu_attention._balanced_order(lengths, 2)
    assert lengths[order].tolist() == [1000, 510, 20, 990, 500, 10]


def test_reference_by_hand() -> None:
    """Two tokens, one head, scores 0 and ln 3: weights 1/4 and 3/4."""
    key_cache = torch.zeros((2, 2, 1, 1))
    key_cache[1, 1] = math.log(3.0)
    value_cache = torch.zeros((2, 2, 1, 1))
    value_cache[1, :, 0, 0] = torch.tensor([4.0, 8.0])
    out = reference.paged_attention(
        torch.ones((1, 1, 1)), key_cache, value_cache, torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([[1]]), 1.0
    )
    assert out.item() == pytest.approx(7.0, abs=1e-6)


def test_reference_equals_torch_on_an_unpaged_prompt() -> None:
    case = paged_case([(0, 21)])
    expected = torch.nn.functional.scaled_dot_product_attention(
        case.query.transpose(0, 1),
        case.key.transpose(0, 1),
        case.value.transpose(0, 1),
        is_causal=True,
        enable_gqa=True,
    ).transpose(0, 1)
    assert rms_ratio(_expected(case), expected) < 1e-6


def test_write_kv_fills_the_slots_and_nothing_else() -> None:
    case = paged_case([(13, 4), (0, 17)])
    caches = [torch.zeros_like(case.key_cache) for _ in range(4)]
    cpu_attention.write_kv(case.key, case.value, caches[0], caches[1], case.slot_mapping)
    reference.write_kv(case.key, case.value, caches[2], caches[3], case.slot_mapping)
    assert torch.equal(caches[0], caches[2])
    assert torch.equal(caches[1], caches[3])
    written = caches[0].flatten(0, 1).abs().sum((1, 2)) > 0
    assert written.nonzero().flatten().tolist() == sorted(case.slot_mapping.tolist())

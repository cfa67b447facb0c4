"""Runs the Triton kernels in the interpreter, in a process of its own, and prints one JSON object of errors.

Interpreting is decided when triton is imported, and a process that interprets cannot compile; hence the process.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from cases import Error, PagedCase, error, paged_case
from torch import Tensor
from triton_cases import SMALL, KernelCase, full

from batchtwin.executor.sampling import _key, draw_on_host
from batchtwin.kernels import reference, triton_attention, triton_sampling, triton_write_kv
from batchtwin.kernels.metadata import PackedBatch, pack
from batchtwin.kernels.triton_attention import AttentionOptions

SCALES = {"key_scale": 0.02, "value_scale": 0.013}
FP8 = torch.float8_e4m3fn


def packed(case: PagedCase, k: KernelCase, *, static: bool = False) -> PackedBatch:
    return pack(
        case.query_start_loc.numpy(), case.seq_lens.numpy(), case.block_tables.numpy(), case.slot_mapping.numpy(),
        num_decodes=k.num_decodes, num_kv_heads=k.num_kv_heads, num_processors=k.num_processors,
        windows=sorted({0, k.window}), static=static,
    )  # fmt: skip


def built(k: KernelCase) -> PagedCase:
    """In fp8 with caches that hold the keys and values divided by their scales."""
    case = paged_case(
        k.rows, num_heads=k.num_heads, num_kv_heads=k.num_kv_heads, head_dim=k.head_dim, block_size=k.block_size,
        dtype=k.dtype,
    )  # fmt: skip
    if not k.fp8:
        return case
    keys, values = case.key_cache.float() / SCALES["key_scale"], case.value_cache.float() / SCALES["value_scale"]
    return case._replace(key_cache=keys.to(FP8), value_cache=values.to(FP8))


def guarded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """``rows`` [T, heads, dims] inside a larger buffer of NaN, heads outermost, as a model's projections lie."""
    tokens, heads, dims = rows.shape
    buffer = torch.full((heads, tokens + 2, dims), float("nan"), dtype=rows.dtype)
    inside = buffer.transpose(0, 1)[1:-1]
    inside.copy_(rows)
    return buffer, inside


def options(case: PagedCase, k: KernelCase) -> AttentionOptions:
    return AttentionOptions(case.scale, window=k.window, softcap=k.softcap, **(SCALES if k.fp8 else {}))


def expected(case: PagedCase, k: KernelCase) -> Tensor:
    return reference.paged_attention(
        case.query, case.key_cache, case.value_cache, case.query_start_loc, case.seq_lens, case.block_tables,
        case.scale, k.window, softcap=k.softcap, **(SCALES if k.fp8 else {}),
    )  # fmt: skip


def attention_error(k: KernelCase) -> Error:
    """Of both kernels together; infinite if a place around the output was written."""
    case = built(k)
    _, query = guarded(case.query)
    buffer, out = guarded(torch.full_like(case.query, float("nan")))
    triton_attention.paged_attention(
        query, case.key_cache, case.value_cache, packed(case, k).to("cpu"), options(case, k), out
    )
    if not (buffer[:, 0].isnan().all() and buffer[:, -1].isnan().all()):
        return Error(float("inf"), float("inf"), [])
    return error(out, expected(case, k))


def replay_error() -> Error:
    """Both kernels as a captured graph replays them: grids of one batch, numbers of another, one sequence padding."""
    k = KernelCase([(300, 1), (0, 1), (40, 1), (5, 9), (0, 3)], 3, num_kv_heads=1)
    captured, replayed = built(k), built(k._replace(rows=[(900, 1), (17, 1), (0, 1), (301, 2), (44, 10)]))
    width = replayed.block_tables.shape[1]
    wide = torch.zeros((len(k.rows), width), dtype=torch.int64)
    wide[:, : captured.block_tables.shape[1]] = captured.block_tables
    captured = captured._replace(block_tables=wide)
    metadata = packed(captured, k, static=True).to("cpu")
    replayed.seq_lens[2] = 0
    metadata.replace(packed(replayed, k, static=True).host)
    out = torch.full_like(replayed.query, float("nan"))
    triton_attention.paged_attention(
        replayed.query, replayed.key_cache, replayed.value_cache, metadata, options(replayed, k), out
    )
    return error(out, expected(replayed, k))


def far_page_error() -> Error:
    """A page whose offset is beyond 32 bits: the caches are 2 GiB each of memory that is never touched."""
    k = KernelCase([(20, 1), (3, 5)], 1, num_heads=2, num_kv_heads=1, head_dim=64, fp8=True)
    near = built(k)
    num_blocks = 2**31 // (16 * 64) + near.key_cache.shape[0]
    shift = num_blocks - near.key_cache.shape[0]
    caches = [torch.empty((num_blocks, 16, 1, 64), dtype=FP8) for _ in range(2)]
    for far, cache in zip(caches, (near.key_cache, near.value_cache), strict=True):
        far.view(torch.uint8)[shift:] = cache.view(torch.uint8)
    case = near._replace(key_cache=caches[0], value_cache=caches[1], block_tables=near.block_tables + shift)
    out = torch.full_like(case.query, float("nan"))
    triton_attention.paged_attention(case.query, *caches, packed(case, k).to("cpu"), options(case, k), out)
    rewritten = [cache.clone() for cache in (near.key_cache, near.value_cache)]
    slots = case.slot_mapping + shift * 16
    new = [_just_above_fp8(rows, scale) for rows, scale in zip((case.key, case.value), SCALES.values(), strict=True)]
    before = expected(near, k)
    triton_write_kv.write_kv(*new, *caches, slots, **SCALES)
    reference.write_kv(*new, *rewritten, case.slot_mapping, **SCALES)
    same = all(_same_bits(far[shift:], own) for far, own in zip(caches, rewritten, strict=True))
    return error(out, before) if same else Error(float("inf"), float("inf"), [])


def write_error(*, fp8: bool) -> float:
    """Zero iff the written cache equals the reference's, bit for bit, untouched places and a padding token included."""
    case = paged_case([(13, 1), (0, 17)], num_heads=6, num_kv_heads=3, head_dim=24)
    case.slot_mapping[4] = -1
    dtype = FP8 if fp8 else torch.float32
    caches = [torch.zeros(case.key_cache.shape).to(dtype) for _ in range(4)]
    key, value = case.key * torch.where(torch.arange(24) == 5, 100.0, 1.0), case.value  # some beyond fp8's range
    if fp8:
        key, value = (_just_above_fp8(rows, scale) for rows, scale in zip((key, value), SCALES.values(), strict=True))
    strided = torch.empty((3, value.shape[0], 24)).transpose(0, 1).copy_(value)
    scales = SCALES if fp8 else {}
    triton_write_kv.write_kv(key, strided, caches[0], caches[1], case.slot_mapping, **scales)
    reference.write_kv(key, value, caches[2], caches[3], case.slot_mapping, **scales)
    return float(sum(not _same_bits(a, b) for a, b in zip(caches[:2], caches[2:], strict=True)))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _just_above_fp8(rows: Tensor, scale: float) -> Tensor:
    """Values that have to be rounded, but down: the interpreter of triton 3.8 loses the carry of one rounded up into
    the next power of two (31.7 becomes 16).
    """
    return (rows / scale).clamp(-448, 448).to(FP8).float() * scale * (1 + 2**-6)


def merge_error() -> Error:
    """Parts of one sequence of 5 splits, one of them empty, behind one of a single split that must stay as it is."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn((6, 2, 24), generator=generator)
    logs = torch.randn((6, 2), generator=generator) * 5
    parts[3], logs[3] = 0.0, float("-inf")
    out = torch.full((2, 2, 24), float("nan"))
    triton_attention._merge(parts, logs, torch.tensor([0, 1, 6], dtype=torch.int32), 2, out)
    if not out[0].isnan().all():
        return Error(float("inf"), float("inf"), [])
    return error(out[1], reference.merge(parts[1:], logs[1:]))


def draw_mismatches() -> float:
    """Rows whose token differs from PyTorch's, of 12: three element types, sizes beside the tile, all temperatures."""
    generator, wrong = torch.Generator().manual_seed(1), 0
    keys = torch.tensor([[_key(seed, 7 + seed)] for seed in range(4)])
    temperature = torch.tensor([[0.0], [0.3], [1.0], [5.0]])
    for dtype, vocab_size in ((torch.float32, 4097), (torch.float16, 2048), (torch.float32, 11)):
        logits = (3 * torch.randn((4, vocab_size + 3), generator=generator)).to(dtype)[:, :vocab_size]
        logits[3, ::2] = float("-inf")  # as top-k leaves them
        expected = draw_on_host(logits, keys, temperature)
        wrong += int((triton_sampling.draw(logits, keys, temperature) != expected).sum())
    tied = torch.zeros((1, 5000))
    tied[0, [4000, 300, 4999]] = 2.0
    wrong += int(triton_sampling.draw(tied, keys[:1], temperature[:1])[0]) != 300
    return float(wrong)


def main(grid: str) -> None:
    if grid == "full":
        print(json.dumps({name: attention_error(case) for name, case in full().items()}))
        return
    errors: dict[str, Error] = {name: attention_error(case) for name, case in SMALL.items()}
    errors |= {"replay": replay_error(), "far page": far_page_error(), "merge": merge_error()}
    writes = {"write": write_error(fp8=False), "write fp8": write_error(fp8=True)}
    writes["draw"] = draw_mismatches()
    print(json.dumps(errors | {name: Error(wrong, wrong, []) for name, wrong in writes.items()}))


if __name__ == "__main__":
    np.seterr(over="ignore")
    main(sys.argv[1])

"""The kernels on a device: right or not, and how near the device's limit; sections of ``gpu_check.py``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from batchtwin.executor.sampling import draw_on_host
from batchtwin.kernels import reference

if TYPE_CHECKING:
    from gpu_check import Report

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""RMS of the error over RMS of the float32 reference on the same rounded inputs: one rounding of the output and of the
weights each, 2⁻⁹ for bfloat16, with room for two."""
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16
DECODES = ((1, 1024), (1, 8192), (1, 32768), (8, 1024), (8, 8192), (32, 1024), (32, 4096), (128, 1024), (128, 4096))
PREFILLS = ((1, 1024), (1, 2048), (1, 8192), (8, 1024))
MEASURE_S = 0.4
L2_BYTES = 256 * 2**20


class Shape(NamedTuple):
    """Heads of one attention call."""

    num_heads: int = HEADS
    num_kv_heads: int = KV_HEADS
    head_dim: int = HEAD_DIM
    block_size: int = BLOCK
    dtype: torch.dtype = torch.bfloat16
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True)
class Case:
    """A paged batch on a device: decodes first."""

    shape: Shape
    query: Tensor
    key: Tensor
    value: Tensor
    key_cache: Tensor
    value_cache: Tensor
    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    block_tables: np.ndarray
    slot_mapping: np.ndarray
    num_decodes: int

    @property
    def scale(self) -> float:
        """1/√head size."""
        return float(self.shape.head_dim**-0.5)


def make_case(
    rows: Sequence[tuple[int, int]], shape: Shape, device: str, *, seed: int = 0, poison: bool = True
) -> Case:
    """``rows``: (context before, new tokens). What nobody owns is NaN if ``poison``; the new tokens are not yet in the
    caches.
    """
    lens = np.array([start + new for start, new in rows])
    needed = -(-lens // shape.block_size)
    num_blocks = int(needed.sum()) + 3
    rng = np.random.default_rng(seed)
    placed = rng.permutation(num_blocks - 1)[: needed.sum()] + 1
    tables = np.zeros((len(rows), int(needed.max())), dtype=np.int64)
    tables[np.arange(tables.shape[1])[None] < needed[:, None]] = placed
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(shape.dtype)

    caches = [normal(num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim) for _ in range(2)]
    starts = np.concatenate(([0], np.cumsum([new for _, new in rows])))
    at = np.concatenate([np.arange(start, start + new) for start, new in rows])
    seq = np.repeat(np.arange(len(rows)), [new for _, new in rows])
    slots = tables[seq, at // shape.block_size] * shape.block_size + at % shape.block_size
    if poison:
        owned = np.zeros(num_blocks * shape.block_size, dtype=bool)
        for table, (start, _) in zip(tables, rows, strict=True):
            before = np.arange(start)
            owned[table[before // shape.block_size] * shape.block_size + before % shape.block_size] = True
        for cache in caches:
            cache.flatten(0, 1)[torch.from_numpy(np.flatnonzero(~owned)).to(device)] = float("nan")
    return Case(
        shape,
        normal(len(at), shape.num_heads, shape.head_dim),
        normal(len(at), shape.num_kv_heads, shape.head_dim),
        normal(len(at), shape.num_kv_heads, shape.head_dim),
        *caches,
        starts,
        lens,
        tables,
        slots,
        sum(1 for start, new in rows if new == 1 and start > 0),
    )


def attention_call(case: Case) -> Callable[[], Tensor]:
    """Write the new keys and values, and give a function that attends: by Triton, or on a CPU by what runs there."""
    out = torch.empty_like(case.query)
    if case.query.device.type == "cpu":
        return _cpu_call(case)
    from batchtwin.kernels import triton_attention, triton_write_kv
    from batchtwin.kernels.metadata import pack

    meta = pack(
        case.query_start_loc,
        case.seq_lens,
        case.block_tables,
        case.slot_mapping,
        num_decodes=case.num_decodes,
        num_kv_heads=case.shape.num_kv_heads,
        num_processors=torch.cuda.get_device_properties(0).multi_processor_count,
        windows=(case.shape.window,),
    ).to(case.query.device)
    options = triton_attention.AttentionOptions(case.scale, window=case.shape.window, softcap=case.shape.softcap)
    triton_write_kv.write_kv(case.key, case.value, case.key_cache, case.value_cache, meta.slot_mapping)

    def attend() -> Tensor:
        triton_attention.paged_attention(case.query, case.key_cache, case.value_cache, meta, options, out)
        return out

    return attend


def _cpu_call(case: Case) -> Callable[[], Tensor]:
    from batchtwin.kernels import cpu_attention

    plan = cpu_attention.plan_attention(
        case.query_start_loc,
        case.seq_lens,
        case.block_tables,
        case.num_decodes,
        case.shape.block_size,
        dtype=case.shape.dtype,
        window=case.shape.window,
        softcap=case.shape.softcap,
    )
    slots = torch.from_numpy(case.slot_mapping)
    cpu_attention.write_kv(case.key, case.value, case.key_cache, case.value_cache, slots)
    return lambda: cpu_attention.paged_attention(
        case.query, case.key, case.value, case.key_cache, case.value_cache, plan, case.scale
    )


def variants(dry_run: bool) -> list[Shape]:
    """What is checked: head sizes, pages, types, windows, soft caps; the timed shape first."""
    if dry_run:
        small = Shape(4, 2, 16, 16, torch.float32)
        return [small, small._replace(window=24, softcap=5.0), small._replace(dtype=torch.bfloat16, head_dim=24)]
    base = Shape()
    return [
        base,
        *(base._replace(num_heads=8, num_kv_heads=2, head_dim=d) for d in (64, 80, 96, 256)),
        *(base._replace(num_heads=8, num_kv_heads=2, block_size=b) for b in (32, 64, 256)),
        *(base._replace(num_heads=8, num_kv_heads=2, dtype=t) for t in (torch.float16, torch.float32)),
        base._replace(num_heads=8, num_kv_heads=8, window=100),
        base._replace(num_heads=8, num_kv_heads=4, softcap=30.0, window=40),
    ]


def batches(block: int, dry_run: bool) -> dict[str, list[tuple[int, int]]]:
    """Awkward lengths: 1, page ± 1, primes, long; alone and mixed. One token over context is a decode."""
    decodes = [(block - 1, 1), (block, 1), (block + 1, 1), (1, 1), (97, 1), (40 if dry_run else 2503, 1)]
    prefills = [(0, 1), (0, block + 1), (0, 37), (13, 29), (block, 2)]
    return {"decode": decodes, "prefill": prefills, "mixed": [*decodes[:4], *prefills]}


def correctness(report: Report) -> dict[str, Any]:
    """Every variant on every batch against the naive float32 reference."""
    checked = []
    for shape in variants(report.dry_run):
        for kind, rows in batches(shape.block_size, report.dry_run).items():
            found = _check(make_case(rows, shape, report.device))
            checked.append({"variant": str(shape), "batch": kind} | found)
    drawn = _check_draw(report)
    num_wrong = sum(not row["right"] for row in (*checked, drawn))
    worst = max(row["rms_ratio"] for row in checked)
    summary = f"{len(checked) + 1 - num_wrong} of {len(checked) + 1} right, worst {worst:.1e}"
    return {"checked": checked, "draw": drawn, "num_wrong": num_wrong, "summary": summary}


def _check_draw(report: Report) -> dict[str, Any]:
    """Tokens drawn on the device and by PyTorch on the host from the same logits. Logarithms differ by a rounding, so
    one of 64 rows may be a tie that falls the other way.
    """
    vocab_size = 1000 if report.dry_run else 128_256
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn((64, vocab_size), generator=generator)).to(torch.bfloat16)
    keys = torch.randint(0, 2**62, (64, 1), generator=generator)
    temperature = torch.linspace(0, 2, 64)[:, None]
    draw = draw_on_host
    try:
        if report.device != "cpu":
            from batchtwin.kernels.triton_sampling import draw
        tokens = draw(*(t.to(report.device) for t in (logits, keys, temperature))).cpu()
    except Exception as error:  # noqa: BLE001  (a kernel that does not compile is a finding)
        return {"right": False, "error": str(error)[:500]}
    different = int((tokens != draw_on_host(logits, keys, temperature)).sum())
    return {"right": different <= 1, "rows": 64, "different": different}


def _check(case: Case) -> dict[str, Any]:
    try:
        actual = attention_call(case)().float().cpu()
    except Exception as error:  # noqa: BLE001  (one variant that does not compile is a finding)
        return {"right": False, "rms_ratio": float("inf"), "error": str(error)[:500]}
    tables, starts, lens = (torch.from_numpy(a) for a in (case.block_tables, case.query_start_loc, case.seq_lens))
    expected = reference.paged_attention(
        case.query.float().cpu(), case.key_cache.cpu(), case.value_cache.cpu(), starts, lens, tables, case.scale,
        case.shape.window, softcap=case.shape.softcap,
    )  # fmt: skip
    error = (actual - expected).abs()
    ratio = float((error.square().mean() / expected.square().mean()).sqrt())
    return {"right": ratio <= TOLERANCE[case.shape.dtype], "rms_ratio": ratio, "worst": float(error.max())}


def kernels(report: Report) -> dict[str, Any]:
    """Decode against bytes, prefill against FLOPs; unless found wrong. Those of others are ``gpu_peers``'."""
    checks = report.sections.get("correctness", {}).get("checked", [])
    shape = variants(report.dry_run)[0]
    wrong = [row for row in checks if row["variant"] == str(shape) and not row["right"]]
    if wrong or not checks:
        return {"skipped": "the kernels of the timed shape are not known to be right: nothing is timed"}
    decodes = ((2, 40), (4, 64)) if report.dry_run else DECODES
    prefills = ((1, 64), (2, 32)) if report.dry_run else PREFILLS
    roof = report.sections["roof"]
    timed = [_decode(shape, n, context, roof, report) for n, context in decodes]
    timed += [_prefill(shape, n, tokens, roof, report) for n, tokens in prefills]
    best = {kind: max(row["percent_of_peak"] for row in timed if row["kind"] == kind) for kind in ("decode", "prefill")}
    return {
        "timed": timed,
        "summary": ", ".join(f"{kind} up to {share:.0f} % of the roof" for kind, share in best.items()),
    }


def _decode(shape: Shape, num_seqs: int, context: int, roof: dict[str, Any], report: Report) -> dict[str, Any]:
    case = make_case([(context, 1)] * num_seqs, shape, report.device, poison=False)
    moved = num_seqs * (context + 1) * 2 * shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
    times = measure(attention_call(case), report)
    return _row("decode", num_seqs, context, times, moved / roof["memory_bytes_per_s"]) | {"bytes": moved}


def _prefill(shape: Shape, num_seqs: int, tokens: int, roof: dict[str, Any], report: Report) -> dict[str, Any]:
    case = make_case([(0, tokens)] * num_seqs, shape, report.device, poison=False)
    flops = num_seqs * 4 * shape.num_heads * shape.head_dim * tokens * (tokens + 1) // 2
    times = measure(attention_call(case), report)
    return _row("prefill", num_seqs, tokens, times, flops / roof["flops_per_s"]) | {"flops": flops}


def _row(kind: str, num_seqs: int, tokens: int, times: dict[str, float], floor_s: float) -> dict[str, Any]:
    found = {"kind": kind, "num_seqs": num_seqs, "tokens": tokens, "ours": times, "floor_us": 1e6 * floor_s}
    return found | {"percent_of_peak": 100e6 * floor_s / times["p50_us"]}


def measure(call: Callable[[], Any], report: Report) -> dict[str, float]:
    """p20, p50 and p80 in µs over about 0.4 s, the L2 emptied before each call; on a CPU by the wall clock. Where
    ``host_us`` is longer than emptying takes (about 60 µs), a short time is that of launching.
    """
    for _ in range(3):
        call()
    if report.device == "cpu":
        times = host = [_host_us(call) for _ in range(5)]
    else:
        times, host = _on_device_us(call)
    low, middle, high = np.percentile(times, (20, 50, 80)).tolist()
    return {"p20_us": low, "p50_us": middle, "p80_us": high, "host_us": float(np.median(host)), "count": len(times)}


def _host_us(call: Callable[[], Any]) -> float:
    """Until the call returns: on a device, what launching takes the host."""
    began = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - began)


def _on_device_us(call: Callable[[], Any]) -> tuple[list[float], list[float]]:
    flush = torch.empty(L2_BYTES // 4, device="cuda", dtype=torch.int32)
    pairs, host = [], []
    deadline = time.monotonic() + MEASURE_S
    while time.monotonic() < deadline and len(pairs) < 200:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        began.record()
        host.append(_host_us(call))
        ended.record()
        pairs.append((began, ended))
        if len(pairs) % 10 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return [1e3 * began.elapsed_time(ended) for began, ended in pairs], host

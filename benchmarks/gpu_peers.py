"""Other people's attention kernels on the same paged batch, where they are installed; a section of ``gpu_check.py``.

Each peer prepares a case outside of what is timed (gathering, planning, compiling) and gives a call that attends to the
tokens that our kernels have stored: [tokens, heads, head size]. What it gives is held against ours first; one that
disagrees or fails is a row that says so, never the end of the run. The section comes last, since a foreign kernel may
take the CUDA context with it, and keeps every row as it is made.

Signatures are those of PyTorch 2.6 to 2.13, flash-attn 2.8 and its ``hopper`` (3.0), FlashInfer 0.7 and vLLM 0.33.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gpu_kernels import DECODES, PREFILLS, TOLERANCE, Case, attention_call, make_case, measure, variants
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from gpu_check import Report

Call = Callable[[], Tensor]
COMPILED = (("decode", 1, 8192), ("decode", 32, 4096), ("prefill", 1, 2048), ("prefill", 1, 8192))
"""Where a peer that compiles anew for every shape is timed: each costs it some ten seconds."""
WORKSPACE_BYTES = 128 * 2**20
"""FlashInfer's own recommendation."""
VLLM_MIN_GRID, VLLM_SEGMENTS = 128, 16
"""vLLM's TRITON_ATTN cuts contexts into 16 segments up to 128 / KV heads sequences."""
SLOW_S = 5.0
"""A peer that takes longer to fail is not tried again."""
LEAST_LEFT_S = 10.0


@dataclass(frozen=True)
class Peer:
    """A kernel of others: ``decode`` and ``prefill`` prepare a case of sequences that are all equally long."""

    name: str
    distributions: tuple[str, ...]
    """Names under which it may be installed."""
    decode: Callable[[Case], Call]
    prefill: Callable[[Case], Call]
    compiles: bool = False

    def version(self) -> str | None:
        """Of what is installed; None if nothing is."""
        for name in self.distributions:
            try:
                return f"{name} {version(name)}"
            except PackageNotFoundError:
                continue
        return None


def contiguous_kv(case: Case) -> tuple[Tensor, Tensor]:
    """Keys and values [sequences, tokens, KV heads, head size] out of the pages, for peers that read no such pages."""
    length = _length(case)
    tables = torch.from_numpy(case.block_tables).to(case.key_cache.device)
    keys, values = (
        cache[tables].flatten(1, 2)[:, :length].contiguous() for cache in (case.key_cache, case.value_cache)
    )
    return keys, values


def _length(case: Case) -> int:
    if len(set(case.seq_lens.tolist())) != 1 or len(set(np.diff(case.query_start_loc).tolist())) != 1:
        raise ValueError("the sequences of a peer's case must be equally long")
    return int(case.seq_lens[0])


def _rectangle(case: Case) -> Tensor:
    """Queries as [sequences, new tokens, heads, head size]."""
    return case.query.unflatten(0, (len(case.seq_lens), -1))


def _int32(array: np.ndarray, case: Case) -> Tensor:
    return torch.from_numpy(array.astype(np.int32)).to(case.query.device)


def _flat(out: Any) -> Tensor:
    """[tokens, heads, head size] of [sequences, tokens, heads, head size], alone or before a log-sum."""
    tensor: Tensor = out[0] if isinstance(out, tuple) else out
    return tensor.flatten(0, 1)


def _sdpa(case: Case, *, causal: bool) -> Call:
    query, keys, values = (t.transpose(1, 2) for t in (_rectangle(case), *contiguous_kv(case)))
    return lambda: _flat(
        scaled_dot_product_attention(
            query, keys, values, is_causal=causal, scale=case.scale, enable_gqa=True
        ).transpose(1, 2)
    )


def _causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _flex(case: Case, *, causal: bool) -> Call:
    """Compiled for each shape alone; on a CPU by the back end that only traces, since no time counts there."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query, keys, values = (t.transpose(1, 2) for t in (_rectangle(case), *contiguous_kv(case)))
    device = case.query.device.type
    new, length = query.shape[2], keys.shape[2]
    mask = create_block_mask(_causal, None, None, new, length, device=device) if causal else None
    torch.compiler.reset()  # or the ninth shape would meet the limit of recompilations and run uncompiled
    compiled = torch.compile(flex_attention, backend="inductor" if device == "cuda" else "eager", dynamic=False)
    return lambda: _flat(
        compiled(query, keys, values, block_mask=mask, scale=case.scale, enable_gqa=True).transpose(1, 2)
    )


def _flash_prefill(module: str) -> Callable[[Case], Call]:
    def prepare(case: Case) -> Call:
        attend = import_module(module).flash_attn_func
        query, (keys, values) = _rectangle(case), contiguous_kv(case)
        return lambda: _flat(attend(query, keys, values, softmax_scale=case.scale, causal=True))

    return prepare


def _flash2_decode(case: Case) -> Call:
    """Contiguous: FlashAttention 2 takes pages in multiples of 256 tokens only."""
    attend = import_module("flash_attn").flash_attn_with_kvcache
    query, (keys, values), lens = _rectangle(case), contiguous_kv(case), _int32(case.seq_lens, case)
    return lambda: _flat(attend(query, keys, values, cache_seqlens=lens, softmax_scale=case.scale, causal=True))


def _flash3_decode(case: Case) -> Call:
    attend = import_module("flash_attn_interface").flash_attn_with_kvcache
    query, lens, tables = _rectangle(case), _int32(case.seq_lens, case), _int32(case.block_tables, case)
    return lambda: _flat(
        attend(
            query,
            case.key_cache,
            case.value_cache,
            cache_seqlens=lens,
            page_table=tables,
            softmax_scale=case.scale,
            causal=True,
        )
    )


def _page_table(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """FlashInfer's: where each sequence's pages begin [S + 1], all pages, and the tokens in each last page [S]."""
    size = case.shape.block_size
    counts = -(-case.seq_lens // size)
    pages = np.concatenate([row[:count] for row, count in zip(case.block_tables, counts, strict=True)])
    starts = np.concatenate(([0], np.cumsum(counts)))
    return _int32(starts, case), _int32(pages, case), _int32((case.seq_lens - 1) % size + 1, case)


def _flashinfer_decode(case: Case) -> Call:
    import flashinfer

    shape = case.shape
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=case.query.device)
    # As it advises where several query heads share a KV head.
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    wrapper.plan(
        *_page_table(case),
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        q_data_type=shape.dtype,
        kv_data_type=shape.dtype,
        sm_scale=case.scale,
    )
    return lambda: wrapper.run(case.query, (case.key_cache, case.value_cache))


def _flashinfer_prefill(case: Case) -> Call:
    import flashinfer

    shape = case.shape
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=case.query.device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        _int32(case.query_start_loc, case),
        *_page_table(case),
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        causal=True,
        sm_scale=case.scale,
        q_data_type=shape.dtype,
        kv_data_type=shape.dtype,
    )
    return lambda: wrapper.run(case.query, (case.key_cache, case.value_cache))


def _paged(case: Case) -> dict[str, Any]:
    """What both of vLLM's kernels are told of a batch, under the names they share."""
    return {
        "q": case.query,
        "k": case.key_cache,
        "v": case.value_cache,
        "out": torch.empty_like(case.query),
        "cu_seqlens_q": _int32(case.query_start_loc, case),
        "max_seqlen_q": int(np.diff(case.query_start_loc).max()),
        "seqused_k": _int32(case.seq_lens, case),
        "max_seqlen_k": int(case.seq_lens.max()),
        "softmax_scale": case.scale,
        "causal": True,
        "block_table": _int32(case.block_tables, case),
    }


def _vllm_flash(case: Case) -> Call:
    """FlashAttention 3 where vLLM has it for this GPU, else 2."""
    flash = import_module("vllm.vllm_flash_attn")
    arguments = _paged(case) | {"fa_version": 3 if flash.is_fa_version_supported(3) else 2}

    def attend() -> Tensor:
        flash.flash_attn_varlen_func(**arguments)
        out: Tensor = arguments["out"]
        return out

    return attend


def _vllm_triton(case: Case) -> Call:
    try:
        module = import_module("vllm.v1.attention.ops.triton_unified_attention")
    except ImportError:  # before 0.14 or so
        module = import_module("vllm.attention.ops.triton_unified_attention")
    unified = module.unified_attention
    ones = torch.ones((len(case.seq_lens), case.shape.num_kv_heads), device=case.query.device)
    arguments = _paged(case) | {"window_size": (-1, -1), "softcap": 0.0, "q_descale": None}
    arguments |= {"k_descale": ones, "v_descale": ones}
    if "seq_threshold_3D" in inspect.signature(unified).parameters:  # else it allocates these by itself
        arguments |= _vllm_segments(case)

    def attend() -> Tensor:
        unified(**arguments)
        out: Tensor = arguments["out"]
        return out

    return attend


def _vllm_segments(case: Case) -> dict[str, Any]:
    """The buffers that vLLM's back end keeps for decodes cut into segments; without them it does not cut any."""
    shape = case.shape
    most = VLLM_MIN_GRID // shape.num_kv_heads
    size = (most, shape.num_heads, VLLM_SEGMENTS)
    padded_head_dim = 1 << (shape.head_dim - 1).bit_length()
    buffer = {"dtype": torch.float32, "device": case.query.device}
    return {
        "seq_threshold_3D": most,
        "num_par_softmax_segments": VLLM_SEGMENTS,
        "softmax_segm_output": torch.empty((*size, padded_head_dim), **buffer),
        "softmax_segm_max": torch.empty(size, **buffer),
        "softmax_segm_expsum": torch.empty(size, **buffer),
    }


PEERS = (
    Peer("sdpa", ("torch",), lambda case: _sdpa(case, causal=False), lambda case: _sdpa(case, causal=True)),
    Peer(
        "flex_attention",
        ("torch",),
        lambda case: _flex(case, causal=False),
        lambda case: _flex(case, causal=True),
        compiles=True,
    ),
    Peer("flash_attn", ("flash-attn",), _flash2_decode, _flash_prefill("flash_attn")),
    Peer("flash_attn_3", ("flash-attn-3", "flash_attn_3"), _flash3_decode, _flash_prefill("flash_attn_interface")),
    Peer("flashinfer", ("flashinfer-python",), _flashinfer_decode, _flashinfer_prefill),
    Peer("vllm_flash_attn", ("vllm",), _vllm_flash, _vllm_flash),
    Peer("vllm_triton", ("vllm",), _vllm_triton, _vllm_triton),
)


def peers(report: Report) -> dict[str, Any]:
    """Ours and everybody's, row by row, in turn; only where ours is known to be right."""
    checks = report.sections.get("correctness", {}).get("checked", [])
    shape = variants(report.dry_run)[0]
    if not checks or any(row["variant"] == str(shape) and not row["right"] for row in checks):
        return {"skipped": "the kernels of the timed shape are not known to be right: nothing is compared"}
    versions = {peer.name: peer.version() or "not installed" for peer in PEERS}
    there = [peer for peer in PEERS if versions[peer.name] != "not installed"]
    given_up: dict[tuple[str, str], str] = {}
    timed: list[dict[str, Any]] = []
    for kind, num_seqs, tokens in _shapes(report.dry_run):
        if report.left_s() < LEAST_LEFT_S and not report.dry_run:
            timed.append({"kind": kind, "num_seqs": num_seqs, "tokens": tokens, "skipped": "out of time"})
            continue
        rows = [(tokens, 1)] * num_seqs if kind == "decode" else [(0, tokens)] * num_seqs
        case = make_case(rows, shape, report.device, poison=False)
        ours = attention_call(case)
        expected = ours().clone()
        row: dict[str, Any] = {"kind": kind, "num_seqs": num_seqs, "tokens": tokens, "ours": measure(ours, report)}
        timed.append(row)
        for peer in there:
            row[peer.name] = _one(peer, row, case, expected, given_up, report)
            report.keep("peers", {"versions": versions, "timed": timed})
    return {"versions": versions, "timed": timed, "summary": _summary(timed, there)}


def _shapes(dry_run: bool) -> Iterator[tuple[str, int, int]]:
    """(kind, sequences, context of a decode or new tokens of a prompt)."""
    for kind, sizes in (
        ("decode", ((2, 40),) if dry_run else DECODES),
        ("prefill", ((2, 32),) if dry_run else PREFILLS),
    ):
        for num_seqs, tokens in sizes:
            yield kind, num_seqs, tokens


def _one(
    peer: Peer,
    row: dict[str, Any],
    case: Case,
    expected: Tensor,
    given_up: dict[tuple[str, str], str],
    report: Report,
) -> dict[str, Any]:
    """A peer's times on one case, or why there are none."""
    place = (peer.name, row["kind"])
    if place in given_up:
        return {"skipped": f"it failed slowly before: {given_up[place]}"}
    if peer.compiles and not report.dry_run and (row["kind"], row["num_seqs"], row["tokens"]) not in COMPILED:
        return {"skipped": "it compiles for every shape: timed at a few"}
    began = time.monotonic()
    try:
        call = peer.decode(case) if row["kind"] == "decode" else peer.prefill(case)
        ratio = _rms_ratio(call(), expected)
        if not ratio <= 2 * TOLERANCE[case.shape.dtype]:
            return {"disagrees": ratio}
        prepare_s = time.monotonic() - began
        times = measure(call, report)
    except Exception as error:  # noqa: BLE001  (somebody else's kernel may refuse a shape, a GPU, a version)
        what = f"{type(error).__name__}: {error}"[:300]
        if time.monotonic() - began > SLOW_S:
            given_up[place] = what
        return {"failed": what}
    over_ours = times["p50_us"] / row["ours"]["p50_us"]
    return times | {"over_ours": over_ours, "rms_ratio": ratio, "prepare_s": prepare_s, "version": peer.version()}


def _rms_ratio(actual: Tensor, expected: Tensor) -> float:
    """RMS of the difference over that of ours; infinite for another shape, NaN where one is."""
    if actual.shape != expected.shape:
        return float("inf")
    error = (actual.float() - expected.float()).square().mean() / expected.float().square().mean()
    return float(error.sqrt())


def _summary(timed: list[dict[str, Any]], there: list[Peer]) -> str:
    """Each peer's time over ours, the median over its rows."""
    said = []
    for peer in there:
        ratios = [row[peer.name]["over_ours"] for row in timed if "over_ours" in row.get(peer.name, {})]
        said.append(f"{peer.name} {np.median(ratios):.2f}x" if ratios else f"{peer.name} no time")
    return "time over ours: " + ", ".join(said)

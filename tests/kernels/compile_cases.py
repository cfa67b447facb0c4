"""Which variants of the kernels are compiled for absent devices, and what each may take."""

from __future__ import annotations

import itertools
from dataclasses import replace

from batchtwin.kernels.offline_compile import Variant

CAPPED = {"window": 4096, "softcap": 50.0}
"""Gemma 2's."""

SMALL = {
    "sm_90": [
        Variant("prefill"),
        Variant("decode"),
        Variant("prefill", head_dim=256, group=2, **CAPPED),
        Variant("decode", cache="fp8e4nv"),
        Variant("decode", "fp16", "fp16", head_dim=64, block_size=256),
        Variant("prefill", "fp32", "fp32"),
        Variant("merge"),
        Variant("write_kv", cache="fp8e4nv"),
        Variant("draw"),
    ],
    "sm_80": [Variant("prefill"), Variant("decode", head_dim=80, group=7), Variant("write_kv", num_kv_heads=3)],
    "gfx942": [Variant("prefill"), Variant("decode"), Variant("draw")],
}
ELEMENTS = [("fp16", "fp16"), ("bf16", "bf16"), ("bf16", "fp8e4nv"), ("fp32", "fp32")]


def full(architecture: str) -> list[Variant]:
    """Every element type, head size and page; windows with soft caps; groups up to multi-query attention."""
    elements = [pair for pair in ELEMENTS if architecture != "sm_80" or pair[1] != "fp8e4nv"]
    out = []
    for kernel in ("prefill", "decode"):
        for (query, cache), head_dim in itertools.product(elements, (64, 80, 96, 128, 256)):
            one = Variant(kernel, query, cache, head_dim)
            out += [replace(one, block_size=size) for size in ((16,) if query == "fp16" else (16, 32, 64, 256))]
            out.append(replace(one, **CAPPED))
        out += [Variant(kernel, head_dim=d, group=group) for d in (64, 128, 256) for group in (1, 2, 3, 7, 8, 16, 64)]
    for (query, cache), head_dim in itertools.product(elements, (64, 80, 128, 256)):
        out += [Variant("merge", query, cache, head_dim), Variant("write_kv", query, cache, head_dim)]
    out += [Variant("draw", query, query) for query in ("fp16", "bf16", "fp32")]
    return list(dict.fromkeys(out))


def max_registers(variant: Variant) -> int:
    """A thread's: the decode kernel, which lives by having many loads in flight, must leave room on a multiprocessor
    (65,536 registers) for three blocks of 128 threads, or over fp8 for two of 256; the small ones for eight of 128.
    """
    if variant.kernel == "prefill" or variant.group > 32:
        return 255
    if variant.kernel == "decode":
        return 168 if variant.cache == variant.query else 128
    return 64

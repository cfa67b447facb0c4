"""The Triton kernels compiled for devices that are absent: what each takes, read from the binary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from batchtwin.kernels.errors import KernelError
from batchtwin.kernels.metadata import pack
from batchtwin.kernels.offline_compile import ARCHITECTURES, Variant
from batchtwin.kernels.triton_attention import AttentionOptions, paged_attention

from .cases import paged_case
from .compile_cases import SMALL, full, max_registers
from .workers import output_of

SCRATCH_BYTES = {"sm_80": 0, "sm_90": 0, "gfx942": 8}
"""Spilled a thread: none, but for prefill over fp8 under a window and a cap on gfx942, at head sizes 80 to 128."""


def _check(architecture: str, variants: list[Variant], usages: dict[str, Any]) -> None:
    """All that exceed a budget at once: the whole grid takes minutes."""
    assert set(usages) == {variant.name for variant in variants}
    faults = {variant.name: _faults(architecture, variant, usages[variant.name]) for variant in variants}
    assert {name: (found, usages[name]) for name, found in faults.items() if found} == {}


def _faults(architecture: str, variant: Variant, usage: dict[str, Any]) -> list[str]:
    if "error" in usage:
        return ["does not compile"]
    products = variant.kernel in ("prefill", "decode") and variant.query != "fp32"
    within = {
        "shared memory": usage["shared_bytes"] <= ARCHITECTURES[architecture].shared_bytes,
        "spills": usage["spilled_bytes"] <= SCRATCH_BYTES[architecture],
        "registers": architecture == "gfx942" or usage["registers"] <= max_registers(variant),
        "products": not products or usage["matrix_instructions"] == [_expected_instruction(architecture, variant)],
    }
    return [budget for budget, kept in within.items() if not kept]


def _expected_instruction(architecture: str, variant: Variant) -> str:
    """Products run on tensor cores; Hopper's asynchronous ones take 64 rows, which a decode of few heads has not."""
    if architecture == "gfx942":
        return "v_mfma"
    asynchronous = architecture == "sm_90" and (variant.kernel == "prefill" or variant.group > 32)
    return "wgmma.mma_async" if asynchronous else "mma.sync"


@pytest.mark.parametrize("architecture", SMALL)
def test_compiled_kernels_fit_the_device_and_spill_nothing(architecture: str, tmp_path: Path) -> None:
    usages = output_of("compile_worker.py", architecture, "small", TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    _check(architecture, SMALL[architecture], usages)


@pytest.mark.full
@pytest.mark.parametrize("architecture", SMALL)
def test_every_variant_fits_the_device_and_spills_nothing(architecture: str, tmp_path: Path) -> None:
    usages = output_of("compile_worker.py", architecture, "full", TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    _check(architecture, full(architecture), usages)


def test_a_variant_that_triton_cannot_compile_is_one_sentence(tmp_path: Path) -> None:
    usages = output_of("compile_worker.py", "sm_80", "impossible", TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    (usage,) = usages.values()
    assert usage["error"].startswith("Triton ")
    assert "cannot compile decode_bf16_fp8e4nv_d128_g4_p16_h8 for sm_80" in usage["error"]
    assert "fp8e4nv not supported in this architecture" in usage["error"]
    assert "\n" not in usage["error"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here the launch would work")
def test_a_launch_without_a_device_is_one_sentence() -> None:
    case = paged_case([(5, 1), (0, 3)])
    metadata = pack(
        case.query_start_loc.numpy(), case.seq_lens.numpy(), case.block_tables.numpy(), case.slot_mapping.numpy(),
        num_decodes=1, num_kv_heads=2, num_processors=1,
    ).to("cpu")  # fmt: skip
    with pytest.raises(KernelError) as caught:
        paged_attention(
            case.query, case.key_cache, case.value_cache, metadata, AttentionOptions(1.0), torch.empty_like(case.query)
        )
    message = str(caught.value)
    assert message.startswith("Triton ")
    assert "decode_attention for head size 16, 2 query heads a KV head, float32" in message
    assert "choose the device cpu" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key_cache": torch.zeros(4, 16, 2, 8)}, "KV heads of size 8 is not supported"),
        ({"key_cache": torch.zeros(4, 16, 3, 16)}, "over 3 KV heads"),
        ({"key_cache": torch.zeros(4, 16, 2, 16, dtype=torch.float16)}, "over a cache of torch.float16"),
        ({"key_cache": torch.zeros(4, 16, 2, 32)[..., ::2]}, "same strides"),
    ],
)
def test_inputs_that_the_kernels_do_not_take_are_named(change: dict[str, torch.Tensor], words: str) -> None:
    case = paged_case([(5, 1)])._replace(**change)
    metadata = pack(
        case.query_start_loc.numpy(), case.seq_lens.numpy(), case.block_tables.numpy(), case.slot_mapping.numpy(),
        num_decodes=1, num_kv_heads=2, num_processors=1,
    ).to("cpu")  # fmt: skip
    with pytest.raises(KernelError, match=words):
        paged_attention(case.query, case.key_cache, case.value_cache, metadata, AttentionOptions(1.0), case.query)

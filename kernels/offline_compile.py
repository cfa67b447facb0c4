"""Compiles the kernels for a GPU that need not be there, and reads from the binary what each takes.

Triton finds no spills and enforces no limit on shared memory while it compiles; both show in the finished binary only.
Nothing here may run in a process that interprets kernels (``TRITON_INTERPRET=1``).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import triton_kernels, triton_sampling, triton_write_kv
from .errors import KernelError, cause
from .launch import MAX_SPLITS, launch_config, merge_tile, padded

QUERY_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
KERNELS = ("prefill", "decode", "merge", "write_kv", "draw")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A GPU architecture and what one block (workgroup) may take of it."""

    name: str
    target: GPUTarget
    shared_bytes: int
    max_registers: int
    """A thread's (NVIDIA) or a lane's vector registers (AMD)."""


ARCHITECTURES = {
    # CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability".
    "sm_80": Architecture("sm_80", GPUTarget("cuda", 80, 32), 163 * 1024, 255),
    "sm_90": Architecture("sm_90", GPUTarget("cuda", 90, 32), 227 * 1024, 255),
    # AMD Instinct MI300 CDNA 3 instruction set: 64 KiB of LDS, 512 vector registers (256 of them accumulation).
    "gfx942": Architecture("gfx942", GPUTarget("hip", "gfx942", 64), 64 * 1024, 512),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as it is compiled for one model's shape."""

    kernel: str
    """Of ``KERNELS``."""
    query: str = "bf16"
    """Element type of queries and outputs: of ``QUERY_BYTES``."""
    cache: str = "bf16"
    """Of the KV cache: the queries', or fp8e4nv (float8_e4m3fn)."""
    head_dim: int = 128
    group: int = 4
    """Query heads a KV head."""
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    num_kv_heads: int = 8

    @property
    def name(self) -> str:
        """Readable and unique."""
        extra = f"_w{self.window}" * bool(self.window) + f"_cap{self.softcap:g}" * bool(self.softcap)
        return (
            f"{self.kernel}_{self.query}_{self.cache}_d{self.head_dim}_g{self.group}_p{self.block_size}"
            f"_h{self.num_kv_heads}{extra}"
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a compiled kernel takes."""

    registers: int
    """A thread."""
    spilled_bytes: int
    """Local memory and stack a thread (on AMD 4 bytes a spilled register)."""
    shared_bytes: int
    """A block."""
    num_warps: int
    matrix_instructions: tuple[str, ...]
    """Tensor-core instructions that it uses, without their shapes; empty where every product is a scalar one."""


def compile_variant(variant: Variant, architecture: Architecture) -> Usage:
    """Build ``variant`` for ``architecture``. Raises ``KernelError`` with one sentence where Triton cannot."""
    source, options = _source(variant, architecture.name)
    try:
        compiled = triton.compile(source, target=architecture.target, options=options)
    except Exception as error:  # whatever Triton, LLVM or ptxas raises
        raise KernelError(
            f"Triton {triton.__version__} cannot compile {variant.name} for {architecture.name}: {cause(error)}. "
            f"Take another variant or another triton."
        ) from error
    read = _read_amd if architecture.target.backend == "hip" else _read_nvidia
    registers, spilled = read(compiled.asm)
    text = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
    found = re.findall(r"\b(wgmma\.mma_async|mma\.sync|v_mfma)", text)
    return Usage(registers, spilled, compiled.metadata.shared, int(options["num_warps"]), tuple(sorted(set(found))))


def _source(variant: Variant, architecture: str) -> tuple[Any, dict[str, int]]:
    kernel, pointers, constants, options = _described(variant, architecture)
    names = kernel.arg_names
    kinds = pointers | dict.fromkeys(constants, "constexpr") | dict.fromkeys(_FLOATS, "fp32")
    source = ASTSource(
        fn=kernel,
        signature={name: kinds.get(name, "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if (name in pointers and name not in _UNALIGNED) or (name.startswith("stride") and name != "stride_table")
        },
    )
    return source, options


_FLOATS = ("scale", "value_scale", "inverse_key_scale", "inverse_value_scale")
_UNALIGNED = ("query_start_loc", "seq_lens", "block_tables", "split_start_loc", "slot_mapping")


def _described(variant: Variant, architecture: str) -> tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]:
    """The kernel, the types of its pointers, its constants, and its options."""
    v = variant
    if v.kernel in ("prefill", "decode"):
        return _attention(v, architecture)
    indices = dict.fromkeys(("split_start_loc", "slot_mapping"), "*i32")
    if v.kernel == "merge":
        constants: dict[str, Any] = {"head_dim": v.head_dim, "padded_head_dim": padded(v.head_dim)}
        constants |= {"max_splits": MAX_SPLITS, "tile": merge_tile(v.head_dim)}
        pointers = {"parts": "*fp32", "log_sums": "*fp32", "out": f"*{v.query}"} | indices
        return triton_kernels.merge_kernel, pointers, constants, {"num_warps": 4}
    if v.kernel == "draw":
        pointers = {"logits": f"*{v.query}", "keys": "*i64", "temperatures": "*fp32", "tokens": "*i64"}
        constants = {"tile": triton_sampling.TILE}
        return triton_sampling.draw_kernel, pointers, constants, {"num_warps": triton_sampling.NUM_WARPS}
    if v.kernel != "write_kv":
        raise KernelError(f"There is no kernel {v.kernel!r}: choose one of {', '.join(KERNELS)}.")
    constants = {"num_kv_heads": v.num_kv_heads, "head_dim": v.head_dim, "block_size": v.block_size}
    constants |= {"padded_row": padded(v.num_kv_heads * v.head_dim), "quantised": v.cache != v.query}
    pointers = dict.fromkeys(("key", "value"), f"*{v.query}") | indices
    pointers |= dict.fromkeys(("key_cache", "value_cache"), f"*{v.cache}")
    return triton_write_kv.write_kv_kernel, pointers, constants, {"num_warps": 4}


def _attention(v: Variant, architecture: str) -> tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]:
    launch = launch_config(
        v.head_dim,
        v.group,
        QUERY_BYTES[v.query],
        QUERY_BYTES.get(v.cache, 1),
        decode=v.kernel == "decode",
        architecture=architecture,
    )
    constants = {"group": v.group, "head_dim": v.head_dim, "padded_head_dim": padded(v.head_dim)}
    constants |= {"block_size": v.block_size, "block_m": launch.block_m, "tile": launch.tile}
    constants |= {"num_stages": launch.num_stages}
    pointers = dict.fromkeys(("query", "out"), f"*{v.query}") | dict.fromkeys(("parts", "log_sums"), "*fp32")
    pointers |= dict.fromkeys(("key_cache", "value_cache"), f"*{v.cache}") | dict.fromkeys(_UNALIGNED, "*i32")
    kernel = triton_kernels.decode_kernel if v.kernel == "decode" else triton_kernels.prefill_kernel
    return kernel, pointers, constants | {"window": v.window, "softcap": v.softcap}, launch.options


def _read_nvidia(asm: dict[str, Any]) -> tuple[int, int]:
    """Registers and spilled bytes a thread, by ``cuobjdump --dump-resource-usage`` of the triton package."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return found["REG"], found["STACK"] + found["LOCAL"]


def _read_amd(asm: dict[str, Any]) -> tuple[int, int]:
    """Vector registers a lane, accumulation registers included, and bytes of scratch memory a lane, by the metadata
    at the end of the assembly. Spilled scalar registers go to lanes of vector registers, not to memory.
    """
    found = {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)", asm["amdgcn"])}
    return found["vgpr_count"], found["private_segment_fixed_size"]

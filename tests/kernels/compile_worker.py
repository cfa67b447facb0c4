"""Compiles the Triton kernels for devices that are absent and prints what each takes, as one JSON object.

Nothing in Triton checks the shared-memory limit at compile time, and spills only show in the finished binary.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from batchtwin.kernels import triton_attention, triton_kernels, triton_write_kv

SHAPES = [("fp16", 64, 2), ("bf16", 128, 4), ("fp16", 256, 8), ("fp32", 64, 1), ("fp32", 128, 4)]
"""Element type, head size, query heads a KV head."""
NUM_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}


def signature(kernel: Any, pointers: dict[str, str], constants: dict[str, int]) -> dict[str, str]:
    """Everything that is neither a pointer nor a constant is an integer, the scale a float."""
    kinds = pointers | dict.fromkeys(constants, "constexpr") | {"scale": "fp32"}
    return {name: kinds.get(name, "i32") for name in kernel.arg_names}


def build(kernel: Any, pointers: dict[str, str], constants: dict[str, int], warps: int, stages: int, arch: int) -> Any:
    source = ASTSource(
        fn=kernel,
        signature=signature(kernel, pointers, constants),
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(kernel.arg_names)
            if name in pointers or name.startswith("stride")
        },
    )
    return triton.compile(
        source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps, "num_stages": stages}
    )


def usage(compiled: CompiledKernel) -> dict[str, int]:
    """Registers, shared memory and spilled bytes (local memory and stack) a thread, from the cubin."""
    dump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [str(dump), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return {
        "registers": found["REG"],
        "spilled_bytes": found["STACK"] + found["LOCAL"],
        "shared_bytes": compiled.metadata.shared,
    }


def attention_builds(element: str, head_dim: int, group: int, arch: int) -> dict[str, Any]:
    cache = f"*{element}"
    common = {"query": cache, "key_cache": cache, "value_cache": cache, "seq_lens": "*i32", "block_tables": "*i32"}
    shape = {"group": group, "head_dim": head_dim, "padded_head_dim": head_dim, "block_size": 16, "window": 0}
    out = {}
    for name in ("prefill", "decode"):
        launch = triton_attention.launch_config(head_dim, group, NUM_BYTES[element], decode=name == "decode")
        constants = shape | {"block_m": launch.block_m, "tile": launch.tile}
        if name == "decode":
            pointers, constants = common | {"out": "*fp32", "log_sum": "*fp32"}, constants | {"num_splits": 4}
        else:
            pointers = common | {"out": cache, "query_start_loc": "*i32"}
        kernel = getattr(triton_kernels, f"{name}_kernel")
        out[name] = build(kernel, pointers, constants, launch.num_warps, launch.num_stages, arch)
    return out


def other_builds(arch: int) -> dict[str, Any]:
    merge = {"head_dim": 128, "padded_head_dim": 128, "num_splits": 24, "padded_splits": 32}
    write = {"row_size": 1024, "padded_row_size": 1024}
    merged = {"partial": "*fp32", "log_sum": "*fp32", "out": "*fp16"}
    written = dict.fromkeys(("key", "value", "key_cache", "value_cache"), "*fp16") | {"slot_mapping": "*i64"}
    return {
        "merge": build(triton_kernels.merge_kernel, merged, merge, 4, 3, arch),
        "write_kv": build(triton_write_kv.write_kv_kernel, written, write, 4, 3, arch),
    }


def main(arch: int) -> None:
    results = {name: usage(compiled) for name, compiled in other_builds(arch).items()}
    for element, head_dim, group in SHAPES:
        for name, compiled in attention_builds(element, head_dim, group, arch).items():
            results[f"{name}_{element}_{head_dim}_{group}"] = usage(compiled)
    print(json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]))

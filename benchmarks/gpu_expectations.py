"""What the attention kernels may take on an H100 and an H200, written down before any run on one.

``python benchmarks/gpu_expectations.py`` writes ``benchmarks/gpu_expectations.md`` anew from the static roofline of
``kernels/roofline.py``; ``--check`` only says whether the file is up to date. No GPU is used, and no time here was
measured by us.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from batchtwin.kernels.launch import launch_config, num_kv_splits
from batchtwin.kernels.roofline import GPUS, AttentionShape, Row, Work, decode_work, prefill_work, write_kv_work

PATH = Path(__file__).with_suffix(".md")
MARK = "<!-- the kernels: written by benchmarks/gpu_expectations.py, do not edit between the marks -->"
END = "<!-- end of the kernels -->"

LLAMA = AttentionShape(32, 8, 128)
SHAPES = {
    "Llama-3.1-8B (32/8 heads of 128)": LLAMA,
    "the same, fp8 cache": replace(LLAMA, cache_bytes=1),
    "Llama-3.1-70B on one of 8 GPUs (8/1 of 128)": AttentionShape(8, 1, 128),
    "Gemma-2-9B, full layer (16/8 of 256)": AttentionShape(16, 8, 256),
    "Gemma-2-9B, window of 4096": AttentionShape(16, 8, 256, window=4096),
    "SmolLM2-135M (9/3 of 64)": AttentionShape(9, 3, 64),
}
DECODES = [(1, 1024), (1, 8192), (1, 32_768), (1, 131_072), (8, 1024), (8, 8192), (32, 2048), (32, 8192), (128, 1024)]
DECODES += [(128, 4096), (256, 512), (256, 2048)]
"""(sequences, tokens of context each)."""
PREFILLS: dict[str, list[Row]] = {
    "1 prompt of 512": [(0, 512)],
    "1 prompt of 2048": [(0, 2048)],
    "1 prompt of 8192": [(0, 8192)],
    "1 prompt of 32768": [(0, 32_768)],
    "chunk of 512 over 7680": [(7680, 512)],
    "chunk of 2048 over 30720": [(30_720, 2048)],
    "16 prompts of 512": [(0, 512)] * 16,
}
WRITES = (1, 256, 2048, 8192)

PROSE = """\
## Attention and the KV write, one layer

Counted, not measured: `kernels/roofline.py` counts what a launch must move and compute, and the floor is the largest of
bytes / memory bandwidth, FLOPs / tensor-core rate and exponentials / special-function rate, with these peaks:

{gpus}

Not in it: launching (a few µs on the device; FlashAttention-3's shortest decode on an H200 takes 11.4 µs) and the page
tables. A context that fits the L2 cache (50 MB) may be read faster than the floor says.

How to judge a measured time: decode is good at 85 % of the memory peak, that is at most 1 / 0.85 of its floor, and at
the limit at 90 %, from 8 k tokens of context in total; a prefill should reach 0.80 of FlashAttention-3. **A time under
the floor (beyond the L2 cache) is a measuring error.** Peaks are nominal: a GPU that is capped in power has lower ones.

The µs are floors. *tile FLOPs* is what the kernel really computes, with masked and padded rows, over the FLOPs needed;
*through L2* is the KV that its programs load, where every block of query rows reads its own context again. *programs*
are those launched for 132 multiprocessors; more than sequences × KV heads means that sequences are cut, and *parts* is
what their float32 results add to the traffic (mostly within L2, so not in the floor).
"""


def section() -> str:
    """The kernels' part of the file."""
    gpus = "\n".join(
        f"* {g.name}: {g.memory_bytes_per_s / 1e12:.2f} TB/s, {g.flops_per_s / 1e12:.1f} TFLOPS, "
        f"{g.exps_per_s / 1e12:.1f} T exponentials/s"
        for g in GPUS.values()
    )
    lines = [MARK, "", PROSE.format(gpus=gpus)]
    for name, shape in SHAPES.items():
        lines += [f"### {name}", "", *_decode_table(shape), "", *_prefill_table(shape), "", *_write_table(shape), ""]
    return "\n".join([*lines, END, ""])


def _decode_table(shape: AttentionShape) -> Iterator[str]:
    yield "| decode, sequences × context | MB | parts, MB | MFLOP | programs | H100, µs | 85 % | H200, µs | 85 % |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for num_seqs, context in DECODES:
        lens = [context] * num_seqs
        works = {name: decode_work(lens, shape, gpu) for name, gpu in GPUS.items()}
        floors = {name: 1e6 * work.floor_s(GPUS[name]) for name, work in works.items()}
        times = " | ".join(f"{floor:.1f} | {floor / 0.85:.1f}" for floor in floors.values())
        work = works["H100"]
        moved = f"{work.bytes / 1e6:.2f} | {work.part_bytes / 1e6:.2f} | {work.flops / 1e6:.0f}"
        yield f"| {num_seqs} × {context} | {moved} | {_programs(lens, shape)} | {times} |"


def _programs(lens: list[int], shape: AttentionShape) -> int:
    seen = np.minimum(lens, shape.window) if shape.window else np.asarray(lens)
    return int(num_kv_splits(seen, shape.num_kv_heads, GPUS["H100"].num_processors).sum()) * shape.num_kv_heads


def _prefill_table(shape: AttentionShape) -> Iterator[str]:
    yield "| prefill | MB | GFLOP | tile FLOPs | through L2, MB | programs | H100, µs | H200, µs | bound by |"
    yield "|---|---|---|---|---|---|---|---|---|"
    launch = launch_config(shape.head_dim, shape.group, shape.query_bytes, shape.cache_bytes, decode=False)
    block_q = launch.block_m // shape.group
    for name, rows in PREFILLS.items():
        work = prefill_work(rows, shape)
        programs = (sum(new for _, new in rows) // block_q + len(rows)) * shape.num_kv_heads
        bounds = " / ".join(dict.fromkeys(work.bound(gpu) for gpu in GPUS.values()))
        yield (
            f"| {name} | {work.bytes / 1e6:.1f} | {work.flops / 1e9:.2f} | {work.tile_flops / work.flops:.2f} | "
            f"{work.tile_bytes / 1e6:.0f} | {programs} | {_floors(work)} | {bounds} |"
        )


def _write_table(shape: AttentionShape) -> Iterator[str]:
    yield "| KV write, tokens | MB | H100, µs | H200, µs |"
    yield "|---|---|---|---|"
    for num_tokens in WRITES:
        work = write_kv_work(num_tokens, shape)
        yield f"| {num_tokens} | {work.bytes / 1e6:.3f} | {_floors(work)} |"


def _floors(work: Work) -> str:
    return " | ".join(f"{1e6 * work.floor_s(gpu):.2f}" for gpu in GPUS.values())


def updated(text: str) -> str:
    """``text`` with the kernels' part written anew, everything outside the marks as it was."""
    if MARK not in text:
        return (text.rstrip() + "\n\n" if text.strip() else "# What a GPU run should show\n\n") + section()
    before, rest = text.split(MARK, 1)
    _, after = rest.split(END, 1)
    return before + section().rstrip("\n") + after


def main() -> None:
    """Write the file, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file is out of date")
    check = parser.parse_args().check
    old = PATH.read_text() if PATH.exists() else ""
    new = updated(old)
    if check:
        sys.exit(0 if new == old else f"{PATH.name} is out of date: run python benchmarks/gpu_expectations.py.")
    PATH.write_text(new)
    print(f"{PATH}: {new.count(chr(10))} lines")


if __name__ == "__main__":
    main()

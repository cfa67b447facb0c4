"""What the kernels and the engine may take on an H100 and an H200, written down before any run on one.

    python benchmarks/gpu_expectations.py                          writes benchmarks/gpu_expectations.md anew
    python benchmarks/gpu_expectations.py --check                  only says whether it is up to date
    python benchmarks/gpu_expectations.py --against gpu_check.json the engine's measured steps beside these floors

Kernels are counted by ``kernels/roofline.py``, the engine's steps by the facts and the roofline of ``sim/facts``. No
GPU is used, and no time here was measured by us. What imports pydantic, which a GPU machine may lack, is imported in
functions, so that ``gpu_engine.py`` can take its shapes from here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from batchtwin.kernels.launch import launch_config, num_kv_splits
from batchtwin.kernels.roofline import GPUS, AttentionShape, Row, Work, decode_work, prefill_work, write_kv_work
from batchtwin.sim.cost.features import Features

if TYPE_CHECKING:
    from batchtwin.sim.cost.models import Roofline
    from batchtwin.sim.facts.model import ModelConfig

PATH = Path(__file__).with_suffix(".md")
MARK = "<!-- written by benchmarks/gpu_expectations.py, do not edit between the marks -->"
END = "<!-- end of what is written -->"

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
ENGINE_MODEL = "meta-llama/Llama-3.1-8B"
"""Whose shape the GPU run's random model has."""
ENGINE_DECODES = ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (32, 3000))
"""(sequences, tokens of context before the step each)."""
ENGINE_PREFILLS = (512, 2048, 4096)
"""Tokens of one chunk without context, of which the last samples."""

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
    """What the program writes of the file."""
    gpus = "\n".join(
        f"* {g.name}: {g.memory_bytes_per_s / 1e12:.2f} TB/s, {g.flops_per_s / 1e12:.1f} TFLOPS, "
        f"{g.exps_per_s / 1e12:.1f} T exponentials/s"
        for g in GPUS.values()
    )
    lines = [MARK, "", PROSE.format(gpus=gpus)]
    for name, shape in SHAPES.items():
        lines += [f"### {name}", "", *_decode_table(shape), "", *_prefill_table(shape), "", *_write_table(shape), ""]
    return "\n".join([*lines, *_engine_part(), "", END, ""])


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


ENGINE_PROSE = """\
## A step of the engine

`gpu_check.py` runs a random model of Llama-3.1-8B's shape in bfloat16: {parameters:,} parameters, {weights:.2f} GB,
of which a step reads {read:.2f} GB (of the embedding only the rows that it looks up), and {kv:,} bytes of keys and
values a token. By `sim/facts/roofline.py`, with the model's `config.json` and the data sheets' peaks above:

* bytes = the weights read once + keys and values of every context token;
* FLOPs = 2 per weight and token (LM head: per sampled row) + 4 · layers · query heads · head size per pair of a query
  and a context token;
* floor = the larger of bytes / memory bandwidth and FLOPs / dense bfloat16 rate.

Activations, launches and the host are not in it, so no step is faster. The aim is a decode step of up to 32 sequences
within 1.15 times its floor; `gpu_check.py` writes each step's share of its floor into its results.
"""


def _engine_part() -> Iterator[str]:
    model = _engine_model()
    one = engine_floor("H100")
    yield ENGINE_PROSE.format(
        parameters=model.num_parameters,
        weights=model.num_parameters * model.dtype_bytes / 1e9,
        read=one.weight_bytes / 1e9,
        kv=int(one.kv_bytes_per_token),
    )
    devices = " | ".join(f"{name}, ms | tokens/s" for name in GPUS)
    yield f"| decode, sequences × context | GB | GFLOP | {devices} | bound by |"
    yield "|---" * (4 + 2 * len(GPUS)) + "|"
    for num_seqs, context in ENGINE_DECODES:
        yield _engine_row(f"{num_seqs} × {context}", decode_features(num_seqs, context), num_seqs)
    yield ""
    yield f"| prefill, tokens | GB | GFLOP | {devices} | bound by |"
    yield "|---" * (4 + 2 * len(GPUS)) + "|"
    for tokens in ENGINE_PREFILLS:
        yield _engine_row(str(tokens), prefill_features(tokens), tokens)


def _engine_row(name: str, features: Features, num_tokens: int) -> str:
    floors = {gpu: engine_floor(gpu) for gpu in GPUS}
    moved, flops = step_work(floors["H100"], features)
    seconds = {gpu: floor.duration_s(features) for gpu, floor in floors.items()}
    times = " | ".join(f"{1e3 * s:.3f} | {num_tokens / s:,.0f}" for s in seconds.values())
    bound = dict.fromkeys(
        "memory" if moved / f.memory_bytes_per_s > flops / f.flops_per_s else "products" for f in floors.values()
    )
    return f"| {name} | {moved / 1e9:.2f} | {flops / 1e9:,.0f} | {times} | {' / '.join(bound)} |"


def _engine_model() -> ModelConfig:
    from batchtwin.sim.facts.library import load_model_config

    return load_model_config(ENGINE_MODEL)


def engine_floor(gpu: str) -> Roofline:
    """The data sheet's roofline of the engine's model on a device of ``devices.json``, with the weights that a step
    reads: of an embedding that is not the LM head too, a row is looked up. Raises ``FactsError`` for an unknown device.
    """
    from batchtwin.sim.facts.device import find_device
    from batchtwin.sim.facts.roofline import roofline

    model = _engine_model()
    looked_up = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
    read_bytes = float((model.num_parameters - looked_up) * model.dtype_bytes)
    return replace(roofline(model, find_device(gpu)), weight_bytes=read_bytes)


def step_work(floor: Roofline, features: Features) -> tuple[float, float]:
    """Bytes and FLOPs of a step: what ``floor`` divides by its two rates."""
    bytes_alone = replace(floor, memory_bytes_per_s=1.0, flops_per_s=float("inf"))
    flops_alone = replace(floor, memory_bytes_per_s=float("inf"), flops_per_s=1.0)
    return bytes_alone.duration_s(features), flops_alone.duration_s(features)


def decode_features(num_seqs: int, context: int) -> Features:
    """``num_seqs`` decodes over ``context`` tokens each."""
    return Features(num_seqs, num_seqs, num_seqs * context, 0, 0, 0.0, num_seqs, 0, num_seqs)


def prefill_features(tokens: int) -> Features:
    """One prompt of ``tokens``, all at once, the last sampled."""
    return Features(tokens, 0, 0, 1, tokens, tokens * tokens / 2, 1, 0, 1)


def judged(steps: list[dict[str, Any]], gpu: str) -> list[dict[str, Any]]:
    """Measured steps of ``gpu_check.py``'s engine section with the data sheet's floor and how much of the time it is.
    Raises ``FactsError`` for a GPU without a data sheet in the table.
    """
    floor = engine_floor(gpu)
    found = []
    for step in steps:
        decode = step["kind"] == "decode"
        features = decode_features(step["num_seqs"], step["context"]) if decode else prefill_features(step["tokens"])
        floor_ms = 1e3 * floor.duration_s(features)
        found.append(step | {"sheet_floor_ms": floor_ms, "percent_of_sheet_floor": 100 * floor_ms / step["p50_ms"]})
    return found


def against(path: Path) -> None:
    """Print the measured steps of a results file beside their floors."""
    from batchtwin.sim.facts.errors import FactsError

    try:
        sections = json.loads(path.read_text())["sections"]
        gpu, steps = sections["setup"]["gpu"], sections["engine"]["steps"]
        rows = judged(steps, gpu)
    except OSError as error:
        sys.exit(f"{path} cannot be read ({error.strerror}): give a results file of gpu_check.py.")
    except (ValueError, KeyError, TypeError):
        sys.exit(f"{path} holds no engine steps measured on a GPU: give a results file of gpu_check.py.")
    except FactsError as error:
        sys.exit(str(error))
    print(f"{gpu}, {ENGINE_MODEL}'s shape")
    for row in rows:
        name = f"{row['num_seqs']} × {row['context']}" if row["kind"] == "decode" else str(row["tokens"])
        print(
            f"{row['kind']:8} {name:>10}: {row['p50_ms']:8.3f} ms, floor {row['sheet_floor_ms']:7.3f} "
            f"({row['percent_of_sheet_floor']:.0f} %)"
        )
    print(json.dumps(rows))


def updated(text: str) -> str:
    """``text`` with the part between the marks written anew, everything outside the marks as it was."""
    if MARK not in text:
        return (text.rstrip() + "\n\n" if text.strip() else "# What a GPU run should show\n\n") + section()
    before, rest = text.split(MARK, 1)
    _, after = rest.split(END, 1)
    return before + section().rstrip("\n") + after


def main() -> None:
    """Write the file, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file is out of date")
    parser.add_argument("--against", type=Path, help="print the steps of this results file beside their floors")
    args = parser.parse_args()
    if args.against is not None:
        against(args.against)
        return
    old = PATH.read_text() if PATH.exists() else ""
    new = updated(old)
    if args.check:
        sys.exit(0 if new == old else f"{PATH.name} is out of date: run python benchmarks/gpu_expectations.py.")
    PATH.write_text(new)
    print(f"{PATH}: {new.count(chr(10))} lines")


if __name__ == "__main__":
    main()

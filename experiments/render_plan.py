"""A plan as text for a terminal, and as JSON."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from ..sim.facts.memory import GIB
from .plan import MAP_SEQS, MAP_TOKENS, Pair, Plan


def print_plan(found: Plan) -> None:
    """Where the memory goes, what the pool holds, and what to change; every figure is arithmetic, none measured."""
    console, ask = Console(), found.ask
    k, model = ask.knobs, ask.model
    method = f", {model.quantization.method}" if model.quantization else ""
    console.print(
        f"[bold]{model.name}[/] ({model.num_parameters / 1e9:.2f} B, {model.dtype}{method}) on "
        f"{k.tensor_parallel_size} × {ask.device.name}: max_num_seqs {k.max_num_seqs:,}, max_num_batched_tokens "
        f"{k.max_num_batched_tokens:,}, max_model_len {ask.max_model_len:,}"
    )
    console.print(_memory_table(found))
    console.print(_pool_sentence(found))
    if found.practical_concurrency is not None:
        console.print(_practical_sentence(found))
    if ask.num_gpu_blocks is None:
        console.print(_map_table(found))
    for entry, cell in found.defaults.items():
        console.print(
            f"[dim]vLLM's default here ({_ENTRY[entry]}): max_num_seqs {cell.max_num_seqs:,}, max_num_batched_tokens "
            f"{cell.max_num_batched_tokens:,}[/]"
        )
    for note in found.notes:
        console.print(f"[dim]{note}[/]")
    if found.feasible:
        console.print("[green]It fits.[/]")
    for problem in found.problems:
        console.print(f"[red]It does not work.[/] {problem}")


_ENTRY = {"server": "API server", "llm_class": "LLM class"}


def _memory_table(found: Plan) -> Table:
    m, k = found.memory, found.ask.knobs
    per_token = m.activation_bytes / k.max_num_batched_tokens
    counts = (
        ("counts", "less than the other")
        if m.activation_bytes >= m.sampler_bytes
        else ("less than the other", "counts")
    )
    rows = (
        (
            "Usable",
            m.usable_bytes,
            f"{m.total_bytes / GIB:.2f} GiB × gpu_memory_utilization {k.gpu_memory_utilization:g}",
        ),
        ("Weights", m.weight_bytes, f"share of {k.tensor_parallel_size}" if k.tensor_parallel_size > 1 else ""),
        (
            "Activations",
            m.activation_bytes,
            f"{k.max_num_batched_tokens:,} tokens × {per_token:,.0f} bytes; {counts[0]}",
        ),
        (
            "Sampler",
            m.sampler_bytes,
            f"{k.max_num_seqs:,} sequences × {found.ask.model.vocab_size:,} logits; {counts[1]}",
        ),
        ("CUDA graphs", m.cuda_graph_bytes, _graphs(found)),
        ("Context, NCCL", m.non_torch_bytes, "estimate"),
        ("Left for KV", max(m.kv_bytes, 0), f"blocks of {m.block_bytes:,} bytes, {k.block_size} tokens"),
    )
    table = Table(title="Memory of one GPU", title_justify="left", title_style="bold", header_style="dim", box=None)
    for head, justify in (("", "left"), ("GiB", "right"), ("", "left")):
        table.add_column(head, justify=justify)  # type: ignore[arg-type]
    for label, size, remark in rows:
        table.add_row(label, f"{size / GIB:,.2f}", remark)
    return table


def _graphs(found: Plan) -> str:
    if found.memory.cuda_graph_bytes:
        return "estimate"
    return "none: enforce_eager" if found.ask.knobs.enforce_eager else "not charged by this version"


def _pool_sentence(found: Plan) -> str:
    given = "given" if found.ask.num_gpu_blocks is not None else "derived"
    return (
        f"num_gpu_blocks {found.num_gpu_blocks:,} ({given}), {found.num_kv_tokens:,} tokens. Maximum concurrency for "
        f"{found.ask.max_model_len:,} tokens per request: {found.max_concurrency:.2f}x"
    )


def _practical_sentence(found: Plan) -> str:
    count, seqs = found.practical_concurrency, found.ask.knobs.max_num_seqs
    assert count is not None
    binds = "max_num_seqs binds" if count == seqs else "KV blocks bind"
    return (
        f"Requests of {found.prompt_tokens:,} + {found.output_tokens:,} tokens: {count:,} resident at full length "
        f"({binds})."
    )


def _map_table(found: Plan) -> Table:
    blocks = found.blocks_by_cell()
    table = Table(
        title="KV blocks by both knobs (–: does not fit)",
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
    )
    table.add_column("max_num_seqs \\ max_num_batched_tokens", justify="right")
    for tokens in MAP_TOKENS:
        table.add_column(f"{tokens:,}", justify="right")
    for seqs in MAP_SEQS:
        row = [blocks[Pair(seqs, tokens)] for tokens in MAP_TOKENS]
        table.add_row(f"{seqs:,}", *(f"{count:,}" if count else "–" for count in row))
    return table


def print_plan_json(found: Plan) -> None:
    """One JSON document."""
    print(json.dumps(plan_json(found), indent=2))


def plan_json(found: Plan) -> dict[str, Any]:
    """The same figures under their names; bytes are of one GPU."""
    ask, m = found.ask, found.memory
    k = ask.knobs
    return {
        "model": ask.model.name,
        "gpu": ask.device.name,
        "num_parameters": ask.model.num_parameters,
        "max_num_seqs": k.max_num_seqs,
        "max_num_batched_tokens": k.max_num_batched_tokens,
        "max_model_len": ask.max_model_len,
        "tensor_parallel_size": k.tensor_parallel_size,
        "gpu_memory_utilization": k.gpu_memory_utilization,
        "kv_cache_dtype": k.kv_cache_dtype,
        "quantization": ask.model.quantization.method if ask.model.quantization else None,
        "block_size": k.block_size,
        "vllm_version": k.vllm_version,
        "total_bytes": m.total_bytes,
        "usable_bytes": m.usable_bytes,
        "weight_bytes": m.weight_bytes,
        "activation_bytes": m.activation_bytes,
        "activation_bytes_per_token": m.activation_bytes / k.max_num_batched_tokens,
        "sampler_bytes": m.sampler_bytes,
        "cuda_graph_bytes": m.cuda_graph_bytes,
        "non_torch_bytes": m.non_torch_bytes,
        "kv_bytes": m.kv_bytes,
        "kv_bytes_per_token": m.block_bytes // k.block_size,
        "num_gpu_blocks": found.num_gpu_blocks,
        "num_kv_tokens": found.num_kv_tokens,
        "max_concurrency": found.max_concurrency,
        "practical_concurrency": found.practical_concurrency,
        "feasible": found.feasible,
        "problems": list(found.problems),
        "notes": list(found.notes),
        "defaults": {entry: cell._asdict() for entry, cell in found.defaults.items()},
        "sources": {"gpu": ask.device.source, "memory": ask.device.memory_source},
    }

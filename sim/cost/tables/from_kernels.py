"""A profile from AIConfigurator's tables: kernels as measured, the small operators between them by data sheet."""

from __future__ import annotations

from pathlib import Path

from ...facts.device import DeviceSpec, find_device
from ...facts.errors import FactsError
from ...facts.model import ModelConfig
from .aiconfigurator import Gemm, Heads, find_table, read_attention, read_table
from .by_spec import SpecLaw
from .composed import Operators, TableProfile
from .csv_table import TableError
from .lines import Line, total
from .pieces import Wanted, all_reduces, digest_of, implied_device

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
NAMES = ("gemm", "context_attention", "generation_attention", "allreduce")


def linear_shapes(config: ModelConfig, tensor_parallel: int = 1) -> dict[str, tuple[float, float]]:
    """(n, k) of each linear layer of one rank, gate and up in one product."""
    tp, hidden = tensor_parallel, config.hidden_size
    heads, kv_heads = config.num_q_heads / tp, config.kv_heads_a_gpu(tp)
    width = config.intermediate_size / tp
    return {
        "qkv": ((heads + 2 * kv_heads) * config.head_dim, hidden),
        "attention output": (hidden, heads * config.head_dim),
        "gate and up": ((2 if config.gated_mlp else 1) * width, hidden),
        "down": (hidden, width),
    }


def from_kernels(folder: Path, wanted: Wanted) -> TableProfile:
    """Raises ``TableError`` with what is missing; the model must be given, since kernels have none."""
    from ...facts.library import load_model_config

    name = wanted.model or wanted.model_hint
    if name is None:
        raise TableError(f"{folder} holds kernels of no model in particular: give the model (--set model=…).")
    config = load_model_config(name)
    if config.num_experts:
        raise TableError(f"{config.name} has experts, whose tables of AIConfigurator are not read.")
    degree = wanted.tensor_parallel or 1
    config.check_tensor_parallel(degree)
    gemm_table = read_table(folder, "gemm", ("m", "n", "k", "latency"))
    gemm = Gemm(gemm_table)
    heads = Heads(config.num_q_heads // degree, config.kv_heads_a_gpu(degree), config.head_dim)
    attention = read_attention(folder, heads, config.num_layers)
    device, notes = _device(gemm_table.text("device")[0] if "device" in gemm_table else folder.name)
    law = None if device is None else SpecLaw(config, device, degree)
    shapes = linear_shapes(config, degree)
    notes += [
        f"{name} ({n:.0f} × {k:.0f}) lies beyond the products measured"
        for name, (n, k) in shapes.items()
        if not gemm.reaches(n, k)
    ]
    layer = Line(
        (m, sum(gemm(n, k, m) for n, k in shapes.values()) + (law.small_s(int(m)) if law else 0.0)) for m in gemm.tokens
    )
    dense = [(layer, float(config.num_layers)), *all_reduces(config, degree, (folder,), wanted, notes)]
    operators = Operators(total(dense), attention, _head(gemm, config, degree, law))
    files = [path for name in NAMES if (path := find_table(folder, name)) is not None]
    return TableProfile(
        source=str(folder),
        layout="AIConfigurator",
        tensor_parallel=degree,
        model=config.facts(),
        device=implied_device(folder.name if device is None else device.name, config, operators),
        block_size=16,
        operators=operators,
        digest=digest_of(files, config, wanted),
        notes=tuple(notes),
        provenance={"vllm_version": gemm_table.text("version")[0]} if "version" in gemm_table else {},
        enforce_eager=wanted.enforce_eager,
    )


def _device(name: str) -> tuple[DeviceSpec | None, list[str]]:
    apart = "prompts and decodes of one step add, and a chunk behind a context is the difference of two whole prompts"
    try:
        device = find_device(name)
    except FactsError:
        return None, [apart, f"no data sheet of {name}: norms, activation, rotation and sampler are left out"]
    return device, [
        apart,
        f"norms, activation, rotation and sampler by the data sheet of {device.name}: not in the tables",
    ]


def _head(gemm: Gemm, config: ModelConfig, degree: int, law: SpecLaw | None) -> Line:
    n, k = config.vocab_size / degree, config.hidden_size
    sampler = [law.sampler_s(rows) if law else 0.0 for rows in ROWS]
    return Line((rows, gemm(n, k, rows) + extra) for rows, extra in zip(ROWS, sampler, strict=True))

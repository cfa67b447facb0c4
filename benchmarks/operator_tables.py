"""Operator times of two independent tables laid side by side: Vidur or Frontier against AIConfigurator.

    python benchmarks/operator_tables.py --shared PATH [--svg docs/operator_tables.svg]

Linear layers of Llama-2-7B (A100, A800, H100) and Llama-3-8B (A100), and prompt attention at 32 query and 32 KV heads
(A800 against A100), wherever both have them. A factor is Vidur's time over AIConfigurator's for the same product at the
same number of tokens. AIConfigurator's products lie on a grid of n and k; a layer's shape is interpolated on it.
Then every composition: an iteration only where a folder has all it takes, what is missing where it has not.
The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT.parent))

from batchtwin.experiments.svg import MEASURED, PREDICTED, Axis, Curve, document, panel  # noqa: E402
from batchtwin.scheduler.errors import BatchTwinError  # noqa: E402
from batchtwin.sim.cost.features import Features  # noqa: E402
from batchtwin.sim.cost.tables.aiconfigurator import Gemm, Heads, prefill_points, read_table  # noqa: E402
from batchtwin.sim.cost.tables.by_spec import spec_profile  # noqa: E402
from batchtwin.sim.cost.tables.from_kernels import linear_shapes  # noqa: E402
from batchtwin.sim.cost.tables.open import open_tables  # noqa: E402
from batchtwin.sim.cost.tables.pieces import Wanted  # noqa: E402
from batchtwin.sim.cost.tables.vidur import Shape, read_attention, read_mlp  # noqa: E402
from batchtwin.sim.facts.device import find_device  # noqa: E402
from batchtwin.sim.facts.library import load_model_config  # noqa: E402

A100, H100 = "data/aiconfigurator_vllm/a100_sxm_vllm0.14.0", "data/aiconfigurator_vllm/h100_sxm_vllm0.24.0"
LLAMA_2, LLAMA_3 = "meta-llama/Llama-2-7b-hf", "meta-llama/Meta-Llama-3-8B"
LINEARS = (
    ("A100 Vidur", "data/vidur_profiles/a100/meta-llama/Llama-2-7b-hf/mlp.csv", A100, LLAMA_2),
    ("A800 Frontier", "data/frontier_profiles/a800/meta-llama/Llama-2-7b-hf/mlp.csv", A100, LLAMA_2),
    ("H100 Vidur", "data/vidur_profiles/h100/meta-llama/Llama-2-7b-hf/mlp.csv", H100, LLAMA_2),
    ("A100 Vidur", "data/vidur_profiles/a100/meta-llama/Meta-Llama-3-8B/mlp.csv", A100, LLAMA_3),
)
FRONTIER = "data/frontier_profiles/a800/meta-llama/Llama-2-7b-hf"
OPERATORS = {
    "qkv": "attn_pre_proj",
    "attention output": "attn_post_proj",
    "gate and up": "mlp_up_proj",
    "down": "mlp_down_proj",
}
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096)
STEP = Features(64, 64, 64 * 1024, 0, 0, 0.0, 64, 0, 64)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tables' milliseconds of one operator, at the same sizes."""

    name: str
    sizes: list[int]
    one_ms: list[float]
    other_ms: list[float]

    @property
    def factors(self) -> list[float]:
        """One over other."""
        return [a / b for a, b in zip(self.one_ms, self.other_ms, strict=True)]

    def factor(self, chosen: Callable[[int], bool]) -> float:
        """Median over some sizes; NaN if there are none."""
        kept = [f for size, f in zip(self.sizes, self.factors, strict=True) if chosen(size)]
        return float(np.median(kept)) if kept else float("nan")


def main() -> None:
    """Print the setup, the factors, what can be composed; write the picture; one JSON line last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="Folder that holds data/vidur_profiles and so on.")
    parser.add_argument("--svg", type=Path, help="Write the picture there.")
    options = parser.parse_args()
    pairs = {
        f"{label} {model.rsplit('/', 1)[-1]}": _linears(options.shared, mlp, kernels, model)
        for label, mlp, kernels, model in LINEARS
    }
    pairs["A800 Frontier prompt attention 32/32"] = [_prompt_attention(options.shared)]
    print("Vidur or Frontier over AIConfigurator (vLLM 0.14 on the A100, 0.24 on the H100), medians over sizes")
    print(f"{'operator':60s} {'up to 64':>9s} {'128-512':>9s} {'1,024 up':>9s}")
    result: dict[str, Any] = {"factors": {}}
    for group, found in pairs.items():
        for pair in found:
            three = [
                pair.factor(lambda n: n <= 64),
                pair.factor(lambda n: 128 <= n <= 512),
                pair.factor(lambda n: n >= 1024),
            ]
            print(f"{group + ': ' + pair.name:60s} " + " ".join(f"{factor:9.2f}" for factor in three))
            result["factors"][f"{group}: {pair.name}"] = {"sizes": pair.sizes, "factor": pair.factors}
    result["iterations"] = _iterations(options.shared)
    if options.svg is not None:
        options.svg.write_text(_picture(pairs), encoding="utf-8")
        print(f"Wrote {options.svg}")
    print(json.dumps(result))


def _linears(shared: Path, mlp: str, kernels: str, model: str) -> list[Pair]:
    config = load_model_config(model)
    ours = read_mlp(shared / mlp, 1).operators
    gemm = Gemm(read_table(shared / kernels, "gemm", ("m", "n", "k", "latency")))
    pairs = []
    for name, (n, k) in linear_shapes(config).items():
        line = ours[OPERATORS[name]]
        sizes = [m for m in TOKENS if m <= line.high and m <= max(gemm.tokens)]
        pairs.append(Pair(name, sizes, [1e3 * line(m) for m in sizes], [1e3 * gemm(n, k, m) for m in sizes]))
    return pairs


def _prompt_attention(shared: Path) -> Pair:
    _, ours = read_attention(shared / FRONTIER / "attention.csv", 1, Shape(4096, 32, 32))
    theirs = prefill_points(read_table(shared / A100, "context_attention", ("isl", "latency")), Heads(32, 32, 128))
    sizes = [chunk for chunk in CHUNKS if ours.reaches(chunk, 0)]
    return Pair("one prompt", sizes, [1e3 * ours(c, 0) for c in sizes], [1e3 * theirs(1, c) for c in sizes])


def _iterations(shared: Path) -> dict[str, Any]:
    """64 decodes at 1,024 tokens, wherever everything it takes was measured, beside the same by data sheet."""
    print("\n64 decodes at 1,024 tokens, in ms (by data sheet in brackets)")
    asked: list[tuple[str, str, Wanted, str]] = [
        (FRONTIER, LLAMA_2, Wanted(), "A800"),
        *(
            (folder, model, Wanted(model=model, tensor_parallel=tp), gpu)
            for folder, gpu in ((A100, "A100-80GB"), (H100, "H100"))
            for model in (LLAMA_2, LLAMA_3)
            for tp in (1, 2, 4)
        ),
        *((str(Path(mlp).parent), model, Wanted(), "") for label, mlp, _, model in LINEARS if "Vidur" in label),
    ]
    found: dict[str, Any] = {}
    for folder, model, wanted, gpu in asked:
        degree = wanted.tensor_parallel or 1
        name = f"{Path(folder).relative_to('data')} {model.rsplit('/', 1)[-1]} tp{degree}"
        try:
            ms = 1e3 * open_tables(shared / folder, wanted).cost_model.duration_s(STEP)
            sheet = spec_profile(load_model_config(model), find_device(gpu), tensor_parallel=degree)
            found[name] = {"ms": ms, "by_data_sheet_ms": 1e3 * sheet.cost_model.duration_s(STEP)}
            print(f"{name}: {ms:.2f} ({found[name]['by_data_sheet_ms']:.2f})")
        except BatchTwinError as error:
            found[name] = {"missing": str(error).replace(str(shared) + "/", "")}
            print(f"{name}: not composed. {found[name]['missing']}")
    return found


def _picture(pairs: dict[str, list[Pair]]) -> str:
    panels = []
    for group, found in pairs.items():
        curves = []
        for color, name in (
            (PREDICTED, "qkv"),
            (MEASURED, "gate and up"),
            ("#868E99", "down"),
            (PREDICTED, "one prompt"),
        ):
            pair = next((p for p in found if p.name == name), None)
            if pair is not None:
                curves.append(Curve(name, pair.sizes, pair.factors, color))
        panels.append(panel(group, curves, Axis("tokens", log=True), Axis("time / AIConfigurator's")))
    return document(panels, columns=2)


if __name__ == "__main__":
    main()

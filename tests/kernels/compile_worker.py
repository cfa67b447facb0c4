"""Compiles variants of the Triton kernels for an absent device and prints, as JSON, what each takes, or the error."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from compile_cases import SMALL, full

from batchtwin.kernels.errors import KernelError
from batchtwin.kernels.offline_compile import ARCHITECTURES, Variant, compile_variant


def main(architecture: str, grid: str) -> None:
    results = {}
    variants = full(architecture) if grid == "full" else SMALL[architecture]
    if grid == "impossible":
        variants = [Variant("decode", cache="fp8e4nv")]
    for variant in variants:
        try:
            results[variant.name] = asdict(compile_variant(variant, ARCHITECTURES[architecture]))
        except KernelError as error:
            results[variant.name] = {"error": str(error)}
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])

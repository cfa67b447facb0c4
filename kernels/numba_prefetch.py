"""The processor's prefetch instruction, which numba does not offer by itself."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

_READ, _KEEP_IN_ALL_CACHES, _DATA = 0, 3, 1


def _prefetch(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        instruction = builder.module.declare_intrinsic("llvm.prefetch", [pointer], function_type)
        hints = [ir.Constant(number, hint) for hint in (_READ, _KEEP_IN_ALL_CACHES, _DATA)]
        builder.call(instruction, [builder.inttoptr(arguments[0], pointer), *hints])
        return context.get_dummy_value()

    return types.void(types.intp), generate


prefetch: Any = intrinsic(_prefetch)
"""``prefetch(address)`` in compiled code asks for the cache line at ``address``, an integer, and waits for nothing."""

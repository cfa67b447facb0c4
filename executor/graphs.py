"""CUDA graphs: at which sizes a decode step is captured, and a captured step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

MOST_TOKENS = 512
_WARM_UPS = 2


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[int, ...]:
    """Token counts that vLLM captures (0.33.0, optimisation level 2): 1, 2, 4, then by 8 below 256 and by 16 above, up
    to twice ``max_num_seqs`` or 512, and both limits themselves where they lie within.
    """
    top = min(2 * max_num_seqs, MOST_TOKENS, max_num_batched_tokens)
    sizes = {size for size in (1, 2, 4, *range(8, 256, 8), *range(256, MOST_TOKENS + 1, 16)) if size <= top}
    sizes |= {limit for limit in (max_num_seqs, max_num_batched_tokens) if limit <= top}
    return tuple(sorted(sizes))


def padded_size(num_tokens: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the ascending ``sizes`` that holds ``num_tokens``; None where there is none."""
    at = bisect_left(sizes, num_tokens)
    return sizes[at] if num_tokens > 0 and at < len(sizes) else None


class Captured(Protocol):
    """A step whose inputs and output stay at fixed addresses."""

    def replay(self) -> Tensor:
        """Run it again on what the inputs hold now; gives the same output tensor every time."""
        ...


Capture = Callable[[Callable[[], Tensor]], Captured]


class CudaGraphs:
    """Captures steps into graphs that share one memory pool."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> Captured:
        """Capture ``run``, which is called a few times before: kernels compile and libraries initialise there."""
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()
        return _CudaGraph(graph, output)


class _CudaGraph:
    def __init__(self, graph: Any, output: Tensor) -> None:
        self._graph = graph
        self._output = output

    def replay(self) -> Tensor:
        """As ``Captured.replay``."""
        self._graph.replay()
        return self._output

"""CUDA graphs: a captured step; at which sizes is ``scheduler/graph_sizes.py``'s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

_WARM_UPS = 2


class Captured(Protocol):
    """A step whose inputs and output stay at fixed addresses."""

    def replay(self) -> tuple[Tensor, Tensor]:
        """Run it again on what the inputs hold now; gives the same output tensors every time."""
        ...


Step = Callable[[], tuple[Tensor, Tensor]]
Capture = Callable[[Step], Captured]


class CudaGraphs:
    """Captures steps into graphs that share one memory pool."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, run: Step) -> Captured:
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
    def __init__(self, graph: Any, output: tuple[Tensor, Tensor]) -> None:
        self._graph = graph
        self._output = output

    def replay(self) -> tuple[Tensor, Tensor]:
        """As ``Captured.replay``."""
        self._graph.replay()
        return self._output

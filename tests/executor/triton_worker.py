"""Serves a few requests with the attention of a CUDA device, its kernels interpreted on CPU tensors.

Prints, as JSON, the tokens it gave and those of the CPU's attention. A process of its own, because Triton decides to
interpret when it is imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

os.environ["TRITON_INTERPRET"] = "1"

import torch
from models import CONFIGS
from transformers import PretrainedConfig

from batchtwin.executor import checkpoints, models
from batchtwin.executor.cuda_attention import TritonPagedBatch
from batchtwin.executor.cuda_runner import CudaRunner, GraphPlan
from batchtwin.executor.engine import Engine
from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.scheduler.request import Request
from batchtwin.scheduler.scheduler import Scheduler

CONFIG = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=11, max_model_len=64, num_gpu_blocks=9, block_size=4)
NUM_PROCESSORS = 64


class Replayed:
    """Instead of a captured graph: the step is run again, on whatever its inputs hold by then."""

    num_replays = 0

    def __init__(self, run: Callable[[], torch.Tensor]) -> None:
        self._run = run

    def replay(self) -> torch.Tensor:
        Replayed.num_replays += 1
        return self._run()


class InterpretedEngine(Engine):
    def _make_runner(self, sizes: tuple[int, ...], max_model_len: int) -> CudaRunner:
        return CudaRunner(
            self.loaded,
            self.cache,
            num_processors=NUM_PROCESSORS,
            graphs=GraphPlan((1, 2, 4), CONFIG.max_model_len),
            attention=TritonPagedBatch,
            capture=Replayed,
        )

    def _warm_up(self) -> None:
        """Nothing: every interpreted launch takes long."""


def serve(engine: Engine) -> dict[str, list[int]]:
    scheduler = Scheduler(CONFIG, "vllm_v1")
    for name, (prompt, output) in {"a": (3, 4), "b": (13, 3), "c": (5, 5)}.items():
        scheduler.add(Request(name, prompt, output))
    while scheduler.has_work:
        batch = scheduler.schedule()
        engine.run(batch)
        scheduler.complete(batch)
    return {name: engine.outputs(name) for name in "abc"}


def main(config: PretrainedConfig) -> None:
    checkpoints.PRESETS["small"] = lambda: config
    loaded = models.load_model("small")
    kinds: list[type[Engine]] = [InterpretedEngine, Engine]
    outputs = [serve(kind(loaded, num_gpu_blocks=9, block_size=4, threads=1)) for kind in kinds]
    print(json.dumps([*outputs, Replayed.num_replays]))


if __name__ == "__main__":
    main(CONFIGS["qwen3, tied, groups of 3"])

"""Serves a few requests with the attention of a CUDA device, its kernels interpreted on CPU tensors.

Prints, as JSON, the tokens it gave and those of the CPU's attention. A process of its own, because Triton decides to
interpret when it is imported.
"""

from __future__ import annotations

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
from models import CONFIGS
from transformers import PretrainedConfig

from batchtwin.executor import models
from batchtwin.executor.cuda_attention import TritonPagedBatch
from batchtwin.executor.engine import Engine
from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.scheduler.request import Request
from batchtwin.scheduler.scheduler import Scheduler
from batchtwin.scheduler.shapes import ForwardShapes

CONFIG = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=11, max_model_len=64, num_gpu_blocks=9, block_size=4)
NUM_PROCESSORS = 64


class InterpretedEngine(Engine):
    def _attention(self, shapes: ForwardShapes) -> TritonPagedBatch:
        return TritonPagedBatch(self.cache, shapes, torch.device("cpu"), NUM_PROCESSORS)


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
    models.PRESETS["small"] = lambda: config
    loaded = models.load_model("small")
    kinds: list[type[Engine]] = [InterpretedEngine, Engine]
    print(json.dumps([serve(kind(loaded, num_gpu_blocks=9, block_size=4, threads=1)) for kind in kinds]))


if __name__ == "__main__":
    main(CONFIGS["qwen3, tied, groups of 3"])

"""Rule 11: greedy tokens of the executor are those of Hugging Face's ``generate``, whatever the batching."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from batchtwin.executor.engine import Engine
from batchtwin.executor.models import load_model
from batchtwin.scheduler.batch import Batch
from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.scheduler.request import Request
from batchtwin.scheduler.scheduler import Scheduler

from .models import CONFIGS, generate, saved_checkpoint

BLOCK_SIZE = 8
BATCHINGS = {
    "one by one": SchedulerConfig(
        max_num_seqs=1, max_num_batched_tokens=512, max_model_len=512, num_gpu_blocks=200, block_size=BLOCK_SIZE
    ),
    "all at once": SchedulerConfig(
        max_num_seqs=32, max_num_batched_tokens=1024, max_model_len=512, num_gpu_blocks=400, block_size=BLOCK_SIZE
    ),
    "chunks of a small budget": SchedulerConfig(
        max_num_seqs=7, max_num_batched_tokens=13, max_model_len=512, num_gpu_blocks=200, block_size=BLOCK_SIZE
    ),
    "blocks run out": SchedulerConfig(
        max_num_seqs=16, max_num_batched_tokens=64, max_model_len=512, num_gpu_blocks=26, block_size=BLOCK_SIZE
    ),
    "blocks run out and are swapped": SchedulerConfig(
        max_num_seqs=16,
        max_num_batched_tokens=64,
        max_model_len=512,
        num_gpu_blocks=26,
        block_size=BLOCK_SIZE,
        preemption_mode="swap",
        num_cpu_blocks=60,
    ),
    "prefixes are shared": SchedulerConfig(
        max_num_seqs=6,
        max_num_batched_tokens=64,
        max_model_len=512,
        num_gpu_blocks=200,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=True,
    ),
}


def ragged_requests(count: int = 14, seed: int = 5) -> list[Request]:
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.integers(1, 90, count).tolist(), rng.integers(1, 40, count).tolist()
    return [Request(f"r{i}", prompts[i], outputs[i], index=i) for i in range(count)]


def requests_with_a_common_beginning() -> list[Request]:
    """As the ragged ones, but every other prompt begins with the same 21 tokens."""

    def longer(r: Request) -> Request:
        prompt = (("system", 0, 21), *r.prompt)
        return Request(r.request_id, r.num_prompt_tokens + 21, r.output_len, prompt=prompt, index=r.index)

    return [longer(request) if request.index % 2 == 0 else request for request in ragged_requests()]


def serve(engine: Engine, config: SchedulerConfig, requests: Iterable[Request], policy: str = "vllm_v1") -> int:
    """Everything at once through the real scheduler; gives the number of preemptions."""
    return sum(len(batch.preempted) for batch in batches_served(engine, config, requests, policy))


def batches_served(
    engine: Engine, config: SchedulerConfig, requests: Iterable[Request], policy: str = "vllm_v1"
) -> list[Batch]:
    scheduler = Scheduler(config, policy)
    for request in requests:
        scheduler.add(request)
    batches = []
    while scheduler.has_work:
        batch = scheduler.schedule()
        engine.run(batch)
        scheduler.complete(batch)
        batches.append(batch)
    return batches


@pytest.mark.parametrize("architecture", CONFIGS)
def test_rule_11_executor_equals_generate_whatever_the_batching(architecture: str, tmp_path: Path) -> None:
    reference = saved_checkpoint(tmp_path, CONFIGS[architecture])
    loaded = load_model(str(tmp_path))
    expected: dict[str, list[int]] = {}
    for name, config in BATCHINGS.items():
        requests = requests_with_a_common_beginning()
        engine = Engine(loaded, num_gpu_blocks=config.num_gpu_blocks, block_size=BLOCK_SIZE, seed=3)
        if not expected:
            for request in requests:
                prompt = engine.tokens.ids(request, 0, request.num_prompt_tokens).tolist()
                expected[request.request_id] = generate(reference, prompt, request.output_len)
        batches = batches_served(engine, config, requests)
        assert {r.request_id: engine.outputs(r.request_id) for r in requests} == expected, name
        assert any(batch.preempted for batch in batches) == name.startswith("blocks run out")
        assert any(batch.copies_in for batch in batches) == name.endswith("swapped")
        assert any(batch.num_cached_tokens for batch in batches) == (name == "prefixes are shared")
    assert len({token for tokens in expected.values() for token in tokens}) > 60, "too uniform to show an error"

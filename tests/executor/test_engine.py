from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
import torch

from batchtwin.executor.design import design_batch
from batchtwin.executor.engine import Engine, Step
from batchtwin.executor.errors import KVCacheTooLarge
from batchtwin.executor.models import LoadedModel, load_model
from batchtwin.scheduler.batch import Batch, Chunk
from batchtwin.scheduler.cohort import NOBODY, Members, Seat
from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.scheduler.request import Request
from batchtwin.scheduler.scheduler import Scheduler

from .models import CONFIGS, generate, saved_checkpoint
from .test_rule_11_greedy_tokens import ragged_requests, serve

BLOCK_SIZE, NUM_BLOCKS = 8, 120
CONFIG = SchedulerConfig(
    max_num_seqs=6, max_num_batched_tokens=40, max_model_len=256, num_gpu_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("qwen3")
    saved_checkpoint(folder, CONFIGS["qwen3, untied, groups of 2"])
    return load_model(str(folder))


def _engine(loaded: LoadedModel) -> Engine:
    return Engine(loaded, num_gpu_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, seed=3)


def _outputs(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    return {request.request_id: engine.outputs(request.request_id) for request in requests}


def _served_alone(loaded: LoadedModel, requests: list[Request]) -> dict[str, list[int]]:
    engine = _engine(loaded)
    for request in requests:
        serve(engine, CONFIG, [request])
    return _outputs(engine, requests)


def test_rule_3_each_row_reads_only_blocks_of_its_own_table(loaded: LoadedModel) -> None:
    """Poison everything but one row's table, one row after the other: its logits do not change in a single bit."""
    engine = _engine(loaded)
    logits: list[torch.Tensor] = []
    hook = loaded.model.lm_head.register_forward_hook(lambda *call: logits.append(call[2][0].clone()))
    scheduler = Scheduler(CONFIG, "vllm_v1")
    for request in ragged_requests(8):
        scheduler.add(request)
    rows_checked = 0
    try:
        for _ in range(12):
            batch = scheduler.schedule()
            before = engine.cache._data.clone()
            engine.run(batch)
            expected, after = logits.pop(), engine.cache._data.clone()
            sampling = [row for row in batch.rows() if row.samples]
            for i, row in enumerate(sampling):
                engine.cache._data.copy_(before)
                engine.cache.poison(set(range(NUM_BLOCKS)) - set(row.block_table))
                engine.run(batch)
                assert torch.equal(logits.pop()[i], expected[i])
                rows_checked += 1
            engine.cache._data.copy_(after)
            scheduler.complete(batch)
    finally:
        hook.remove()
    assert rows_checked > 30


def test_rule_3_no_place_is_read_before_it_was_written(loaded: LoadedModel) -> None:
    """Null block and page tails included: a cache that starts as NaN gives the same tokens."""
    requests = ragged_requests(8)
    expected = _served_alone(loaded, requests)
    engine = _engine(loaded)
    engine.cache.poison(range(NUM_BLOCKS))
    serve(engine, CONFIG, ragged_requests(8))
    assert _outputs(engine, requests) == expected


def test_static_batching_with_its_padding_gives_the_same_tokens(loaded: LoadedModel) -> None:
    requests = ragged_requests(8)
    engine = _engine(loaded)
    config = CONFIG.with_(max_num_seqs=4, max_num_batched_tokens=1024, num_gpu_blocks=NUM_BLOCKS)
    scheduler = Scheduler(config, "static_batch")
    for request in ragged_requests(8):
        scheduler.add(request)
    padded = 0
    while scheduler.has_work:
        batch = scheduler.schedule()
        padded += batch.num_padded_tokens
        engine.run(batch)
        scheduler.complete(batch)
    assert padded > 0
    assert _outputs(engine, requests) == _served_alone(loaded, requests)


def test_a_step_launched_before_the_one_before_it_is_finished_takes_its_tokens(loaded: LoadedModel) -> None:
    requests = ragged_requests(8)
    engine = _engine(loaded)
    scheduler = Scheduler(CONFIG, "vllm_v1")
    for request in ragged_requests(8):
        scheduler.add(request)
    in_flight: deque[tuple[Batch, Step]] = deque()
    while scheduler.has_work:
        batch = scheduler.schedule()
        in_flight.append((batch, engine.launch(batch)))
        if len(in_flight) == 2 or not scheduler.has_work:
            done, step = in_flight.popleft()
            engine.finish(step)
            scheduler.complete(done)
    assert _outputs(engine, requests) == _served_alone(loaded, requests)


def test_a_swapped_out_context_comes_back_into_other_blocks(loaded: LoadedModel) -> None:
    request = Request("r", 19, 8)
    engine = _engine(loaded)

    def prefill(table: list[int]) -> Batch:
        return _empty(chunks=[Chunk(request, 0, 0, 19, True, table)], num_prefill_tokens=19)

    def decode(table: list[int], **changes: object) -> Batch:
        return _empty(members=Members({0: Seat(request, 0, 19, table)}), **changes)

    engine.run(prefill([5, 9, 2]))
    expected = engine.run(decode([5, 9, 2]))
    engine.run(prefill([5, 9, 2]))
    engine.run(_empty(copies_out=[(5, 40), (9, 3), (2, 7)]))
    engine.cache.poison(range(NUM_BLOCKS))
    again = engine.run(decode([30, 31, 32], copies_in=[(30, 40), (31, 3), (32, 7)]))
    assert again == expected


def _empty(**changes: object) -> Batch:
    return Batch(**{"step": 0, "clock": 0, "members": NOBODY, "chunks": [], **changes})  # type: ignore[arg-type]


def test_an_empty_batch_gives_no_token(loaded: LoadedModel) -> None:
    assert _engine(loaded).run(_empty()) == {}


def test_a_chunk_that_does_not_complete_the_prompt_gives_no_token(loaded: LoadedModel) -> None:
    request = Request("r", 19, 8)
    batch = _empty(chunks=[Chunk(request, 0, 0, 12, False, [1, 2])], num_prefill_tokens=12)
    assert _engine(loaded).run(batch) == {}


def test_a_later_turn_continues_from_the_tokens_really_produced(tmp_path: Path) -> None:
    reference = saved_checkpoint(tmp_path, CONFIGS["llama, untied, groups of 2"])
    engine = _engine(load_model(str(tmp_path)))
    first = Request("first", 9, 6)
    turn = Request("turn", 18, 5, prompt=[("p:first", 0, 9), ("out:first", 0, 6), ("p:turn", 0, 3)])
    serve(engine, CONFIG, [first])
    serve(engine, CONFIG, [turn])
    prompt = TokenIds(engine, first, 9) + engine.outputs("first") + TokenIds(engine, turn, 18)[15:]
    assert engine.outputs("turn") == generate(reference, prompt, 5)


def TokenIds(engine: Engine, request: Request, count: int) -> list[int]:
    return engine.tokens.ids(request, 0, count).tolist()


def test_tokens_do_not_depend_on_where_blocks_lie(loaded: LoadedModel) -> None:
    def tokens(seed: int) -> dict[str, int]:
        engine = _engine(loaded)
        batch = design_batch(
            [], [(0, 37), (0, 20), (0, 1)], block_size=BLOCK_SIZE, num_gpu_blocks=NUM_BLOCKS, seed=seed
        )
        return engine.run(batch)

    assert tokens(1) == tokens(2)
    assert len(tokens(1)) == 3


@pytest.mark.parametrize("threads", [1, 2])
def test_torch_gets_the_threads_that_were_asked_for(threads: int) -> None:
    """In a process of its own: numba starts its threads once, and then resets OpenMP's count."""
    code = (
        "import torch; from batchtwin.executor import Engine, design_batch, load_model;"
        f"engine = Engine(load_model('tiny-llama'), num_gpu_blocks=20, block_size=16, threads={threads});"
        "engine.run(design_batch([30, 40], [], block_size=16, num_gpu_blocks=20)); print(torch.get_num_threads())"
    )
    environment = os.environ | {"OMP_NUM_THREADS": str(3 - threads)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == str(threads)


def test_a_cache_without_room_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(KVCacheTooLarge, match="at least 2 blocks"):
        Engine(loaded, num_gpu_blocks=1, block_size=16)
    with pytest.raises(KVCacheTooLarge, match="lower num_gpu_blocks"):
        Engine(loaded, num_gpu_blocks=10**12, block_size=16)


def test_cache_bytes_are_keys_and_values_of_every_layer(loaded: LoadedModel) -> None:
    cache = _engine(loaded).cache
    assert cache.block_bytes == 2 * 2 * BLOCK_SIZE * 2 * 32 * 4  # K and V, layers, tokens, KV heads, head size, float32
    assert cache.num_bytes == NUM_BLOCKS * cache.block_bytes

from __future__ import annotations

import numpy as np
import pytest

from batchtwin.executor.calibration import measure_batches
from batchtwin.executor.design import calibration_batches, design_batch
from batchtwin.executor.errors import KVCacheTooLarge
from batchtwin.scheduler.batch import Batch
from batchtwin.scheduler.shapes import forward_shapes

LIMITS = {"max_num_seqs": 24, "max_num_batched_tokens": 256, "max_model_len": 500}
POOL = {"block_size": 16, "num_gpu_blocks": 300}


def test_sums_are_those_of_a_hand_calculation() -> None:
    batch = design_batch([7, 20], [(0, 10), (30, 4), (12, 1)], block_size=4, num_gpu_blocks=60)
    assert batch.num_decode_kv_tokens == 7 + 20 + 12  # the chunk of one token over context is a decode
    assert batch.num_single_chunks == 1
    assert batch.num_prefill_tokens == 14
    assert batch.prefill_attention_work == 10 * 5.0 + 4 * 32.0
    assert (batch.num_seqs, batch.num_tokens, batch.num_decodes, batch.num_prefills) == (5, 17, 3, 2)
    assert batch.num_samples == 5
    # blocks of 4: contexts 8, 21, 10, 34, 13 with this step's tokens
    assert batch.num_free_blocks == 59 - (2 + 6 + 3 + 9 + 4)


def test_blocks_lie_scattered_and_nobody_shares_one_or_gets_the_null_block() -> None:
    batch = design_batch([100] * 8, [(0, 50)], block_size=4, num_gpu_blocks=400)
    shapes = forward_shapes(batch, 4)
    used = shapes.block_tables[shapes.block_tables > 0].tolist()
    assert len(used) == len(set(used)) == 8 * 26 + 13
    assert len(set(shapes.slot_mapping.tolist())) == 58
    assert np.mean(np.abs(np.diff(used)) == 1) < 0.1


def test_positions_follow_the_contexts() -> None:
    shapes = forward_shapes(design_batch([7, 20], [(3, 2)], block_size=4, num_gpu_blocks=60), 4)
    assert shapes.positions.tolist() == [7, 20, 3, 4]
    assert shapes.seq_lens.tolist() == [8, 21, 5]


def test_a_batch_that_exceeds_the_pool_is_refused() -> None:
    with pytest.raises(KVCacheTooLarge, match="needs 26 KV blocks"):
        design_batch([100], [], block_size=4, num_gpu_blocks=20)


def test_calibration_batches_stay_within_the_limits() -> None:
    batches = calibration_batches(**LIMITS, **POOL)
    for batch in batches:
        assert 1 <= batch.num_seqs <= LIMITS["max_num_seqs"]
        assert 1 <= batch.num_tokens <= LIMITS["max_num_batched_tokens"]
        assert all(row.start + row.num_tokens <= LIMITS["max_model_len"] for row in batch.rows())
        assert batch.num_free_blocks >= 0


@pytest.mark.parametrize("limits", [(1, 1, 2), (1, 8, 16), (64, 64, 4096), (8, 4096, 64)])
@pytest.mark.parametrize("blocks", [7, 24, 300])
@pytest.mark.parametrize("block_size", [1, 16])
def test_extreme_limits_still_give_batches_within_them(
    limits: tuple[int, int, int], blocks: int, block_size: int
) -> None:
    max_num_seqs, budget, max_model_len = limits
    pool = {"block_size": block_size, "num_gpu_blocks": blocks}
    for batch in calibration_batches(max_num_seqs, budget, max_model_len, **pool):
        assert 1 <= batch.num_seqs <= max_num_seqs
        assert 1 <= batch.num_tokens <= budget
        assert all(row.start + row.num_tokens <= max_model_len for row in batch.rows())


def test_calibration_batches_cover_every_kind_and_vary_what_costs_time() -> None:
    batches = calibration_batches(**LIMITS, **POOL)
    kinds = {(batch.num_decodes > 0, batch.num_prefills > 0) for batch in batches}
    assert kinds == {(True, False), (False, True), (True, True)}
    decodes = [b for b in batches if not b.num_prefills]
    assert {min(b.num_seqs for b in decodes), max(b.num_seqs for b in decodes)} == {1, 24}
    assert max(b.num_tokens for b in batches) == 256
    columns = [
        [b.num_tokens for b in batches],
        [b.num_decode_kv_tokens for b in batches],
        [b.prefill_attention_work for b in batches],
        [b.num_seqs for b in batches],
    ]
    correlations = np.corrcoef(columns) - np.eye(4)
    assert np.abs(correlations).max() < 0.95, "two features move together: no fit could tell them apart"


def test_calibration_batches_follow_the_seed() -> None:
    def described(seed: int) -> list[list[tuple[int, int, list[int]]]]:
        batches = calibration_batches(**LIMITS, **POOL, seed=seed)
        return [[(row.start, row.num_tokens, row.block_table) for row in batch.rows()] for batch in batches]

    assert described(1) == described(1)
    assert described(1) != described(2)


class FakeEngine:
    """Batch i takes i + 1 s of the fake clock; the first runs of all take ten times as long."""

    def __init__(self, batches: list[Batch]) -> None:
        self.now_s = 0.0
        self.order: list[int] = []
        self._batches = batches

    def launch(self, batch: Batch) -> FakeStep:
        i = next(i for i, known in enumerate(self._batches) if known is batch)
        self.now_s += (i + 1.0) * (1 if i in self.order else 10)
        self.order.append(i)
        return FakeStep()

    def finish(self, step: FakeStep) -> dict[str, int]:
        return {}

    def run(self, batch: Batch) -> dict[str, int]:
        return self.finish(self.launch(batch))


class FakeStep:
    def device_s(self) -> None:
        return None


def _measure(minutes: float, seed: int = 0) -> tuple[list[list[float]], FakeEngine, list[float]]:
    batches = [design_batch([5], [], block_size=4, num_gpu_blocks=20) for _ in range(4)]
    engine, told = FakeEngine(batches), []
    measured = measure_batches(
        engine,  # type: ignore[arg-type]
        batches,
        minutes=minutes,
        seed=seed,
        progress=told.append,
        clock=lambda: engine.now_s,
    )
    assert [row.batch for row in measured] == batches
    return [row.times_s for row in measured], engine, told


def test_warm_up_is_thrown_away_and_three_rounds_count_at_least() -> None:
    times, _, told = _measure(minutes=0.0)
    assert times == [[i + 1.0] * 3 for i in range(4)]
    assert told[-1] == 1.0


def test_rounds_fill_the_time_and_do_not_exceed_it() -> None:
    """Warm-up 100 s, then rounds of 20 s (each batch untimed, then timed): at 180 s a fifth would end at 200 s."""
    times, engine, told = _measure(minutes=200 / 60)
    assert {len(repeats) for repeats in times} == {4}
    assert engine.now_s <= 200.0
    assert told == sorted(told)


def test_every_round_runs_all_batches_in_an_order_of_its_own() -> None:
    _, engine, _ = _measure(minutes=200 / 60)
    untimed, timed = engine.order[4::2], engine.order[5::2]
    assert untimed == timed
    rounds = [tuple(timed[at : at + 4]) for at in range(0, len(timed), 4)]
    assert all(sorted(one) == [0, 1, 2, 3] for one in rounds)
    assert len(set(rounds)) > 2
    assert engine.order == _measure(minutes=200 / 60)[1].order

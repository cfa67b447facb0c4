"""The CUDA engine's own logic without a CUDA device: padding to captured sizes, one copy a step, tokens in flight."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from batchtwin.executor import engine as engine_module
from batchtwin.executor.attention import CpuPagedBatch, LayerCall
from batchtwin.executor.cuda_runner import NO_STEP, CudaRunner, GraphPlan, StepArrays
from batchtwin.executor.engine import Engine
from batchtwin.executor.graphs import Step
from batchtwin.executor.kv_cache import PagedKVCache
from batchtwin.executor.models import LoadedModel, load_model
from batchtwin.executor.sampling import SamplingParams
from batchtwin.executor.staging import Staging
from batchtwin.kernels.metadata import NO_SLOT, AttentionMetadata
from batchtwin.scheduler.config import SchedulerConfig
from batchtwin.scheduler.request import Request
from batchtwin.scheduler.scheduler import Scheduler

from .models import CONFIGS, saved_checkpoint
from .test_rule_11_greedy_tokens import ragged_requests, serve

CONFIG = SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=40, max_model_len=256, num_gpu_blocks=120, block_size=8)


class OnTheHost(CpuPagedBatch):
    """Attends what the metadata on the "device" says, by the CPU's kernels, and never looks at the batch itself."""

    num_padded = 0

    def __init__(self, cache: PagedKVCache, metadata: AttentionMetadata) -> None:
        self._cache, self._metadata = cache, metadata

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: LayerCall) -> torch.Tensor:
        meta = {name: getattr(self._metadata, name).numpy().astype(np.int64) for name in _ARRAYS}
        real = int(np.count_nonzero(meta["seq_lens"]))
        rows = int(meta["query_start_loc"][real])
        OnTheHost.num_padded += len(query) - rows
        assert (meta["slot_mapping"][rows:] == NO_SLOT).all()
        shapes = SimpleNamespace(
            slot_mapping=meta["slot_mapping"][:rows],
            query_start_loc=meta["query_start_loc"][: real + 1],
            seq_lens=meta["seq_lens"][:real],
            block_tables=meta["block_tables"][:real],
            num_decode_rows=min(self._metadata.num_decodes, real),
        )
        super().__init__(self._cache, shapes)  # type: ignore[arg-type]
        out = torch.full_like(query, float("nan"))  # what padding gives must reach nobody
        out[:rows] = super().attend(query[:rows], key[:rows], value[:rows], call)
        return out


_ARRAYS = ("query_start_loc", "seq_lens", "block_tables", "slot_mapping")


class Replayed:
    """Instead of a graph: the captured step is run again, on whatever its inputs hold by then."""

    def __init__(self, run: Step) -> None:
        self._run = run
        self.num_replays = 0
        self._outputs = run()

    def replay(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Into the same memory every time, as a graph does."""
        self.num_replays += 1
        for place, fresh in zip(self._outputs, self._run(), strict=True):
            place.copy_(fresh)
        return self._outputs


class FakeCudaEngine(Engine):
    def _make_runner(self, sizes: tuple[int, ...], max_model_len: int) -> CudaRunner:
        self.captured: list[Replayed] = []

        def capture(run: Step) -> Replayed:
            self.captured.append(Replayed(run))
            return self.captured[-1]

        return CudaRunner(
            self.loaded,
            self.cache,
            num_processors=108,
            graphs=GraphPlan(sizes, max_model_len) if sizes else None,
            attention=OnTheHost,
            capture=capture,
        )


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("gemma2")
    saved_checkpoint(folder, CONFIGS["gemma2, soft caps, every other layer with a window of 24"])
    return load_model(str(folder))


def _expected(loaded: LoadedModel) -> dict[str, list[int]]:
    engine = Engine(loaded, num_gpu_blocks=120, block_size=8, seed=3)
    serve(engine, CONFIG, ragged_requests(9))
    return {f"r{i}": engine.outputs(f"r{i}") for i in range(9)}


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8), (1, 2), (8,)])
def test_padding_to_captured_sizes_changes_no_token(loaded: LoadedModel, sizes: tuple[int, ...]) -> None:
    OnTheHost.num_padded = 0
    engine = FakeCudaEngine(loaded, num_gpu_blocks=120, block_size=8, seed=3, capture_sizes=sizes, max_model_len=256)
    serve(engine, CONFIG, ragged_requests(9))
    assert {f"r{i}": engine.outputs(f"r{i}") for i in range(9)} == _expected(loaded)
    assert len(engine.captured) == len(sizes), "each size is captured once, before the first step"
    assert sum(graph.num_replays for graph in engine.captured) > 5
    assert OnTheHost.num_padded > 0


def test_contexts_beyond_the_graphs_run_eagerly(loaded: LoadedModel) -> None:
    engine = FakeCudaEngine(loaded, num_gpu_blocks=120, block_size=8, seed=3, capture_sizes=(1, 8), max_model_len=8)
    serve(engine, CONFIG, ragged_requests(9))
    assert {f"r{i}": engine.outputs(f"r{i}") for i in range(9)} == _expected(loaded)


def test_a_step_launched_early_takes_tokens_that_are_still_on_the_device(loaded: LoadedModel) -> None:
    engine = FakeCudaEngine(
        loaded, num_gpu_blocks=120, block_size=8, seed=3, capture_sizes=(1, 2, 4, 8), max_model_len=256
    )
    scheduler = Scheduler(CONFIG, "vllm_v1")
    for request in ragged_requests(9):
        scheduler.add(request)
    in_flight: deque[tuple[object, object]] = deque()
    while scheduler.has_work:
        batch = scheduler.schedule()
        in_flight.append((batch, engine.launch(batch)))
        if len(in_flight) == 2 or not scheduler.has_work:
            done, step = in_flight.popleft()
            engine.finish(step)  # type: ignore[arg-type]
            scheduler.complete(done)  # type: ignore[arg-type]
    assert {f"r{i}": engine.outputs(f"r{i}") for i in range(9)} == _expected(loaded)


def test_the_greedy_choice_is_part_of_the_captured_step(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeCudaEngine(
        loaded, num_gpu_blocks=120, block_size=8, seed=3, capture_sizes=(1, 2, 4, 8), max_model_len=256
    )
    expected = _expected(loaded)
    monkeypatch.setattr(engine_module, "sample", lambda *_: pytest.fail("sampled outside the step"))
    serve(engine, CONFIG, ragged_requests(9))
    assert {f"r{i}": engine.outputs(f"r{i}") for i in range(9)} == expected
    assert sum(graph.num_replays for graph in engine.captured) > 5


def test_who_draws_gets_the_tokens_of_an_engine_without_graphs(loaded: LoadedModel) -> None:
    def sampling(request: Request) -> SamplingParams:
        return SamplingParams(temperature=0.8, top_k=20, seed=request.index) if request.index % 2 else SamplingParams()

    plain = Engine(loaded, num_gpu_blocks=120, block_size=8, seed=3, sampling=sampling)
    graphs = FakeCudaEngine(
        loaded, num_gpu_blocks=120, block_size=8, seed=3, capture_sizes=(8,), max_model_len=256, sampling=sampling
    )
    for engine in (plain, graphs):
        serve(engine, CONFIG, ragged_requests(9))
    drawn = {f"r{i}": graphs.outputs(f"r{i}") for i in range(9)}
    assert drawn == {f"r{i}": plain.outputs(f"r{i}") for i in range(9)}
    greedy = _expected(loaded)
    assert {i for i in range(9) if drawn[f"r{i}"] != greedy[f"r{i}"]} >= {1, 3, 5}


def test_a_step_travels_in_one_copy(loaded: LoadedModel) -> None:
    engine = FakeCudaEngine(loaded, num_gpu_blocks=120, block_size=8, seed=3)
    staging: Staging = engine._runner._eager  # type: ignore[attr-defined]
    before = staging.num_copies
    num_steps = len([0 for _ in _served(engine)])
    assert staging.num_copies - before == num_steps


def _served(engine: Engine) -> list[object]:
    from .test_rule_11_greedy_tokens import batches_served

    return list(batches_served(engine, CONFIG, ragged_requests(4)))


def test_padding_has_no_context_and_no_slot() -> None:
    arrays = StepArrays(
        np.array([7, 8]), np.array([3, 5]), np.array([0, 1]), np.array([0, 1, 2]), np.array([4, 6]),
        np.array([[2, 0], [1, 3]]), np.array([19, 29]), 2,
    )  # fmt: skip
    padded = arrays.padded(4, 3)
    assert padded.input_tokens.tolist() == [7, 8, 0, 0]
    assert padded.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert padded.seq_lens.tolist() == [4, 6, 0, 0]
    assert padded.slot_mapping.tolist() == [19, 29, -1, -1]
    assert padded.block_tables.tolist() == [[2, 0, 0], [1, 3, 0], [0, 0, 0], [0, 0, 0]]
    assert NO_STEP.padded(2, 1).slot_mapping.tolist() == [-1, -1]


def test_staged_arrays_keep_their_place_and_hold_the_newest_values() -> None:
    staging = Staging(torch.device("cpu"))
    first = staging.send([np.arange(5), np.arange(6).reshape(2, 3)])
    addresses = [view.data_ptr() for view in first]
    assert all((address - addresses[0]) % 16 == 0 for address in addresses)
    second = staging.send([np.arange(5) * 10, np.ones((2, 3), dtype=np.int64)])
    assert [view.data_ptr() for view in second] == addresses
    assert first[0].tolist() == [0, 10, 20, 30, 40]
    assert second[1].tolist() == [[1, 1, 1], [1, 1, 1]]

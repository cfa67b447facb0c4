"""The measured world: the executor on a real device."""

from __future__ import annotations

import time

from ..executor import DeviceBackend, Engine, LoadedModel, load_model
from ..sim.clock import Clock, WallClock
from ..sim.cost.profile import ModelFacts
from .kv_pool import num_gpu_blocks
from .provenance import provenance
from .run import Run
from .scenario import Scenario
from .world import run_scenario


class Device:
    """A model loaded on a device; measures scenarios that ask for it, one after the other."""

    def __init__(self, scenario: Scenario) -> None:
        self._key = (scenario.model, scenario.dtype, scenario.device, scenario.threads, scenario.seed)
        self.loaded: LoadedModel = load_model(
            scenario.model, device=scenario.device, dtype=scenario.dtype, seed=scenario.seed
        )
        self.facts = model_facts(self.loaded)
        self._threads = scenario.threads
        self._engine: tuple[tuple[int, int], Engine] | None = None

    def engine(self, blocks: int, block_size: int, seed: int = 0) -> Engine:
        """An engine with this KV cache and no tokens in it; the last cache is used again if it has the same size."""
        if self._engine is None or self._engine[0] != (blocks, block_size):
            self._engine = None  # free the old cache before the new one is allocated
            engine = Engine(self.loaded, num_gpu_blocks=blocks, block_size=block_size, seed=seed, threads=self._threads)
            self._engine = (blocks, block_size), engine
        self._engine[1].reset(seed)
        return self._engine[1]

    def measure(self, scenario: Scenario, *, wall_clock: bool = False) -> Run:
        """Run ``scenario`` on the device. Idle time is skipped unless ``wall_clock`` replays arrivals in real time."""
        blocks = num_gpu_blocks(scenario, self.facts)
        engine = self.engine(blocks, scenario.block_size, scenario.seed)
        clock: Clock = WallClock(strict=False) if wall_clock else Clock()
        records = run_scenario(scenario, blocks, DeviceBackend(engine), host_clock=time.perf_counter, clock=clock)
        about = provenance("torch", "transformers", "numba", "triton") | engine.describe()
        return Run(scenario, "measured", records, blocks, about)


def model_facts(loaded: LoadedModel) -> ModelFacts:
    """The executor's own facts in the profile's form."""
    shape = loaded.shape
    return ModelFacts(
        name=loaded.name,
        digest=loaded.digest,
        dtype=loaded.dtype_name,
        num_layers=shape.num_layers,
        num_q_heads=shape.num_q_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        num_parameters=shape.num_parameters,
        max_model_len=shape.max_model_len,
        dtype_bytes=loaded.dtype_bytes,
    )

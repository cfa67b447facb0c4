"""The measured world: the executor on a real device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from ..executor import DeviceBackend, Engine, OutOfMemory, SamplingParams, load_model
from ..executor.models import LoadedModel
from ..executor.peaks import device_name, num_threads
from ..scheduler.graph_sizes import capture_sizes
from ..scheduler.request import Request
from ..sim.clock import Clock, WallClock
from ..sim.cost.profile import MemoryFacts, ModelFacts
from .grid import policy_label
from .kv_pool import num_gpu_blocks
from .provenance import provenance
from .replay import check_context
from .run import Run
from .scenario import Scenario
from .world import run_scenario

__all__ = ["Device", "Limits", "OutOfMemory", "model_facts"]


class Limits(NamedTuple):
    """The largest step an engine will be asked for."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


class Device:
    """A model loaded on a device; measures scenarios that ask for it, one after the other, each on an empty cache.

    On a CUDA device the engine is kept from one scenario to the next as long as it is large enough: capturing its
    graphs takes longer than many a measurement.
    """

    def __init__(
        self, model: str, *, dtype: str = "float32", device: str = "cpu", threads: int | None = None, seed: int = 0
    ) -> None:
        self.loaded = load_model(model, device=device, dtype=dtype, seed=seed)
        self.facts = model_facts(self.loaded)
        self._threads = threads
        self._kept: tuple[Engine, Limits] | None = None

    @classmethod
    def of(cls, scenario: Scenario) -> Device:
        """The device and model that ``scenario`` asks for."""
        s = scenario
        return cls(s.model, dtype=s.dtype, device=s.device, threads=s.threads, seed=s.seed)

    def engine(self, num_gpu_blocks: int, block_size: int, seed: int = 0, limits: Limits | None = None) -> Engine:
        """An engine with an empty KV cache of this size; with ``limits``, decode steps up to them are captured."""
        if self.loaded.device != "cuda" or limits is None:
            return self._new_engine(num_gpu_blocks, block_size, seed, None)
        if self._kept is not None:
            engine, room = self._kept
            same_pool = (engine.cache.num_blocks, engine.cache.block_size) == (num_gpu_blocks, block_size)
            if same_pool and all(asked <= had for asked, had in zip(limits, room, strict=True)):
                engine.reset(seed)
                return engine
            self._kept = None  # its memory is needed
            del engine
        engine = self._new_engine(num_gpu_blocks, block_size, seed, limits)
        self._kept = (engine, limits)
        return engine

    def _new_engine(self, num_gpu_blocks: int, block_size: int, seed: int, limits: Limits | None) -> Engine:
        sizes = capture_sizes(limits.max_num_seqs, limits.max_num_batched_tokens) if limits else ()
        return Engine(
            self.loaded,
            num_gpu_blocks=num_gpu_blocks,
            block_size=block_size,
            seed=seed,
            threads=self._threads,
            capture_sizes=sizes,
            max_model_len=limits.max_model_len if limits else None,
        )

    def memory(self, limits: Limits, block_size: int, gpu_memory_utilization: float) -> MemoryFacts:
        """Where a CUDA device's memory goes at these limits. Raises ``OutOfMemory`` if no KV block is left."""
        from ..executor.memory import block_bytes, measure_memory

        found = measure_memory(
            self.loaded, max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens
        )
        return MemoryFacts(
            total_bytes=found.total_bytes,
            gpu_memory_utilization=gpu_memory_utilization,
            weight_bytes=found.weight_bytes,
            activation_peak_bytes=found.activation_peak_bytes,
            other_bytes=found.other_bytes,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            num_gpu_blocks=found.num_gpu_blocks(block_bytes(self.loaded, block_size), gpu_memory_utilization),
        )

    def measure(self, scenario: Scenario, *, wall_clock: bool = False) -> Run:
        """Run ``scenario`` on the device. Idle time is skipped unless ``wall_clock`` replays arrivals in real time."""
        check_context(scenario, self.facts)
        blocks = num_gpu_blocks(scenario, self.facts)
        limits = Limits(scenario.max_num_seqs, scenario.max_num_batched_tokens, scenario.max_model_len)
        engine = self.engine(blocks, scenario.block_size, scenario.seed, limits)
        engine.sampling = sampling_of(scenario)
        if self.loaded.device == "cuda" and scenario.preemption_mode == "swap":
            engine.cache.reserve_host(scenario.num_cpu_blocks)  # pinning memory takes long, so not while measuring
        backend = DeviceBackend(engine)
        clock: Clock = WallClock(strict=False) if wall_clock else Clock()
        records = run_scenario(scenario, blocks, backend, host_clock=time.perf_counter, clock=clock)
        about = self.describe() | {"policy": policy_label(scenario.policy)}
        return Run(scenario, "measured", records, blocks, about)

    def describe(self) -> dict[str, str]:
        """Where its measurements come from."""
        return provenance("torch", "transformers", "numba", "triton") | {
            "device": device_name(self.loaded.device),
            "threads": str(num_threads()),
            "model_digest": self.loaded.digest,
        }


def sampling_of(scenario: Scenario) -> Callable[[Request], SamplingParams] | None:
    """How each request samples, with a seed of its own; None for greedily."""
    if scenario.temperature == 0:
        return None
    s = scenario

    def params(request: Request) -> SamplingParams:
        return SamplingParams(s.temperature, s.top_k, s.top_p, seed=(s.seed << 32) + request.index)

    return params


def model_facts(loaded: LoadedModel) -> ModelFacts:
    """The executor's own facts in the profile's form."""
    shape = loaded.shape
    return ModelFacts(
        name=loaded.name,
        digest=loaded.digest,
        dtype=loaded.dtype,
        num_layers=shape.num_layers,
        num_q_heads=shape.num_q_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        num_parameters=shape.num_parameters,
        max_model_len=shape.max_model_len,
        dtype_bytes=loaded.model.dtype.itemsize,
        intermediate_size=shape.intermediate_size,
        gated_mlp=shape.gated_mlp,
    )

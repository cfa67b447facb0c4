"""The measured world: the executor on a real device."""

from __future__ import annotations

import time

from ..executor import DeviceBackend, Engine, load_model
from ..executor.models import LoadedModel
from ..executor.peaks import device_name, num_threads
from ..sim.clock import Clock, WallClock
from ..sim.cost.profile import ModelFacts
from .grid import policy_label
from .kv_pool import num_gpu_blocks
from .provenance import provenance
from .replay import check_context
from .run import Run
from .scenario import Scenario
from .world import run_scenario


class Device:
    """A model loaded on a device; measures scenarios that ask for it, one after the other, each on an empty cache."""

    def __init__(
        self, model: str, *, dtype: str = "float32", device: str = "cpu", threads: int | None = None, seed: int = 0
    ) -> None:
        self.loaded = load_model(model, device=device, dtype=dtype, seed=seed)
        self.facts = model_facts(self.loaded)
        self._threads = threads

    @classmethod
    def of(cls, scenario: Scenario) -> Device:
        """The device and model that ``scenario`` asks for."""
        s = scenario
        return cls(s.model, dtype=s.dtype, device=s.device, threads=s.threads, seed=s.seed)

    def engine(self, num_gpu_blocks: int, block_size: int, seed: int = 0) -> Engine:
        """An engine with an empty KV cache of this size."""
        return Engine(
            self.loaded, num_gpu_blocks=num_gpu_blocks, block_size=block_size, seed=seed, threads=self._threads
        )

    def measure(self, scenario: Scenario, *, wall_clock: bool = False) -> Run:
        """Run ``scenario`` on the device. Idle time is skipped unless ``wall_clock`` replays arrivals in real time."""
        check_context(scenario, self.facts)
        blocks = num_gpu_blocks(scenario, self.facts)
        backend = DeviceBackend(self.engine(blocks, scenario.block_size, scenario.seed))
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

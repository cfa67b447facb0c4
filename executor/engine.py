"""The engine: a batch in, one token for everybody who samples out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kernels.cpu_attention import prepare, set_threads
from ..kernels.errors import KernelError
from ..scheduler.batch import Batch
from ..scheduler.request import Request
from ..scheduler.shapes import ForwardShapes, forward_shapes
from .design import design_batch
from .devices import is_out_of_memory
from .errors import DeviceUnavailable, KVCacheTooLarge, OutOfMemory
from .graphs import CudaGraphs
from .kv_cache import PagedKVCache
from .models import LoadedModel
from .runners import CpuRunner, Forward, Runner, Taken
from .sampling import SamplingParams, is_greedy, sample
from .tokens import TokenStore


class Step:
    """A launched batch. On a CUDA device it may still be running: its tokens are then on their way to the host, and
    two events bracket it on the device's own clock.
    """

    __slots__ = ("_began", "_ended", "_host_tokens", "finishing", "positions", "requests", "sampled")

    def __init__(self, device: torch.device) -> None:
        self._began: Any = None
        self._ended: Any = None
        if device.type == "cuda":
            event: Any = torch.cuda.Event
            self._began, self._ended = event(enable_timing=True), event(enable_timing=True)
            self._began.record()
        self.requests: list[Request] = []
        """Who samples."""
        self.positions: list[int] = []
        """Position of the token that each of them gets."""
        self.finishing: Sequence[Request] = ()
        self.sampled = torch.zeros(0, dtype=torch.int64)
        """[samples] token ids, on the device."""

    def launched(self, sampled: Tensor) -> None:
        """Everything is queued; ``sampled`` will hold the tokens."""
        self.sampled = self._host_tokens = sampled
        if self._ended is not None:
            self._host_tokens = torch.empty(sampled.shape, dtype=sampled.dtype, pin_memory=True)
            self._host_tokens.copy_(sampled, non_blocking=True)
            self._ended.record()

    def wait(self) -> list[int]:
        """The tokens, once this step has run; later steps need not have."""
        if self._ended is not None:
            self._ended.synchronize()
        return self._host_tokens.tolist()

    def device_s(self) -> float | None:
        """Seconds from launch (or from the end of the step before) to the end, by the device's clock after ``wait``;
        None where the device is the CPU.
        """
        if self._began is None or self._ended is None:
            return None
        return float(self._began.elapsed_time(self._ended)) / 1e3


class Engine:
    """Runs batches on a model and its paged KV cache. A request ends when the scheduler says so; how its tokens are
    chosen is what ``sampling`` says of it (greedily, if nothing is given).

    Steps are finished in the order in which they were launched; one may be launched while another is not finished.
    ``threads`` sets the CPU threads of the whole process (default: as many as torch has). On a CUDA device decode
    steps with contexts up to ``max_model_len`` are replayed from graphs, captured at ``capture_sizes``; a CPU has none.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        num_gpu_blocks: int,
        block_size: int,
        seed: int = 0,
        threads: int | None = None,
        sampling: Callable[[Request], SamplingParams] | None = None,
        capture_sizes: tuple[int, ...] = (),
        max_model_len: int | None = None,
    ) -> None:
        if num_gpu_blocks < 2 or block_size < 1:
            raise KVCacheTooLarge(
                f"A KV cache of {num_gpu_blocks} blocks of {block_size} tokens holds nothing: "
                f"at least 2 blocks (block 0 stays empty) of 1 token are needed."
            )
        if loaded.device == "cpu":
            set_threads(threads or torch.get_num_threads())
        self.loaded = loaded
        self.device = torch.device(loaded.device)
        self.cache = PagedKVCache(num_gpu_blocks, block_size, loaded.shape, loaded.device, loaded.model.dtype)
        self.tokens = TokenStore(loaded.shape.vocab_size, seed)
        self.sampling = sampling
        self._in_flight: deque[Step] = deque()
        self.capture_sizes = capture_sizes if loaded.device == "cuda" else ()
        self._runner = self._make_runner(capture_sizes, max_model_len or loaded.shape.max_model_len)
        with _at_start(self):
            self._warm_up()

    def run(self, batch: Batch) -> dict[str, int]:
        """Forward and sampling. Gives the token of everybody who gets one, by request id."""
        return self.finish(self.launch(batch))

    def launch(self, batch: Batch) -> Step:
        """Start ``batch``: on a CUDA device this returns before it has run. Raises ``OutOfMemory``."""
        step = Step(self.device)
        self.cache.swap_out(batch.copies_out)
        self.cache.swap_in(batch.copies_in)
        shapes = forward_shapes(batch, self.cache.block_size, self.tokens.ids, padding=True)
        step.requests = [shapes.requests[seq] for seq in shapes.sample_seqs.tolist()]
        step.positions = shapes.seq_lens[shapes.sample_seqs].tolist()
        step.finishing = batch.finishing
        try:
            step.launched(self._tokens_of(shapes, step))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise OutOfMemory(_out_of_memory(self, shapes)) from error
            raise
        self._in_flight.append(step)
        return step

    def finish(self, step: Step) -> dict[str, int]:
        """Wait for ``step``, the oldest launched; its tokens by request id."""
        tokens = step.wait()
        self._in_flight.remove(step)
        for request, position, token in zip(step.requests, step.positions, tokens, strict=True):
            self.tokens.record(request, position, token)
        for request in step.finishing:
            self.tokens.release(request)
        return {request.request_id: token for request, token in zip(step.requests, tokens, strict=True)}

    def outputs(self, request_id: str) -> list[int]:
        """Every token that ``request_id`` has been given so far."""
        return self.tokens.outputs(request_id)

    def reset(self, seed: int) -> None:
        """Forget every request, as a new engine would; captured graphs and compiled kernels stay."""
        self._in_flight.clear()
        self.tokens = TokenStore(self.loaded.shape.vocab_size, seed)

    def _make_runner(self, sizes: tuple[int, ...], max_model_len: int) -> Runner:
        if self.device.type == "cpu":
            return CpuRunner(self.loaded, self.cache)
        from .cuda_attention import TritonPagedBatch
        from .cuda_runner import CudaRunner, GraphPlan

        return CudaRunner(
            self.loaded,
            self.cache,
            num_processors=torch.cuda.get_device_properties(self.device).multi_processor_count,
            graphs=GraphPlan(sizes, max_model_len) if sizes else None,
            attention=TritonPagedBatch,
            capture=CudaGraphs(),
        )

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Compile, load, capture and initialise now what the first steps would otherwise be charged with."""
        if self.device.type == "cpu":
            prepare()
        num_blocks, block_size = self.cache.num_blocks, self.cache.block_size
        if num_blocks > 4:
            batch = design_batch([1], [(0, 2)], block_size=block_size, num_gpu_blocks=num_blocks)
            self._forward(forward_shapes(batch, block_size, lambda _, start, stop: np.zeros(stop - start, np.int64)))
        self._runner.capture_all()

    @torch.inference_mode()
    def _tokens_of(self, shapes: ForwardShapes, step: Step) -> Tensor:
        if not shapes.input_tokens.size:
            return torch.zeros(0, dtype=torch.int64, device=self.device)
        forward = self._forward(shapes)
        params = [self.sampling(request) for request in step.requests] if self.sampling else []
        if forward.greedy is not None and is_greedy(params):
            return forward.greedy
        return sample(forward.logits, params, step.positions)

    @torch.inference_mode()
    def _forward(self, shapes: ForwardShapes) -> Forward:
        return self._runner.forward(shapes, self._tokens_in_flight(shapes) if self._in_flight else None)

    def _tokens_in_flight(self, shapes: ForwardShapes) -> Taken | None:
        """The inputs of decodes that a launched, unfinished step is producing: they are taken on the device."""
        n = shapes.num_decode_rows
        known: dict[tuple[str, int], int] = {}
        for step in self._in_flight:
            for request, position in zip(step.requests, step.positions, strict=True):
                known[request.request_id, position] = len(known)
        decodes = zip(shapes.requests[:n], shapes.positions[:n].tolist(), strict=True)
        index = np.array([known.get((request.request_id, at), -1) for request, at in decodes], dtype=np.int64)
        rows = np.flatnonzero(index >= 0)
        if not rows.size:
            return None
        return Taken(rows, index[rows], torch.cat([step.sampled for step in self._in_flight]))


@contextmanager
def _at_start(engine: Engine) -> Iterator[None]:
    """Say what took the memory, or that the kernels cannot be compiled, in one sentence."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(_out_of_memory(engine, None)) from error
    except KernelError as error:
        raise DeviceUnavailable(str(error)) from error


def _out_of_memory(engine: Engine, shapes: ForwardShapes | None) -> str:
    """What took the memory, and which knob to turn."""
    weights = sum(weight.nbytes for weight in engine.loaded.model.parameters())
    what = "the first step" if shapes is None else f"a step of {shapes.input_tokens.size} tokens"
    return (
        f"The memory of {engine.loaded.device} ran out in {what}: the weights take {weights / 1e9:.2f} GB and "
        f"{engine.cache.num_blocks} KV blocks {engine.cache.num_bytes / 1e9:.2f} GB; lower num_gpu_blocks, or "
        f"max_num_batched_tokens, which decides how large a step is."
    )

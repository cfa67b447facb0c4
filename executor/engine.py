"""The engine: a batch in, one greedy token for everybody who samples out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kernels.cpu_attention import prepare, set_threads
from ..scheduler.batch import Batch
from ..scheduler.request import Request
from ..scheduler.shapes import ForwardShapes, forward_shapes
from .attention import CpuPagedBatch, PagedAttention
from .design import design_batch
from .errors import KVCacheTooLarge
from .kv_cache import PagedKVCache
from .models import LoadedModel
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
    """Runs batches on a model and its paged KV cache. Sampling is greedy; a request ends when the scheduler says so.

    Steps are finished in the order in which they were launched; one may be launched while another is not finished.
    ``threads`` sets the CPU threads of the whole process (default: as many as torch has).
    """

    def __init__(
        self, loaded: LoadedModel, *, num_gpu_blocks: int, block_size: int, seed: int = 0, threads: int | None = None
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
        self._in_flight: deque[Step] = deque()
        if self.device.type == "cuda":
            self._num_processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self._warm_up()

    def run(self, batch: Batch) -> dict[str, int]:
        """Forward and sampling. Gives the token of everybody who gets one, by request id."""
        return self.finish(self.launch(batch))

    def launch(self, batch: Batch) -> Step:
        """Start ``batch``: on a CUDA device this returns before it has run."""
        step = Step(self.device)
        self.cache.swap_out(batch.copies_out)
        self.cache.swap_in(batch.copies_in)
        shapes = forward_shapes(batch, self.cache.block_size, self.tokens.ids, padding=True)
        step.requests = [shapes.requests[seq] for seq in shapes.sample_seqs.tolist()]
        step.positions = shapes.seq_lens[shapes.sample_seqs].tolist()
        step.finishing = batch.finishing
        step.launched(self._forward(shapes))
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

    def _warm_up(self) -> None:
        """Compile, load and initialise now what the first steps would otherwise be charged with."""
        if self.device.type == "cpu":
            prepare()
        num_blocks, block_size = self.cache.num_blocks, self.cache.block_size
        if num_blocks > 4:
            batch = design_batch([1], [(0, 2)], block_size=block_size, num_gpu_blocks=num_blocks)
            self._forward(forward_shapes(batch, block_size, lambda _, start, stop: np.zeros(stop - start, np.int64)))

    @torch.inference_mode()
    def _forward(self, shapes: ForwardShapes) -> Tensor:
        if not shapes.input_tokens.size:
            return torch.zeros(0, dtype=torch.int64, device=self.device)
        input_ids = torch.from_numpy(shapes.input_tokens).to(self.device)
        self._take_tokens_in_flight(input_ids, shapes)
        logits = self.loaded.model(
            input_ids=input_ids[None],
            position_ids=torch.from_numpy(shapes.positions).to(self.device)[None],
            use_cache=False,
            logits_to_keep=torch.from_numpy(shapes.sample_rows).to(self.device),
            paged=self._attention(shapes),
        ).logits[0]
        return _argmax(logits)

    def _attention(self, shapes: ForwardShapes) -> PagedAttention:
        if self.device.type == "cpu":
            return CpuPagedBatch(self.cache, shapes)
        from .cuda_attention import TritonPagedBatch

        return TritonPagedBatch(self.cache, shapes, self.device, self._num_processors)

    def _take_tokens_in_flight(self, input_ids: Tensor, shapes: ForwardShapes) -> None:
        """Decodes whose input a launched, unfinished step is producing take it on the device."""
        n = shapes.num_decode_rows
        for step in self._in_flight:
            wanted = zip(step.requests, step.positions, strict=True)
            rank_of = {(request.request_id, position): rank for rank, (request, position) in enumerate(wanted)}
            decodes = zip(shapes.requests[:n], shapes.positions[:n].tolist(), strict=True)
            ranks = [rank_of.get((request.request_id, position), -1) for request, position in decodes]
            rows = [row for row, rank in enumerate(ranks) if rank >= 0]
            if rows:
                input_ids[rows] = step.sampled[[ranks[row] for row in rows]]


def _argmax(logits: Tensor) -> Tensor:
    """[rows] the first largest of each row. numpy's is ten times as fast on the CPU, but knows no bfloat16."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(np.argmax(logits.numpy(), axis=-1))
    return logits.argmax(dim=-1)

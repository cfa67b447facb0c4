"""Static batching."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING

from ..errors import InfeasibleBatch
from .base import Policy

if TYPE_CHECKING:
    from ..request import Request
    from ..step import Step


class StaticBatch(Policy):
    """A batch is what waits when it starts, padded to its longest prompt; nobody joins until all have finished
    (Hugging Face ``generate`` in a loop).

    Simple, and wasteful in two ways that both worlds pay for: slots that pad short prompts, and rows that have
    finished and are computed on until the last one has. Prompts are padded on the right, so that a row's pad tokens
    cost the attention of a padded causal kernel; the padded *columns* of the KV cache are not read by decodes.
    """

    name = "static_batch"
    keeps_finished_rows = True

    def __init__(self) -> None:
        self._idle_steps: dict[str, int] = {}

    def schedule(self, step: Step) -> None:
        """Go on with the batch, or start the next one."""
        if step.num_running:
            self._continue(step)
        elif step.waiting:
            self._start(step)

    def _start(self, step: Step) -> None:
        self._idle_steps = {}
        group = list(islice(step.waiting, step.config.admission_limit_seqs))
        longest = max(request.num_tokens for request in group)
        _check_rectangle(step, len(group), longest)
        step.threshold_tokens = 0  # nothing is cut in a rectangle
        admitted = list(takewhile(lambda _: step.admit_next(whole=True), group))  # a watermark may end it
        longest = max(request.num_tokens for request in admitted)
        for request in admitted:
            if request.num_tokens < longest:
                step.pad(request, request.num_tokens, longest - request.num_tokens)

    def _continue(self, step: Step) -> None:
        pads = [(request, self._next_position(request, step)) for request in step.held]
        block_size = step.config.block_size
        needed = step.num_blocks_to_decode + sum(
            position // block_size >= len(request.block_table) for request, position in pads
        )
        if needed > step.num_free_blocks:
            raise InfeasibleBatch(
                f"A static batch of {step.num_running} rows outgrew its {step.config.num_usable_blocks} KV blocks of "
                f"{block_size} tokens: lower max_num_seqs or raise num_gpu_blocks."
            )
        step.advance_running()
        for request, position in pads:
            step.pad(request, position, 1)

    def _next_position(self, request: Request, step: Step) -> int:
        """Where the row of a finished request is computed on; it stays at the end of the model's context."""
        idle = self._idle_steps[request.request_id] = self._idle_steps.get(request.request_id, -1) + 1
        return min(request.num_computed_tokens + idle, step.config.max_model_len - 1)


def _check_rectangle(step: Step, num_rows: int, longest_tokens: int) -> None:
    config = step.config
    if num_rows * longest_tokens > config.max_num_batched_tokens:
        raise InfeasibleBatch(
            f"A static batch of {num_rows} prompts padded to {longest_tokens} tokens is {num_rows * longest_tokens} "
            f"slots, more than max_num_batched_tokens ({config.max_num_batched_tokens}): lower max_num_seqs or raise "
            f"max_num_batched_tokens."
        )
    num_blocks = num_rows * -(-longest_tokens // config.block_size)
    if num_blocks > step.num_free_blocks:
        raise InfeasibleBatch(
            f"A static batch of {num_rows} prompts padded to {longest_tokens} tokens needs {num_blocks} KV blocks, "
            f"but only {step.num_free_blocks} are free: lower max_num_seqs or raise num_gpu_blocks."
        )

"""Token counts for which a server captures CUDA graphs, and what a step is padded to: one rule for both worlds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[int, ...]:
    """The default capture sizes of vLLM: top = min(2 · max_num_seqs, 512, budget); 1, 2, 4, by 8 below 256, by 16 up to
    the top, and either knob itself where it is not above the top. Source: vLLM 0.33 ``CompilationConfig`` (optimisation
    level 2); the rule is the same in 0.19. Devices of compute capability 10 go on to 1,024, which is not modelled.
    """
    top = min(2 * max_num_seqs, 512, max_num_batched_tokens)
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, top + 1, 16), max_num_seqs, max_num_batched_tokens}
    return tuple(sorted(size for size in sizes if size <= top))


def padded_size(num_tokens: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the ascending ``sizes`` that holds ``num_tokens``; None where there is none."""
    at = bisect_left(sizes, num_tokens)
    return sizes[at] if num_tokens > 0 and at < len(sizes) else None

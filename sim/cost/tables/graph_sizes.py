"""Token counts for which a server captured CUDA graphs, and what a step is padded to."""

from __future__ import annotations

from bisect import bisect_left


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[int, ...]:
    """The default capture sizes of vLLM: top = min(2 · max_num_seqs, 512, budget); 1, 2, 4, by 8 below 256, by 16 up to
    the top, and either knob itself where it is not above the top. Source: vLLM 0.33 ``CompilationConfig``; the rule is
    the same in 0.19. Devices of compute capability 10 go on to 1,024, which is not modelled.
    """
    top = min(2 * max_num_seqs, 512, max_num_batched_tokens)
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, top + 1, 16), max_num_seqs, max_num_batched_tokens}
    return tuple(sorted(size for size in sizes if size <= top))


def padded(num_tokens: int, sizes: tuple[int, ...]) -> int:
    """Tokens a step of ``num_tokens`` computes: the next captured size, or itself above the last."""
    place = bisect_left(sizes, num_tokens)
    return sizes[place] if place < len(sizes) else num_tokens

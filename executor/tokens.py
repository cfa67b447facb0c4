"""From token identities to token ids: prompts by seed, outputs as the model really produced them."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ..scheduler.request import Request, RequestStatus

IntArray = NDArray[np.int64]

OUTPUT_STREAM = "out:"
_INITIAL_CAPACITY = 64
_MIN_CHECKED = 64


class TokenStore:
    """Knows the id of every token of every request.

    A token ``(stream, offset)`` of a trace gets an id from the seed, the same wherever it occurs. In a stream
    ``out:<request>`` it is what that request produced; a token not produced (yet, or ever) falls back on the seed.
    A prompt is made once, when its first token is asked for: what a request reads does not change under it. It is
    dropped when the request finishes or is aborted; outputs stay, since a later prompt may name them.
    """

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._prompts: dict[str, tuple[Request, IntArray]] = {}
        self._check_at = _MIN_CHECKED
        self._outputs: dict[str, IntArray] = {}
        self._num_outputs: dict[str, int] = {}

    def ids(self, request: Request, start: int, stop: int) -> IntArray:
        """Ids of the tokens at positions ``start … stop − 1`` of ``request``."""
        prompt_len = request.num_prompt_tokens
        if start >= prompt_len:
            return self._output_ids(request.request_id, start - prompt_len, stop - prompt_len)
        known = self._prompts.get(request.request_id)
        prompt = self._remember_prompt(request) if known is None else known[1]
        if stop <= prompt_len:
            return prompt[start:stop]
        return np.concatenate((prompt[start:], self._output_ids(request.request_id, 0, stop - prompt_len)))

    @property
    def num_prompts(self) -> int:
        """Prompts kept."""
        return len(self._prompts)

    def record(self, request: Request, position: int, token: int) -> None:
        """The model gave ``token`` for ``position`` of ``request``. Giving it again overwrites it."""
        request_id, index = request.request_id, position - request.num_prompt_tokens
        outputs = self._outputs.get(request_id)
        if outputs is None or index >= outputs.size:
            outputs = self._grow(request_id, index)
        outputs[index] = token
        self._num_outputs[request_id] = max(self._num_outputs[request_id], index + 1)

    def release(self, request: Request) -> None:
        """``request`` is finished: its prompt is not needed again, its outputs may be (by a later turn)."""
        self._prompts.pop(request.request_id, None)

    def _remember_prompt(self, request: Request) -> IntArray:
        """Nobody tells the device of an abort, so the aborted are looked for whenever the prompts have doubled."""
        if len(self._prompts) >= self._check_at:
            ended = [name for name, (asked, _) in self._prompts.items() if asked.status == RequestStatus.ABORTED]
            for name in ended:
                del self._prompts[name]
            self._check_at = max(_MIN_CHECKED, 2 * len(self._prompts))
        prompt = self._make_prompt(request)
        self._prompts[request.request_id] = (request, prompt)
        return prompt

    def outputs(self, request_id: str) -> list[int]:
        """What ``request_id`` has produced so far."""
        return [int(token) for token in self._produced(request_id)]

    def _produced(self, request_id: str) -> IntArray:
        outputs = self._outputs.get(request_id)
        return np.zeros(0, dtype=np.int64) if outputs is None else outputs[: self._num_outputs[request_id]]

    def _grow(self, request_id: str, index: int) -> IntArray:
        produced = self._produced(request_id)
        outputs = np.zeros(max(_INITIAL_CAPACITY, 2 * index), dtype=np.int64)
        outputs[: produced.size] = produced
        self._outputs[request_id] = outputs
        self._num_outputs.setdefault(request_id, 0)
        return outputs

    def _output_ids(self, request_id: str, start: int, stop: int) -> IntArray:
        if stop <= self._num_outputs.get(request_id, 0):
            return self._outputs[request_id][start:stop]
        known = self._produced(request_id)[start:stop]
        stream = OUTPUT_STREAM + request_id
        return np.concatenate((known, self._seeded_ids(stream, start + known.size, stop)))

    def _make_prompt(self, request: Request) -> IntArray:
        parts = [self._segment_ids(stream, start, start + length) for stream, start, length in request.prompt]
        return np.concatenate(parts)

    def _segment_ids(self, stream: str, start: int, stop: int) -> IntArray:
        if stream.startswith(OUTPUT_STREAM):
            return self._output_ids(stream.removeprefix(OUTPUT_STREAM), start, stop)
        return self._seeded_ids(stream, start, stop)

    def _seeded_ids(self, stream: str, start: int, stop: int) -> IntArray:
        """A hash of (seed, stream, offset), bounded by the vocabulary: the finaliser of splitmix64 over a counter."""
        key = blake2b(stream.encode(), digest_size=8, salt=self._seed.to_bytes(16, "little", signed=True)).digest()
        x = np.arange(start, stop, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(int.from_bytes(key, "little"))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        return (x % np.uint64(self._vocab_size)).astype(np.int64)

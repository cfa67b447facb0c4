"""What the KV cache would hold: every slot's token, by identity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..scheduler import Batch, Request

Token = tuple[str, int]
"""(stream, offset): two tokens are the same iff these are."""


def identities(request: Request, num_tokens: int) -> list[Token]:
    """What the request's first ``num_tokens`` tokens are: its prompt's, then its own outputs."""
    segments = (*request.prompt, (f"out:{request.request_id}", 0, num_tokens))
    return [(stream, start + i) for stream, start, length in segments for i in range(length)][:num_tokens]


@dataclass(frozen=True, slots=True)
class Promised:
    """What the prefix cache believes of a slot that nobody has computed, and that therefore may be read as if it were.

    A request is served, the cache learns of the blocks that the step will fill, and then the same step takes its blocks
    for somebody else: it is not computed, but the cache goes on finding what it was to write. vLLM does so wherever the
    victim is not the last of the running list, and our scheduler decides as vLLM does: the fault is no policy's.
    Nothing else may be read that was not written: not a block that the cache learnt of in an earlier step, nor another
    token than the promised one, nor the slot once it is written or its block copied over.
    """

    token: Token


Slots = dict[int, Token | Promised | None]


class Contents:
    """Device and host slots, written as a worker would: copies first, then every row, and only then reads."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._device: Slots = {}
        self._host: Slots = {}
        self._promised: dict[int, Promised] = {}
        """Of the step that is being formed."""

    def run(self, batch: Batch) -> str | None:
        """Run ``batch``. In words, the first row that writes where another does, or reads what is not its own past;
        None if there is none.
        """
        self._copy(batch)
        writers: dict[int, Request] = {}
        rows = [(row.request, row.start, row.num_tokens, row.block_table) for row in batch.order()]
        pads = [(chunk.request, chunk.start, chunk.num_tokens, chunk.block_table) for chunk in batch.padding]
        for request, start, num_tokens, table in rows + pads:
            if len(table) * self._block_size < start + num_tokens:
                return f"request {request.request_id!r} has {len(table)} blocks for {start + num_tokens} tokens."
            for slot in self._slots(table, start, start + num_tokens):
                other = writers.setdefault(slot, request)
                if other is not request:
                    return f"requests {request.request_id!r} and {other.request_id!r} both write slot {slot}."
                self._device[slot] = None
        for request, start, num_tokens, table in rows:
            self.write(request, start, start + num_tokens, table)
        return self._first_wrong_read(batch)

    def write(self, request: Request, start: int, stop: int, table: list[int]) -> None:
        """Tokens ``start`` to ``stop − 1`` of ``request`` are computed."""
        tokens = identities(request, stop)[start:]
        self._device.update(zip(self._slots(table, start, stop), tokens, strict=True))

    def promise(self, request: Request, start: int, stop: int) -> None:
        """When the next batch has run, the cache believes that tokens ``start`` to ``stop − 1`` of ``request`` are in
        its blocks: see ``Promised``.
        """
        tokens = map(Promised, identities(request, stop)[start:])
        self._promised.update(zip(self._slots(request.block_table, start, stop), tokens, strict=True))

    def _copy(self, batch: Batch) -> None:
        for device, host in batch.copies_out:
            self._move(self._device, device, self._host, host)
        self._device.update(self._promised)  # whoever was given such a block afterwards copies or writes over it
        self._promised.clear()
        for device, host in batch.copies_in:
            self._move(self._host, host, self._device, device)

    def _move(self, source: Slots, block: int, target: Slots, to: int) -> None:
        for i in range(self._block_size):
            target[to * self._block_size + i] = source.get(block * self._block_size + i)

    def _first_wrong_read(self, batch: Batch) -> str | None:
        for row in batch.order():
            past = identities(row.request, row.start)
            for slot, token in zip(self._slots(row.block_table, 0, row.start), past, strict=True):
                held = self._device.get(slot)
                if held not in (token, Promised(token)):
                    return (
                        f"request {row.request.request_id!r} reads its token {token} from slot {slot}, which holds "
                        f"{held or 'none'}."
                    )
        return None

    def _slots(self, table: list[int], start: int, stop: int) -> Iterator[int]:
        size = self._block_size
        return (table[position // size] * size + position % size for position in range(start, stop))

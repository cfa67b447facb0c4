"""The KV blocks: who holds which, and in which order free ones are handed out."""

from __future__ import annotations

from .errors import BatchTwinError


class BlockPool:
    """Physical KV blocks 1 … n−1 (0 is the null block), handed out last freed first.

    vLLM puts the unhashed blocks of an ended request to the *front* of its free queue, tail first, so that the
    queue is a stack; here its top is the end of the list.
    """

    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_blocks = num_gpu_blocks - 1
        self._free = list(range(num_gpu_blocks - 1, 0, -1))

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now."""
        return len(self._free)

    def take(self, num_blocks: int) -> list[int]:
        """The next ``num_blocks`` free blocks; the caller has checked that there are enough."""
        if num_blocks == 0:
            return []
        taken = self._free[: -num_blocks - 1 : -1]
        del self._free[-num_blocks:]
        return taken

    def take_one(self) -> int:
        """The next free block."""
        return self._free.pop()

    def give_back(self, table: list[int]) -> None:
        """Return a whole block table; its last block is the next to be handed out."""
        self._free.extend(table)

    def check_integrity(self, tables: list[list[int]]) -> None:
        """Blocks are conserved: each is free or in exactly one of ``tables``.

        Raises ``BatchTwinError`` naming the block otherwise. O(blocks): for tests and for an idle scheduler.
        """
        owners = [0] * (self.num_blocks + 1)
        for block in self._free:
            owners[block] += 1
        for table in tables:
            for block in table:
                owners[block] += 1
        wrong = [block for block in range(1, self.num_blocks + 1) if owners[block] != 1]
        if owners[0] or wrong:
            named = 0 if owners[0] else wrong[0]
            raise BatchTwinError(f"KV block {named} has {owners[named]} owners; free and used blocks must be disjoint.")

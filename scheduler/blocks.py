"""The KV blocks: who holds which, and in which order free ones are handed out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .errors import BatchTwinError


class BlockPool:
    """Physical KV blocks 1 … n−1 (0 is the null block), handed out last freed first.

    vLLM puts the unhashed blocks of an ended request to the *front* of its free queue, tail first, so that the
    queue is a stack; here its top is the end of the list. Without prefix caching nothing is ever found again.
    """

    caches_prefixes = False

    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_blocks = num_gpu_blocks - 1
        self.num_free = self.num_blocks
        """Blocks that can be handed out now, cached ones that nobody holds included."""
        self._free = list(range(num_gpu_blocks - 1, 0, -1))

    def take(self, num_blocks: int) -> list[int]:
        """The next ``num_blocks`` free blocks; the caller has checked that there are enough."""
        taken = self._free[: -num_blocks - 1 : -1]
        self.num_free -= num_blocks
        del self._free[self.num_free :]
        return taken

    def take_one(self) -> int:
        """The next free block."""
        self.num_free -= 1
        return self._free.pop()

    def give_back(self, table: list[int]) -> None:
        """Return a whole block table; its last block is the next to be handed out."""
        self.num_free += len(table)
        self._free.extend(table)

    def check_integrity(self, tables: Sequence[Sequence[int]]) -> None:
        """Blocks are conserved: each is free, or held as often as ``tables`` hold it.

        Raises ``BatchTwinError`` naming the block otherwise. O(blocks): for tests and for an idle scheduler.
        """
        held = self._count(tables)
        free = self._count([self._free])
        if self.num_free != sum(free):
            raise BatchTwinError(f"{self.num_free} KV blocks are said to be free, a walk finds {sum(free)}.")
        for block in range(self.num_blocks + 1):
            if held[block] + free[block] != (block > 0):
                raise BatchTwinError(f"KV block {block} is free {free[block]} times and held {held[block]} times.")

    def _count(self, tables: Sequence[Sequence[int]]) -> list[int]:
        counts = [0] * (self.num_blocks + 1)
        for table in tables:
            for block in table:
                counts[block] += 1
        return counts


class CountedPool:
    """How many blocks are free, and nothing more."""

    caches_prefixes = False

    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_blocks = self.num_free = num_gpu_blocks - 1


class PrefixCachingPool(BlockPool):
    """Blocks that can be found again by the hash of what they hold, as in vLLM.

    A hashed block that nobody holds is free but still findable: such blocks are handed out after all others, least
    recently freed first, and lose their hash only then. A block may be held by several requests; two blocks may
    carry one hash, and the one that got it first is found.
    """

    caches_prefixes = True

    def __init__(self, num_gpu_blocks: int) -> None:
        super().__init__(num_gpu_blocks)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * num_gpu_blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}  # the one that got the hash first
        self._others_of: dict[bytes, list[int]] = {}  # those that got it later, in order

    def take(self, num_blocks: int) -> list[int]:
        """The next ``num_blocks`` free blocks; what they cached is forgotten."""
        return [self.take_one() for _ in range(num_blocks)]

    def take_one(self) -> int:
        """The next free block; what it cached is forgotten."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        self.num_free -= 1
        self._holders[block] = 1
        return block

    def give_back(self, table: list[int]) -> None:
        """Drop one holder of each block, tail first: hashed ones join the end of the queue, others its front."""
        unhashed = []
        for block in reversed(table):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self.num_free += 1
                if block in self._hash_of:
                    self._idle[block] = None
                else:
                    unhashed.append(block)
        self._free.extend(reversed(unhashed))

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks that hold the longest cached prefix of ``hashes``. Nothing is changed by looking."""
        found = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of these nobody holds: they count as free, until they are held."""
        return sum(1 for block in blocks if self._holders[block] == 0)

    def hold(self, blocks: Sequence[int]) -> None:
        """One more holder for each of ``blocks``."""
        for block in blocks:
            if self._holders[block] == 0:
                self.num_free -= 1
                del self._idle[block]
            self._holders[block] += 1

    def register(self, block: int, block_hash: bytes) -> None:
        """``block`` holds, or will hold when the step in the making has run, what ``block_hash`` names."""
        if block not in self._hash_of:
            self._hash_of[block] = block_hash
            if self._block_of.setdefault(block_hash, block) != block:
                self._others_of.setdefault(block_hash, []).append(block)

    def check_integrity(self, tables: Sequence[Sequence[int]]) -> None:
        """Every reference is counted; free and held blocks are disjoint; both hash maps agree."""
        held = self._count(tables)
        free = self._count([self._free, list(self._idle)])
        if self.num_free != sum(free):
            raise BatchTwinError(f"{self.num_free} KV blocks are said to be free, a walk finds {sum(free)}.")
        for block in range(1, self.num_blocks + 1):
            if held[block] != self._holders[block] or free[block] != (held[block] == 0):
                raise BatchTwinError(
                    f"KV block {block} is in {held[block]} tables, counted {self._holders[block]} times, and free "
                    f"{free[block]} times."
                )
        named = {block: name for name, block in self._block_of.items()}
        named |= {block: name for name, blocks in self._others_of.items() for block in blocks}
        if named != self._hash_of or any(block not in self._hash_of for block in self._idle) or held[0] + free[0]:
            raise BatchTwinError("The prefix cache's two maps disagree, or the null block is in use.")

    def _forget(self, block: int) -> None:
        name = self._hash_of.pop(block)
        others = self._others_of.get(name)
        if others is None:
            del self._block_of[name]
            return
        if self._block_of[name] == block:
            self._block_of[name] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._others_of[name]

"""The KV blocks: who holds which, and in which order free ones are handed out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

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
    """Blocks that can be found again by the name of what they hold, as in vLLM.

    A named block that nobody holds is free but still findable: such blocks are handed out after all others, least
    recently freed first, and lose their name only then. A block may be held by several requests; two blocks may
    carry one name, and the one that got it first is found.
    """

    caches_prefixes = True

    def __init__(self, num_gpu_blocks: int) -> None:
        super().__init__(num_gpu_blocks)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._more_holders: dict[int, int] = {}  # of blocks held more than once: how many beyond the first
        self._name_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}  # the one that got the name first
        self._others_of: dict[int, list[int]] = {}  # those that got it later, in order

    def take(self, num_blocks: int) -> list[int]:
        """The next ``num_blocks`` free blocks; what they cached is forgotten."""
        if num_blocks <= len(self._free):
            taken = self._free[: -num_blocks - 1 : -1]
            del self._free[len(self._free) - num_blocks :]
        else:
            taken = self._free[::-1]
            self._free.clear()
            oldest = self._idle.popitem
            idle = [oldest(last=False)[0] for _ in range(num_blocks - len(taken))]
            self._forget(idle)
            taken += idle
        self.num_free -= num_blocks
        return taken

    def take_one(self) -> int:
        """The next free block; what it cached is forgotten."""
        return self.take(1)[0]

    def give_back(self, table: list[int]) -> None:
        """Drop one holder of each block, tail first: named ones join the end of the queue, others its front."""
        name_of, idle, unnamed = self._name_of, self._idle, []
        kept = 0
        for block in reversed(table):
            if self._more_holders and block in self._more_holders:
                self._drop_holder(block)
                kept += 1
            elif block in name_of:
                idle[block] = None
            else:
                unnamed.append(block)
        self.num_free += len(table) - kept
        unnamed.reverse()
        self._free.extend(unnamed)

    def find(self, names: Sequence[int], num_blocks: int) -> list[int]:
        """Blocks that hold the longest cached prefix of the first ``num_blocks`` names. Nothing is changed by looking."""
        found: list[int] = []
        for name in islice(names, num_blocks):
            block = self._block_of.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of these nobody holds: they count as free, until they are held."""
        return sum(1 for block in blocks if block in self._idle)

    def hold(self, blocks: Sequence[int]) -> None:
        """One more holder for each of ``blocks``."""
        for block in blocks:
            if block in self._idle:
                del self._idle[block]
                self.num_free -= 1
            else:
                self._more_holders[block] = self._more_holders.get(block, 0) + 1

    def register(self, blocks: Sequence[int], names: Sequence[int]) -> None:
        """Each of ``blocks`` holds, or will hold when the step in the making has run, what its name names."""
        if self._name_of.keys().isdisjoint(blocks) and self._block_of.keys().isdisjoint(names):
            self._name_of.update(zip(blocks, names, strict=True))
            self._block_of.update(zip(names, blocks, strict=True))
            return
        for block, name in zip(blocks, names, strict=True):
            if block not in self._name_of:
                self._name_of[block] = name
                if self._block_of.setdefault(name, block) != block:
                    self._others_of.setdefault(name, []).append(block)

    def check_integrity(self, tables: Sequence[Sequence[int]]) -> None:
        """Every reference is counted; free and held blocks are disjoint; both maps of names agree."""
        held = self._count(tables)
        free = self._count([self._free, list(self._idle)])
        if self.num_free != sum(free):
            raise BatchTwinError(f"{self.num_free} KV blocks are said to be free, a walk finds {sum(free)}.")
        for block in range(1, self.num_blocks + 1):
            counted = 1 - free[block] + self._more_holders.get(block, 0)
            if held[block] != counted or free[block] != (held[block] == 0):
                raise BatchTwinError(
                    f"KV block {block} is in {held[block]} tables, counted {counted} times, and free {free[block]} times."
                )
        named = {block: name for name, block in self._block_of.items()}
        named |= {block: name for name, blocks in self._others_of.items() for block in blocks}
        if named != self._name_of or any(block not in self._name_of for block in self._idle) or held[0] + free[0]:
            raise BatchTwinError("The prefix cache's two maps disagree, or the null block is in use.")

    def _drop_holder(self, block: int) -> None:
        self._more_holders[block] -= 1
        if not self._more_holders[block]:
            del self._more_holders[block]

    def _forget(self, blocks: Sequence[int]) -> None:
        name_of, block_of, others_of = self._name_of, self._block_of, self._others_of
        for block in blocks:
            name = name_of.pop(block)
            if not others_of or name not in others_of:
                del block_of[name]
                continue
            others = others_of[name]
            if block_of[name] == block:
                block_of[name] = others.pop(0)
            else:
                others.remove(block)
            if not others:
                del others_of[name]

"""The KV blocks: who holds which, and in which order free ones are handed out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
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

    def _count(self, tables: Iterable[Iterable[int]]) -> list[int]:
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

    A named block that nobody holds is idle: free but still findable. Such blocks are handed out after all others, least
    recently freed first, and lose their name only then. A block may be held by several requests; two blocks may
    carry one name, and the one that got it first is found.
    """

    caches_prefixes = True

    def __init__(self, num_gpu_blocks: int) -> None:
        super().__init__(num_gpu_blocks)
        self._idle: deque[int] = deque()  # in the order in which they were freed; entries of ``_stale`` do not count
        self._is_idle = [False] * num_gpu_blocks
        self._stale: dict[int, int] = {}  # of blocks held again: how many of their oldest entries are void
        self._more_holders: dict[int, int] = {}  # of blocks held more than once: how many beyond the first
        self._name_of = [0] * num_gpu_blocks  # 0: none
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
            taken += self._take_idle(num_blocks - len(taken))
        self.num_free -= num_blocks
        return taken

    def take_one(self) -> int:
        """The next free block; what it cached is forgotten."""
        return self.take(1)[0]

    def give_back(self, table: list[int]) -> None:
        """Drop one holder of each block, tail first: named ones join the end of the queue, others its front."""
        if self._more_holders:
            table = [block for block in table if not self._drop_holder(block)]
        name_of, is_idle = self._name_of, self._is_idle
        named = [block for block in reversed(table) if name_of[block]]
        for block in named:
            is_idle[block] = True
        self._idle.extend(named)
        if len(named) < len(table):
            self._free.extend([block for block in table if not name_of[block]])
        self.num_free += len(table)
        if len(self._idle) > 2 * self.num_blocks:
            self._compact()

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
        return sum(self._is_idle[block] for block in blocks)

    def hold(self, blocks: Sequence[int]) -> None:
        """One more holder for each of ``blocks``."""
        for block in blocks:
            if self._is_idle[block]:
                self._is_idle[block] = False
                self._stale[block] = self._stale.get(block, 0) + 1
                self.num_free -= 1
            else:
                self._more_holders[block] = self._more_holders.get(block, 0) + 1

    def register(self, block: int, name: int) -> None:
        """``block`` holds, or will hold when the step in the making has run, what ``name`` names."""
        if not self._name_of[block]:
            self._name_of[block] = name
            if self._block_of.setdefault(name, block) != block:
                self._others_of.setdefault(name, []).append(block)

    def register_all(self, blocks: Sequence[int], names: Sequence[int]) -> None:
        """``register`` each block under its name."""
        name_of = self._name_of
        if any(name_of[block] for block in blocks) or not self._block_of.keys().isdisjoint(names):
            for block, name in zip(blocks, names, strict=True):
                self.register(block, name)
            return
        for block, name in zip(blocks, names, strict=True):
            name_of[block] = name
        self._block_of.update(zip(names, blocks, strict=True))

    def check_integrity(self, tables: Sequence[Sequence[int]]) -> None:
        """Every reference is counted; free and held blocks are disjoint; both maps of names agree."""
        self._compact()
        held = self._count(tables)
        free = self._count([self._free, self._idle])
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
        agree = named == {block: name for block, name in enumerate(self._name_of) if name}
        if not agree or any(block not in named for block in self._idle) or held[0] + free[0]:
            raise BatchTwinError("The prefix cache's two maps disagree, or the null block is in use.")

    def _take_idle(self, num_blocks: int) -> list[int]:
        """The longest idle blocks, without their names."""
        idle, is_idle, stale = self._idle, self._is_idle, self._stale
        name_of, block_of, others_of = self._name_of, self._block_of, self._others_of
        taken: list[int] = []
        while len(taken) < num_blocks:
            block = idle.popleft()
            if stale and block in stale:
                _count_down(stale, block)
                continue
            name = name_of[block]
            if others_of and name in others_of:
                self._forget_one_of(name, block)
            else:
                del block_of[name]
            name_of[block] = 0
            is_idle[block] = False
            taken.append(block)
        return taken

    def _forget_one_of(self, name: int, block: int) -> None:
        others = self._others_of[name]
        if self._block_of[name] == block:
            self._block_of[name] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._others_of[name]

    def _drop_holder(self, block: int) -> bool:
        """Whether somebody else still holds ``block``, which has one holder less."""
        if block not in self._more_holders:
            return False
        _count_down(self._more_holders, block)
        return True

    def _compact(self) -> None:
        """Take void entries out of the queue."""
        entries = list(self._idle)
        self._idle.clear()
        for block in entries:
            if block in self._stale:
                _count_down(self._stale, block)
            else:
                self._idle.append(block)


def _count_down(counts: dict[int, int], block: int) -> None:
    counts[block] -= 1
    if not counts[block]:
        del counts[block]

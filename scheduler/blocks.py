"""The KV blocks: who holds which, and in which order free ones are handed out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile

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


class CachedRun:
    """The blocks that are cached of one run of tokens, by their place in it (0: none)."""

    __slots__ = ("base", "blocks", "num_cached", "others")

    def __init__(self, base: int) -> None:
        self.base = base
        self.blocks: list[int] = []  # the one that came first to each place
        self.others: dict[int, list[int]] = {}  # those that came later, in order
        self.num_cached = 0  # places with a block


class PrefixCachingPool(BlockPool):
    """Blocks that can be found again by what they hold, as in vLLM.

    A cached block that nobody holds is idle: free but still findable. Such blocks are handed out after all others,
    least recently freed first, and are forgotten only then. A block may be held by several requests; two blocks may
    hold the same, and the one that came first is found. What a block holds is told by its run (``hashing.Run``) and
    its place among the blocks that end in that run.
    """

    caches_prefixes = True

    def __init__(self, num_gpu_blocks: int) -> None:
        super().__init__(num_gpu_blocks)
        self._idle: deque[int] = deque()  # in the order in which they were freed; entries of ``_stale`` do not count
        self._is_idle = [False] * num_gpu_blocks
        self._stale: dict[int, int] = {}  # of blocks held again: how many of their oldest entries are void
        self._more_holders: dict[int, int] = {}  # of blocks held more than once: how many beyond the first
        self._runs: dict[int, CachedRun] = {}
        self._run_of: list[CachedRun | None] = [None] * num_gpu_blocks
        self._place_of = [0] * num_gpu_blocks

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
        """Drop one holder of each block, tail first: cached ones join the end of the queue, others its front."""
        if self._more_holders:
            table = [block for block in table if not self._drop_holder(block)]
        run_of, is_idle = self._run_of, self._is_idle
        cached = [block for block in reversed(table) if run_of[block] is not None]
        for block in cached:
            is_idle[block] = True
        self._idle.extend(cached)
        if len(cached) < len(table):
            self._free.extend([block for block in table if run_of[block] is None])
        self.num_free += len(table)
        if len(self._idle) > 2 * self.num_blocks:
            self._compact()

    def find(self, base: int, num_blocks: int) -> list[int]:
        """The cached blocks at the first ``num_blocks`` places of a run, up to the first gap. Nothing is changed."""
        run = self._runs.get(base)
        return [] if run is None else list(takewhile(bool, run.blocks[:num_blocks]))

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

    def register(self, base: int, place: int, blocks: Sequence[int]) -> None:
        """``blocks`` hold, or will hold when the step in the making has run, what is in the run from ``place`` on."""
        run = self._runs.get(base)
        if run is None:
            run = self._runs[base] = CachedRun(base)
        run_of, place_of = self._run_of, self._place_of
        if place != len(run.blocks) or any(map(run_of.__getitem__, blocks)):
            self._register_one_by_one(run, place, blocks)
            return
        for block in blocks:
            run_of[block] = run
            place_of[block] = place
            place += 1
        run.blocks.extend(blocks)
        run.num_cached += len(blocks)

    def check_integrity(self, tables: Sequence[Sequence[int]]) -> None:
        """Every reference is counted; free and held blocks are disjoint; runs and blocks agree."""
        self._compact()
        held = self._count(tables)
        free = self._count([self._free, self._idle])
        if self.num_free != sum(free):
            raise BatchTwinError(f"{self.num_free} KV blocks are said to be free, a walk finds {sum(free)}.")
        for block in range(1, self.num_blocks + 1):
            counted = 1 - free[block] + self._more_holders.get(block, 0)
            if held[block] != counted or free[block] != (held[block] == 0):
                raise BatchTwinError(
                    f"KV block {block} is in {held[block]} tables, counted {counted} times, and free "
                    f"{free[block]} times."
                )
        cached = {
            block: (run, place)
            for run in self._runs.values()
            for place, first in enumerate(run.blocks)
            for block in (first, *run.others.get(place, ()))
            if block
        }
        known = {block: (run, self._place_of[block]) for block, run in enumerate(self._run_of) if run}
        if cached != known or any(block not in known for block in self._idle) or held[0] + free[0]:
            raise BatchTwinError("The prefix cache's runs and blocks disagree, or the null block is in use.")

    def register_next(self, base: int, place: int, block: int) -> None:
        """``register`` one block: what a decode does."""
        run = self._runs.get(base)
        if run is None or place != len(run.blocks) or self._run_of[block] is not None:
            self.register(base, place, (block,))
            return
        self._run_of[block] = run
        self._place_of[block] = place
        run.blocks.append(block)
        run.num_cached += 1

    def _register_one_by_one(self, run: CachedRun, place: int, blocks: Sequence[int]) -> None:
        run.blocks += [0] * (place + len(blocks) - len(run.blocks))
        for block in blocks:
            if self._run_of[block] is None:
                self._run_of[block], self._place_of[block] = run, place
                if run.blocks[place]:
                    run.others.setdefault(place, []).append(block)
                else:
                    run.blocks[place] = block
                    run.num_cached += 1
            place += 1
        if not run.num_cached:
            del self._runs[run.base]

    def _take_idle(self, num_blocks: int) -> list[int]:
        """The longest idle blocks; what they hold is forgotten."""
        is_idle, run_of, stale, oldest = self._is_idle, self._run_of, self._stale, self._idle.popleft
        taken: list[int] = []
        while len(taken) < num_blocks:
            block = oldest()
            if stale and block in stale:
                _count_down(stale, block)
            else:
                taken.append(block)
        for run, group in groupby(taken, key=run_of.__getitem__):  # what was freed together mostly is of one run
            assert run is not None
            blocks = list(group)
            self._forget(run, blocks)
            for block in blocks:
                run_of[block] = None
                is_idle[block] = False
        return taken

    def _forget(self, run: CachedRun, blocks: Sequence[int]) -> None:
        place_of, cached = self._place_of, run.blocks
        if run.others:
            for block in blocks:
                _forget_one_of(run, place_of[block], block)
        else:
            run.num_cached -= len(blocks)
            for block in blocks if run.num_cached else ():
                cached[place_of[block]] = 0
        if not run.num_cached:
            del self._runs[run.base]

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


def _forget_one_of(run: CachedRun, place: int, block: int) -> None:
    others = run.others.get(place)
    if others is None:
        run.blocks[place] = 0
        run.num_cached -= 1
    elif run.blocks[place] == block:
        run.blocks[place] = others.pop(0)
    else:
        others.remove(block)
    if others == []:
        del run.others[place]


def _count_down(counts: dict[int, int], block: int) -> None:
    counts[block] -= 1
    if not counts[block]:
        del counts[block]

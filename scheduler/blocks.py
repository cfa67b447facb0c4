"""The KV blocks: who holds which, and in which order free ones are handed out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

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
    """The blocks that are cached of one run of tokens, by their place in it (0: none).

    Most runs only ever have one holder: then all blocks are held until it retires, and all are idle afterwards. When a
    second one comes the run is shared, and from then on the pool knows of each block whether it is idle.
    """

    __slots__ = ("base", "blocks", "is_retired", "is_shared", "num_cached", "others")

    def __init__(self, base: int) -> None:
        self.base = base
        self.blocks: list[int] = []  # the one that came first to each place
        self.others: dict[int, list[int]] = {}  # those that came later, in order
        self.num_cached = 0  # places with a block
        self.is_shared = False
        self.is_retired = False  # whether the only holder of a run that is not shared has gone


class Stretch(NamedTuple):
    """Blocks that stand one after another in a run, from ``place`` on."""

    run: CachedRun
    place: int
    blocks: list[int]


class PrefixCachingPool(BlockPool):
    """Blocks that can be found again by what they hold, as in vLLM.

    A cached block that nobody holds is idle: free but still findable. Such blocks are handed out after all others,
    least recently freed first, and are forgotten only then. A block may be held by several requests; two blocks may
    hold the same, and the one that came first is found. What a block holds is told by its run (``hashing.Run``) and
    its place among the blocks that end in that run; a request's blocks of one run are handled together.
    """

    caches_prefixes = True

    def __init__(self, num_gpu_blocks: int) -> None:
        super().__init__(num_gpu_blocks)
        # In the order in which they were freed, the last of a stretch first; entries of ``_stale`` do not count.
        self._idle: deque[Stretch] = deque()
        self._num_entries = 0  # blocks in _idle
        self._is_idle = [False] * num_gpu_blocks  # of blocks of shared runs
        self._stale: dict[int, int] = {}  # of blocks held again: how many of their oldest entries are void
        self._more_holders: dict[int, int] = {}  # of blocks held more than once: how many beyond the first
        self._runs: dict[int, CachedRun] = {}

    def take(self, num_blocks: int) -> list[int]:
        """The next ``num_blocks`` free blocks; what they cached is forgotten."""
        if num_blocks <= len(self._free):
            taken = self._free[: -num_blocks - 1 : -1]
            del self._free[len(self._free) - num_blocks :]
        else:
            taken = self._free[::-1]
            self._free.clear()
            self._take_idle(num_blocks, taken)
        self.num_free -= num_blocks
        return taken

    def retire(self, base: int, place: int, blocks: list[int]) -> None:
        """Drop one holder of each of these cached blocks of a run, the last first; those without any join the queue."""
        run = self._runs[base]
        if self._more_holders and not self._more_holders.keys().isdisjoint(blocks):
            for stretch in _without(Stretch(run, place, blocks), self._drop_holder):
                self._add_idle(stretch)
        else:
            self._add_idle(Stretch(run, place, blocks))
        if self._num_entries > 2 * self.num_blocks:
            self._compact()

    def find(self, base: int, num_blocks: int) -> list[int]:
        """The cached blocks at the first ``num_blocks`` places of a run, up to the first gap."""
        run = self._runs.get(base)
        if run is None:
            return []
        if not run.is_shared:
            self._share(run)
        found = run.blocks[:num_blocks]
        return found[: found.index(0)] if 0 in found else found

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
        """``blocks``, none of them cached yet, hold, or will hold when the step in the making has run, what is in the
        run from ``place`` on.
        """
        run = self._runs.get(base)
        if run is None:
            run = self._runs[base] = CachedRun(base)
        elif not run.is_shared and (run.is_retired or place != len(run.blocks)):
            self._share(run)
        if run.is_shared:
            for block in blocks:
                self._is_idle[block] = False
        if place == len(run.blocks):
            run.blocks.extend(blocks)
            run.num_cached += len(blocks)
            return
        run.blocks += [0] * (place + len(blocks) - len(run.blocks))
        for at, block in enumerate(blocks, place):
            if run.blocks[at]:
                run.others.setdefault(at, []).append(block)
            else:
                run.blocks[at] = block
                run.num_cached += 1

    def check_integrity(self, tables: Sequence[Sequence[int]]) -> None:
        """Every reference is counted; free and held blocks are disjoint; what is idle is cached."""
        self._compact()
        held = self._count(tables)
        idle = self._count(stretch.blocks for stretch in self._idle)
        free = [one + other for one, other in zip(self._count([self._free]), idle, strict=True)]
        if self.num_free != sum(free):
            raise BatchTwinError(f"{self.num_free} KV blocks are said to be free, a walk finds {sum(free)}.")
        for block in range(1, self.num_blocks + 1):
            counted = 1 - free[block] + self._more_holders.get(block, 0)
            if held[block] != counted or free[block] != (held[block] == 0):
                raise BatchTwinError(
                    f"KV block {block} is in {held[block]} tables, counted {counted} times, and free "
                    f"{free[block]} times."
                )
        cached = [
            (block, self._is_idle[block] if run.is_shared else run.is_retired)
            for run in self._runs.values()
            for block in (*run.blocks, *chain.from_iterable(run.others.values()))
            if block
        ]
        known = dict(cached)
        wrong = any(is_idle != (idle[block] > 0) for block, is_idle in cached) or len(known) < len(cached)
        if wrong or any(idle[block] and block not in known for block in range(len(idle))) or held[0] + free[0]:
            raise BatchTwinError("The prefix cache's runs and blocks disagree, or the null block is in use.")

    def _share(self, run: CachedRun) -> None:
        run.is_shared = True
        for block in run.blocks:
            self._is_idle[block] = run.is_retired

    def _add_idle(self, stretch: Stretch) -> None:
        if stretch.run.is_shared:
            for block in stretch.blocks:
                self._is_idle[block] = True
        else:
            stretch.run.is_retired = True
        self._idle.append(stretch)
        self._num_entries += len(stretch.blocks)
        self.num_free += len(stretch.blocks)

    def _take_idle(self, num_blocks: int, taken: list[int]) -> None:
        """Fill ``taken`` up to ``num_blocks`` with the longest idle blocks; what they hold is forgotten."""
        while (missing := num_blocks - len(taken)) > 0:
            run, place, blocks = self._idle[0]
            if len(blocks) <= missing:
                self._idle.popleft()
                part = blocks
            else:
                place += len(blocks) - missing
                part = blocks[-missing:]
                del blocks[-missing:]
            self._num_entries -= len(part)
            if self._stale and not self._stale.keys().isdisjoint(part):
                for stretch in _without(Stretch(run, place, part), self._is_void):
                    _forget(stretch)
                    taken += reversed(stretch.blocks)
            else:
                _forget(Stretch(run, place, part))
                taken += reversed(part)
            if not run.num_cached and self._runs.get(run.base) is run:
                del self._runs[run.base]

    def _drop_holder(self, block: int) -> bool:
        """Whether somebody else still holds ``block``, which has one holder less."""
        return _count_down(self._more_holders, block)

    def _is_void(self, block: int) -> bool:
        """Whether the oldest entry of ``block`` in the queue, which is gone now, did not count."""
        return _count_down(self._stale, block)

    def _compact(self) -> None:
        """Take void entries out of the queue."""
        stretches = list(self._idle)
        self._idle.clear()
        for stretch in stretches:
            if self._stale.keys().isdisjoint(stretch.blocks):
                self._idle.append(stretch)
            else:
                self._idle.extend(_without(stretch, self._is_void))
        self._num_entries = sum(len(stretch.blocks) for stretch in self._idle)


def _without(stretch: Stretch, is_gone: Callable[[int], bool]) -> Iterator[Stretch]:
    """What is left of a stretch without the blocks that are gone, in pieces, the last first."""
    run, place, blocks = stretch
    stop = len(blocks)
    for at in range(len(blocks) - 1, -1, -1):
        if is_gone(blocks[at]):
            if at + 1 < stop:
                yield Stretch(run, place + at + 1, blocks[at + 1 : stop])
            stop = at
    if stop:
        yield Stretch(run, place, blocks[:stop])


def _forget(stretch: Stretch) -> None:
    """Nobody finds these blocks any more."""
    run, place, blocks = stretch
    stop = place + len(blocks)
    if run.others or run.blocks[place:stop] != blocks:
        for at, block in enumerate(blocks, place):
            _forget_one_of(run, at, block)
        return
    if stop == len(run.blocks):
        del run.blocks[place:]
    else:
        run.blocks[place:stop] = [0] * len(blocks)
    run.num_cached -= len(blocks)


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


def _count_down(counts: dict[int, int], block: int) -> bool:
    """Whether ``block`` was counted; it is once less now."""
    if block not in counts:
        return False
    counts[block] -= 1
    if not counts[block]:
        del counts[block]
    return True

"""Who holds which KV blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from .blocks import BlockPool, CountedPool, PrefixCachingPool
from .errors import BatchTwinError
from .hashing import runs_of

if TYPE_CHECKING:
    from .cohort import Cohort, Seat
    from .config import SchedulerConfig
    from .request import Request

Copies = list[tuple[int, int]]
"""(device block, host block) one after another."""


class KVCache:
    """Gives requests blocks of the device's pool and takes them back; finds what is cached of a prompt, and swaps to
    the host, where the configuration asks for it. Whoever calls has checked that there are enough free blocks.
    """

    names_blocks = True

    def __init__(self, config: SchedulerConfig, cohort: Cohort) -> None:
        self._config = config
        self._cohort = cohort
        self._block_size = config.block_size
        self.pool = self._make_pool()
        self.host_pool = BlockPool(config.num_cpu_blocks + 1)
        self.has_padded = False
        """Whether a decode may have a block already that it does not need yet."""
        self._host_returns: list[int] = []
        self._caches_prefixes = config.enable_prefix_caching
        self._growing: dict[int, Request] = {}  # who decodes, by the run of its own outputs
        self._served_at = -1  # clock of the step in which everybody who decodes is served
        self._watermark_blocks = int(config.watermark * config.num_gpu_blocks)

    def _make_pool(self) -> BlockPool | CountedPool:
        config = self._config
        return (PrefixCachingPool if config.enable_prefix_caching else BlockPool)(config.num_gpu_blocks)

    # Asking.

    def held(self, request: Request) -> int:
        """Blocks that ``request`` has on the device."""
        return len(request.block_table)

    def find(self, request: Request) -> list[int]:
        """Blocks that hold a cached prefix of ``request``; at least one token is left to compute."""
        if not isinstance(self.pool, PrefixCachingPool) or request.num_computed_tokens:
            return []
        size, most = self._block_size, (request.num_tokens - 1) // self._block_size
        found: list[int] = []
        for start, stop, base in runs_of(request):
            if base in self._growing:
                self.catch_up(self._growing[base])
            num_blocks = min(stop // size, most) - start // size
            if num_blocks > 0:
                hits = self.pool.find(base, num_blocks)
                found += hits
                if len(hits) < num_blocks:
                    break
        return found

    def has_room(self, num_tokens: int, hits: Sequence[int], is_running: bool) -> bool:
        """Whether a request of ``num_tokens`` tokens that finds ``hits`` in the cache may be admitted; ``is_running``
        tells whether anybody is resident, for whom the watermark is kept.
        """
        needed = -(-num_tokens // self._block_size)
        if hits and isinstance(self.pool, PrefixCachingPool):
            needed += self.pool.num_idle(hits) - len(hits)
        if is_running:
            needed += self._watermark_blocks
        return needed <= self.pool.num_free

    def num_to_hand_out(self, crossers: dict[int, Seat]) -> int:
        """Blocks that ``hand_out`` would take."""
        if not self.has_padded:
            return len(crossers)
        return sum(self._cohort.lacks_block(seat) for seat in crossers.values())

    # Giving and taking.

    def admit(self, request: Request, hits: list[int], num_tokens: int) -> Copies:
        """Blocks for the first ``num_tokens`` tokens of ``request``, the cached ``hits`` first. Returns the copies that
        bring back what was swapped out.
        """
        pool = self.pool
        assert not isinstance(pool, CountedPool)
        if hits and isinstance(pool, PrefixCachingPool):
            pool.hold(hits)
            request._computed_tokens = len(hits) * self._block_size
        request.num_registered_blocks = len(hits)
        request.block_table = hits + pool.take(-(-num_tokens // self._block_size) - len(hits))
        if not request.host_table:
            return []
        copies = list(zip(request.block_table, request.host_table, strict=False))
        self._host_returns += request.host_table
        request.host_table = []
        return copies

    def grow(self, request: Request, num_blocks: int) -> None:
        """So many blocks more."""
        assert not isinstance(self.pool, CountedPool)
        request.block_table.extend(self.pool.take(num_blocks))

    def hand_out(self, crossers: dict[int, Seat]) -> None:
        """A block each for decodes whose next token starts one, in running-list order."""
        assert not isinstance(self.pool, CountedPool)
        ranks = sorted(crossers)
        if self.has_padded:
            ranks = [rank for rank in ranks if self._cohort.lacks_block(crossers[rank])]
        for rank, block in zip(ranks, self.pool.take(len(ranks)), strict=True):
            crossers[rank].block_table.append(block)

    def leap(self, num_steps: int) -> list[int]:
        """Blocks for so many steps of the whole cohort, whose clock moves on; returns the free blocks after each."""
        cohort, pool = self._cohort, self.pool
        free = []
        for _ in range(num_steps):
            if crossers := cohort.crossers():
                self.hand_out(crossers)
            cohort.clock += 1
            free.append(pool.num_free)
        return free

    def unseat(self, request: Request) -> None:
        """``request`` is about to leave the cohort, with its blocks."""
        if self._caches_prefixes and self._growing.pop(runs_of(request)[-1].base, None) is not None:
            self.catch_up(request)

    def release(self, request: Request) -> None:
        """Take all blocks of ``request`` back. Batches that hold its old table keep it."""
        pool, table = self.pool, request.block_table
        assert not isinstance(pool, CountedPool)
        if isinstance(pool, PrefixCachingPool):
            if request.seat is not None:
                self.unseat(request)
            num_cached, size = request.num_registered_blocks, self._block_size
            for start, stop, base in reversed(request.runs):
                blocks = table[start // size : min(stop // size, num_cached)]
                if blocks:
                    pool.retire(base, 0, blocks)
            table = table[num_cached:]
        pool.give_back(table)
        request.block_table = []

    # Swapping.

    def swap_out(self, request: Request) -> Copies:
        """Copies to the host of what ``request`` has computed, if the host has room for it."""
        swapped = -(-request.num_computed_tokens // self._block_size)
        if self._config.preemption_mode != "swap" or not 0 < swapped <= self.host_pool.num_free:
            return []
        request.host_table = self.host_pool.take(swapped)
        return list(zip(request.block_table, request.host_table, strict=False))

    def forget_swapped(self, request: Request) -> None:
        """``request`` will not come back: its host blocks are free."""
        self.host_pool.give_back(request.host_table)
        request.host_table = []

    def free_swapped_in(self) -> None:
        """The host blocks whose copies came back in this step are free: only now, for a later copy out of the same step
        must not overwrite what is copied in.
        """
        if self._host_returns:
            self.host_pool.give_back(self._host_returns)
            self._host_returns = []

    # What the prefix cache learns.

    def register(self, request: Request, num_tokens: int) -> None:
        """Let the prefix cache know the full blocks among the first ``num_tokens`` tokens."""
        full = num_tokens // self._block_size
        known = request.num_registered_blocks
        if full > known and isinstance(self.pool, PrefixCachingPool):
            size = self._block_size
            for start, stop, base in runs_of(request):
                first, last = max(known, start // size), min(full, stop // size)
                if first < last:
                    if self._growing.get(base, request) is not request:  # whose outputs are part of this prompt
                        self.catch_up(self._growing[base])
                    self.pool.register(base, first - start // size, request.block_table[first:last])
            request.num_registered_blocks = full

    def seated(self, request: Request) -> None:
        """``request`` decodes from now on. The blocks that it fills with its own outputs are registered when it leaves,
        or before somebody looks for the like or registers it.
        """
        if not self._config.async_scheduling:
            self._growing[runs_of(request)[-1].base] = request

    def all_served(self) -> None:
        """Everybody who decodes is served in this step."""
        self._served_at = self._cohort.clock
        if self._config.async_scheduling:
            fillers = self.fillers()
            for rank in sorted(fillers):
                self.register_decode(fillers[rank].request)

    def catch_up(self, request: Request) -> None:
        """Register what ``request``, which decodes, has filled by now, this step's token included if it is served."""
        self.register(request, request.num_computed_tokens + (self._served_at == self._cohort.clock))

    def fillers(self) -> dict[int, Seat]:
        """Decodes that fill a block in this step or, where the last token is still under way when the step is formed
        (asynchronous scheduling), have filled one in the step before.
        """
        return self._cohort.crossers() if self._config.async_scheduling else self._cohort.fillers()

    def register_decode(self, request: Request) -> None:
        """Register what a decode has filled with its known tokens when this step has run."""
        under_way = 1 if self._config.async_scheduling else 0
        self.register(request, request.num_computed_tokens + 1 - under_way)

    def check_integrity(self, residents: Sequence[Request], waiting: Iterable[Request]) -> None:
        """Blocks are conserved. Raises ``BatchTwinError``. O(blocks)."""
        assert not isinstance(self.pool, CountedPool)
        self.pool.check_integrity([request.block_table for request in residents])
        self.host_pool.check_integrity([request.host_table for request in waiting])


class CountedKVCache(KVCache):
    """Counts blocks and names none, which spares a simulation the touching of every table at every block boundary. The
    decisions are the same as long as no prefix is shared and nothing is swapped; nobody may read a block table.

    A decode's blocks are not even counted one by one: they follow from how far it is.
    """

    names_blocks = False

    def __init__(self, config: SchedulerConfig, cohort: Cohort) -> None:
        super().__init__(config, cohort)
        self._handed_out_at = -1  # clock at which all who cross got their block
        self._grown_at = -1  # clock at which these ranks got theirs, one by one
        self._grown: set[int] = set()

    def _make_pool(self) -> CountedPool:
        return CountedPool(self._config.num_gpu_blocks)

    def held(self, request: Request) -> int:
        """Blocks that ``request`` has."""
        seat = request.seat
        if seat is None:
            return request._num_blocks
        clock = self._cohort.clock
        has_next = self._handed_out_at == clock or (self._grown_at == clock and seat.rank in self._grown)
        return -(-(seat.offset + clock + has_next) // self._block_size)

    def admit(self, request: Request, hits: list[int], num_tokens: int) -> Copies:
        """Blocks for the first ``num_tokens`` tokens of ``request``."""
        request.block_table = UNNAMED
        request._num_blocks = num_blocks = -(-num_tokens // self._block_size)
        self.pool.num_free -= num_blocks
        return []

    def grow(self, request: Request, num_blocks: int) -> None:
        """So many blocks more; for a decode that is one."""
        self.pool.num_free -= num_blocks
        if request.seat is None:
            request._num_blocks += num_blocks
            return
        if self._grown_at != self._cohort.clock:
            self._grown_at = self._cohort.clock
            self._grown.clear()
        self._grown.add(request.rank)

    def hand_out(self, crossers: dict[int, Seat]) -> None:
        """A block each for decodes whose next token starts one."""
        self.pool.num_free -= len(crossers)
        self._handed_out_at = self._cohort.clock

    def leap(self, num_steps: int) -> list[int]:
        """Blocks for so many steps of the whole cohort, whose clock moves on; returns the free blocks after each."""
        free = self._cohort.free_after_steps(self.pool.num_free, num_steps)
        self._cohort.clock += num_steps
        self.pool.num_free = free[-1]
        return free

    def unseat(self, request: Request) -> None:
        """``request`` is about to leave the cohort: from now on its blocks are counted."""
        request._num_blocks = self.held(request)

    def release(self, request: Request) -> None:
        """Take all blocks of ``request`` back."""
        self.pool.num_free += self.held(request)
        request._num_blocks = 0

    def check_integrity(self, residents: Sequence[Request], waiting: Iterable[Request]) -> None:
        """Blocks are conserved. Raises ``BatchTwinError``."""
        held = sum(self.held(request) for request in residents)
        if held + self.pool.num_free != self.pool.num_blocks:
            raise BatchTwinError(f"{held} KV blocks are held and {self.pool.num_free} free of {self.pool.num_blocks}.")


class _Unnamed(list[int]):
    """The block table of a request whose blocks are only counted: looking at it is an error, said in words."""

    def _refuse(self, *_: object) -> NoReturn:
        raise BatchTwinError(
            "This replay only counts KV blocks, but a block table was read: let the policy say reads_blocks = True, "
            "or make the Scheduler with names_blocks=True."
        )

    __len__ = __iter__ = __getitem__ = __contains__ = __bool__ = append = extend = _refuse


UNNAMED = _Unnamed()

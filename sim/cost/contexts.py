"""How unequal the contexts of a batch's decodes are, for cost models that ask (``needs_spread``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ...scheduler.batch import Batch
    from ...scheduler.cohort import Cohort, Members


class Contexts(NamedTuple):
    """Of the decodes of one step, before its tokens."""

    squares: int
    """Σ context²."""
    longest: int

    def later(self, num_steps: int, num_decodes: int, num_kv_tokens: int) -> Contexts:
        """The same decodes, Σ context ``num_kv_tokens``, when each has so many tokens more."""
        squares = self.squares + 2 * num_steps * num_kv_tokens + num_decodes * num_steps * num_steps
        return Contexts(squares, self.longest + num_steps)


class Spread:
    """Finds them.

    The members of a cohort are walked once each time the membership changes, not every step: their contexts all grow
    by one token a step.
    """

    def __init__(self) -> None:
        self._members: Members | None = None
        self._sums = (0, 0, 0)

    def of_batch(self, batch: Batch) -> Contexts:
        """Of the decodes of ``batch``."""
        contexts = self._of(batch.members, batch.clock)
        if not batch.num_single_chunks:
            return contexts
        singles = [chunk.start for chunk in batch.chunks if chunk.is_decode]
        return Contexts(contexts.squares + sum(s * s for s in singles), max(contexts.longest, *singles))

    def of_cohort(self, cohort: Cohort) -> Contexts:
        """Of a step in which everybody seated decodes and nothing else happens."""
        return self._of(cohort.members(), cohort.clock)

    def _of(self, members: Members, clock: int) -> Contexts:
        """A position is offset + clock; batches share ``members`` until somebody joins or leaves."""
        if not members.count:
            return Contexts(0, 0)
        if members is not self._members:
            offsets = [seat.offset for seat in members.seats.values()]
            self._members = members
            self._sums = (sum(offsets), sum(offset * offset for offset in offsets), max(offsets))
        offset, squares, longest = self._sums
        return Contexts(squares + 2 * clock * offset + members.count * clock * clock, longest + clock)

"""The KV blocks of the second implementation: plain lists, searched from end to end."""

from __future__ import annotations

Token = tuple[str, int]
"""``(stream, offset)``: two tokens are the same iff both are equal."""


class NaivePool:
    """The KV blocks: one ordered list of free ones, one list of blocks for each known content."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(1, num_blocks))
        self.users = dict.fromkeys(self.free, 0)
        self.content: dict[int, int] = {}
        self.holders: dict[int, list[int]] = {}
        self._names: dict[tuple[int, tuple[Token, ...]], int] = {}

    def names(self, tokens: list[Token], num_blocks: int) -> list[int]:
        """The chain: a block's name stands for its tokens and everything before them."""
        chain = [0]
        for start in range(0, num_blocks * self.block_size, self.block_size):
            link = (chain[-1], tuple(tokens[start : start + self.block_size]))
            chain.append(self._names.setdefault(link, len(self._names) + 1))
        return chain[1:]

    def hits(self, tokens: list[Token]) -> list[int]:
        found: list[int] = []
        for name in self.names(tokens, (len(tokens) - 1) // self.block_size):
            if not self.holders.get(name):
                break
            found.append(self.holders[name][0])
        return found

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.users[block] == 0:
                self.free.remove(block)
            self.users[block] += 1

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.users[block] = 1
            if block in self.content:
                self.holders[self.content.pop(block)].remove(block)
        return taken

    def name(self, block: int, name: int) -> None:
        self.content[block] = name
        self.holders.setdefault(name, []).append(block)

    def release(self, table: list[int]) -> None:
        nameless: list[int] = []
        named: list[int] = []
        for block in reversed(table):
            self.users[block] -= 1
            if self.users[block] == 0:
                (named if block in self.content else nameless).append(block)
        self.free = nameless + self.free + named

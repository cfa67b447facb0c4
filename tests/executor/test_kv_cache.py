"""Swapping: what comes back is what went out, nothing waits for the device, and pinned memory is taken once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from batchtwin.executor import kv_cache
from batchtwin.executor.errors import KVCacheTooLarge
from batchtwin.executor.kv_cache import SWAP_GROUP_BLOCKS, PagedKVCache
from batchtwin.executor.models import ModelShape, load_model

BLOCK_SIZE = 4


@pytest.fixture(scope="module")
def shape() -> ModelShape:
    return load_model("tiny-llama").shape


def _cache(shape: ModelShape, num_blocks: int = 100) -> PagedKVCache:
    cache = PagedKVCache(num_blocks, BLOCK_SIZE, shape, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(0)
    for keys, values in cache.layers:
        keys.normal_(generator=generator)
        values.normal_(generator=generator)
    return cache


def _contents(cache: PagedKVCache, blocks: Sequence[int]) -> list[torch.Tensor]:
    return [part[list(blocks)].clone() for layer in cache.layers for part in layer]


class Observer(TorchFunctionMode):
    """What a device would see: copies with their ``non_blocking``, and whatever makes the host wait. Pinned memory,
    which needs a driver, is noted and left out."""

    WAITING = ("cpu", "item", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__")

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[bool] = []
        self.waits: list[str] = []
        self.pinned: list[tuple[Any, ...]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if keywords.pop("pin_memory", False):
            self.pinned.append((name, *args))
        if name in ("copy_", "to"):
            self.copies.append(bool(keywords.get("non_blocking")))
        if name in self.WAITING:
            self.waits.append(name)
        return func(*args, **keywords)


def test_blocks_come_back_from_the_host_wherever_they_go(shape: ModelShape) -> None:
    cache = _cache(shape)
    was = _contents(cache, range(100))
    out = [(1 + (7 * i) % 70, 1 + (11 * i) % 90) for i in range(70)]  # more than a group, in no order
    assert len(out) > 2 * SWAP_GROUP_BLOCKS
    cache.swap_out(out)
    cache.poison(range(1, 71))
    back = [(1 + (device + 25) % 99, host) for device, host in out]
    cache.swap_in(back)
    for before, after in zip(was, _contents(cache, range(100)), strict=True):
        for (old, _), (new, _) in zip(out, back, strict=True):
            assert torch.equal(before[old], after[new])


def test_blocks_that_do_not_travel_stay(shape: ModelShape) -> None:
    cache = _cache(shape)
    was = _contents(cache, range(20, 100))
    cache.swap_out([(3, 5), (4, 1)])
    cache.swap_in([(7, 5)])
    assert all(map(torch.equal, was, _contents(cache, range(20, 100))))


def test_a_host_block_is_sent_back_before_it_is_overwritten(shape: ModelShape) -> None:
    """The order in which a step queues them: out, in; then the next step's."""
    cache = _cache(shape)
    first, second = _contents(cache, [1]), _contents(cache, [2])
    cache.swap_out([(1, 1)])
    cache.swap_in([(3, 1)])
    cache.swap_out([(2, 1)])
    cache.swap_in([(4, 1)])
    assert all(map(torch.equal, first, _contents(cache, [3])))
    assert all(map(torch.equal, second, _contents(cache, [4])))


def test_beside_a_device_memory_is_pinned_once_and_nothing_waits(
    shape: ModelShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = _cache(shape)
    cache._pinned = True
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: pytest.fail("the host waited"))
    copies = [(block, 41 - block) for block in range(1, 41)]
    with Observer() as seen:
        cache.reserve_host(40)
        cache.swap_out(copies)
        cache.swap_in(copies)
    row = (2, shape.num_layers, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
    assert [size for name, *size in seen.pinned if name == "empty"] == [[(40, *row)]]
    assert len([0 for name, *_ in seen.pinned if name == "tensor"]) == 4, "the indices of two groups each way"
    assert len(seen.copies) == 2 * 40 + 4
    assert all(seen.copies)
    assert seen.waits == []


def test_without_a_device_nothing_is_pinned(shape: ModelShape) -> None:
    with Observer() as seen:
        cache = _cache(shape)
        cache.swap_out([(1, 1)])
        cache.swap_in([(1, 1)])
    assert seen.pinned == []
    assert cache.num_host_blocks == 1


def _free(num_bytes: int) -> Callable[[str], int]:
    return lambda device: num_bytes


def test_too_many_host_blocks_are_refused_by_what_pinning_rounds_them_to(
    shape: ModelShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = _cache(shape)
    nine = 9 * cache.block_bytes
    monkeypatch.setattr(kv_cache, "free_memory_bytes", _free(nine))
    cache.reserve_host(9)
    cache = _with_free(shape, monkeypatch, nine)
    cache._pinned = True  # pieces of powers of two: block_bytes is one, so nine blocks take sixteen
    assert cache.block_bytes & (cache.block_bytes - 1) == 0
    with pytest.raises(KVCacheTooLarge, match=r"9 KV blocks for swapping take .* lower num_cpu_blocks"):
        cache.reserve_host(9)


def _with_free(shape: ModelShape, monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> PagedKVCache:
    monkeypatch.setattr(kv_cache, "free_memory_bytes", _free(10**12))
    cache = _cache(shape)
    monkeypatch.setattr(kv_cache, "free_memory_bytes", _free(num_bytes))
    return cache

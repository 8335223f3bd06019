"""The parts of short items are told apart for some of them, and still add up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # importing torch takes a second

from torch.utils.data import Dataset, default_collate  # noqa: E402
from torch.utils.data._utils.fetch import _MapDatasetFetcher  # noqa: E402

from headrace.base.metering import Reading, ThreadMeter  # noqa: E402
from headrace.train import loader_clock, loader_parts  # noqa: E402
from headrace.train.loader_clock import SPLIT_ONE_IN, BatchClock, WatchedFetcher  # noqa: E402
from headrace.train.loader_record import BatchRecord  # noqa: E402

_ITEMS = 4 * SPLIT_ONE_IN
_CPU_NS = 30_000


@pytest.fixture(autouse=True)
def _decoders_as_they_were() -> Iterator[None]:
    """A fetcher has decoders watched; a session ends that."""
    yield
    loader_parts.release()


class _CountingMeter(ThreadMeter):
    num_read = 0

    def read(self) -> Reading:
        self.num_read += 1
        return super().read()


def _compute(value: Any) -> Any:
    end = time.thread_time_ns() + _CPU_NS
    while time.thread_time_ns() < end:
        pass
    return value


class _Items(Dataset[Any]):
    def __init__(self) -> None:
        self.transform = _compute

    def __getitem__(self, index: int) -> Any:
        return self.transform(_compute(index))


def _load(num_batches: int) -> list[tuple[BatchRecord, int]]:
    """Return the record of each batch, and how often the clocks were read for it."""
    records: list[BatchRecord] = []
    clock = BatchClock(records.append, os.getpid(), is_alone=False)
    meter = clock._meter = _CountingMeter(time.monotonic_ns)
    fetcher = WatchedFetcher(_MapDatasetFetcher(_Items(), True, default_collate, False), clock)
    reads = []
    for _ in range(num_batches):
        meter.num_read = 0
        fetcher.fetch(list(range(_ITEMS)))
        reads.append(meter.num_read)
    return list(zip(records, reads, strict=True))


def test_parts_of_short_items_add_up_though_some_are_told_apart_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each batch but the first, one item in eleven is; the others are taken for such items."""
    monkeypatch.setattr(loader_clock, "SHORT_ITEM_NS", 10**9)
    (_, first), *others = _load(5)
    assert first == 3 * _ITEMS + 3
    for record, num_read in others:
        assert num_read <= 4 * _ITEMS // SPLIT_ONE_IN + 4
        parts = (record.decode, record.augment, record.tokenise, record.rest, record.opened)
        assert sum(part.wall for part in parts) == record.items.wall
        assert sum(part.cpu for part in parts) == record.items.cpu
        # Half of it is computed in the transform, half before.
        assert min(record.augment.cpu, record.opened.cpu) > _ITEMS * _CPU_NS // 4


def test_parts_of_long_items_are_all_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it costs little."""
    monkeypatch.setattr(loader_clock, "SHORT_ITEM_NS", 0)
    assert [num_read for _, num_read in _load(3)] == [3 * _ITEMS + 3] * 3

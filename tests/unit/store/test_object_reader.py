"""Blocks of a shard in a store: asked for ahead where they are read in order, and only there."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.pieces import RemotePiece
from headrace.store import object_reader
from headrace.store.object_reader import Link, ObjectReader
from headrace.store.objects import Got

BLOCK = 1 << 20
BLOCKS = 200


class Store:
    """Answers ranges of one object at once, and notes which were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._lock = threading.Lock()

    def get(self, path: str, start: int, end: int, etag: str | None) -> Got:
        """Return zeros, as if the first byte had taken 25 ms and the others come at 50 MB/s."""
        with self._lock:
            self.asked.append(start // BLOCK)
        return Got(bytes(end - start), 0.025, (end - start) / 50e6)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in place of every other."""
    pytest.importorskip("obstore")
    store = Store()
    monkeypatch.setattr(ObjectReader, "_bucket", lambda self, name: store)
    return store


def piece(block: int) -> RemotePiece:
    """Return a piece in the middle of a block."""
    return RemotePiece("s3://b", "a.tar", block * BLOCK + 1000, 30_000, BLOCKS * BLOCK, '"1"', None)


def read(store: Store, blocks: list[int], **settings: Any) -> None:
    """Read a piece of each block, one after the other."""
    reader = ObjectReader(1 << 30, 5.0, block_bytes=BLOCK, **settings)
    for block in blocks:
        assert reader(piece(block)) == bytes(30_000)
    if reader._ahead is not None:
        reader._ahead.shutdown()


def test_in_order_each_block_comes_once_and_ahead(store: Store) -> None:
    """The link has several requests to answer at any time."""
    read(store, list(range(50)))
    assert len(set(store.asked)) == len(store.asked)
    assert max(store.asked) >= 53


def test_in_random_order_nothing_comes_ahead(store: Store) -> None:
    """Each block would bring several that nobody asks for while they are kept."""
    blocks = [3 + block * 37 % (BLOCKS - 3) for block in range(50)]
    read(store, blocks, kept_bytes=8 * BLOCK)
    assert len(store.asked) <= 60


def test_going_on_in_the_middle_is_in_order_from_the_second_block(store: Store) -> None:
    """As a resumed run does."""
    read(store, [100, 100, 101, 102])
    assert store.asked[0] == 100
    assert min(store.asked[1:]) == 101
    assert max(store.asked) >= 105


def test_requests_ahead_begin_one_after_the_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spread over the wait for a first byte, after the first, of which no time is known."""
    pauses: list[float] = []
    monkeypatch.setattr(object_reader, "time", SimpleNamespace(monotonic=lambda: 1.0, sleep=pauses.append))
    read(store, [0, 1])
    link = Link()
    link.note(store.get("a.tar", 0, BLOCK, None))
    gap = 0.025 / link.num_ahead(BLOCK)
    assert len(pauses) >= 4
    assert sorted(pauses)[1:] == pytest.approx([gap * place for place in range(len(pauses) - 1)])


def test_several_are_under_way_whatever_the_rate_seems_to_be() -> None:
    """A request that shared the link with others tells a part of its rate."""
    link = Link()
    assert link.num_ahead(4 << 20) == 1
    link.note(Got(bytes(4 << 20), 0.025, 0.33))
    assert link.num_ahead(4 << 20) >= 3

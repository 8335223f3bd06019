"""Reads objects, and neighbours in one shard by few large requests.

How this works. A whole object is one request. Pieces of a shard are cut from blocks: whoever needs a block that nobody has or
asks for begins the request; others wait for the same one. Where the one before it was asked for too, and so at the beginning of
a shard, the blocks behind it are asked for at once, as many as keep the link busy: while a block comes, the next request must
be under way for the time to its first byte (Little's law). Both times are measured at each request. A block's size is what
comes in a few times that wait, so that the wait costs little. A fixed number of bytes is kept, the oldest block goes first.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from headrace.base.errors import FetchRejected
from headrace.base.pieces import RemotePiece
from headrace.store.objects import Bucket, Got, cut

_SMALLEST_BLOCK, _LARGEST_BLOCK = 1 << 20, 16 << 20
#: Blocks that are under way beyond the one that is needed, at most.
_MOST_AHEAD = 8
#: Requests, bytes, and microseconds to the first byte and of transfer.
Count = Callable[[str, int], object]
_Key = tuple[Any, str, str | None, int]


def _count_nothing(name: str, number: int) -> None:
    pass


class Link:
    """How long a store takes to its first byte, and how fast bytes come then; smoothed over requests."""

    def __init__(self) -> None:
        self.first_byte_seconds = 0.0
        self.bytes_per_second = 0.0

    def note(self, got: Got) -> None:
        """Take in one request."""
        self.first_byte_seconds += (got.first_byte_seconds - self.first_byte_seconds) / (
            4 if self.first_byte_seconds else 1
        )
        if len(got.data) >= 1 << 18 and got.transfer_seconds > 0:  # a small body is there with the first byte
            rate = len(got.data) / got.transfer_seconds
            self.bytes_per_second += (rate - self.bytes_per_second) / (4 if self.bytes_per_second else 1)

    def num_ahead(self, block_bytes: int) -> int:
        """Return how many blocks should be under way behind the one that is needed."""
        if not self.bytes_per_second:
            return 1
        # The rate is that of a request which shared the link with others, so the link may need more of them than it tells.
        block_seconds = block_bytes / self.bytes_per_second
        return min(_MOST_AHEAD, 3 + round(self.first_byte_seconds / block_seconds + 0.5))


class ObjectReader:
    """Reads pieces; any thread.

    Args:
        max_bytes: Largest piece.
        timeout_seconds: Longest request.
        kept_bytes: Blocks that are kept and under way come to at most this.
        block_bytes: Size of a block.
    """

    def __init__(
        self,
        max_bytes: int,
        timeout_seconds: float,
        *,
        kept_bytes: int = 256 << 20,
        block_bytes: int = 4 << 20,
    ) -> None:
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds
        self._block_bytes = min(max(block_bytes, _SMALLEST_BLOCK), _LARGEST_BLOCK)
        self._most_blocks = max(2, kept_bytes // self._block_bytes)
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket] = {}
        self._blocks: OrderedDict[_Key, Future[bytes]] = OrderedDict()
        self._ahead: ThreadPoolExecutor | None = None
        self._uncounted: Counter[str] = Counter()
        self._next_at = 0.0  # when the next block that is not needed yet may be asked for; by time.monotonic
        self.link = Link()

    def __call__(self, piece: RemotePiece, count: Count = _count_nothing) -> bytes:
        """Return the bytes of a piece.

        Args:
            piece: What is read.
            count: Called with the name of a counter and what to add to it, in this thread.

        Raises:
            FetchRejected: If no other try can succeed.
            FetchFailed: If one may.
        """
        if piece.length > self._max_bytes:
            raise FetchRejected(
                f"file.too_large: {piece.length} bytes of {piece.shown} are more than max_bytes = {self._max_bytes}"
            )
        is_whole = piece.length == piece.object_size
        is_large = piece.length > self._block_bytes
        data = self._get(piece, piece.offset, piece.offset + piece.length) if is_whole or is_large else self._cut(piece)
        with self._lock:  # also what came ahead in other threads
            uncounted, self._uncounted = self._uncounted, Counter()
        for name, number in uncounted.items():
            count(name, number)
        if piece.crc32 is not None and zlib.crc32(data) != piece.crc32:
            raise FetchRejected(
                f"tar.checksum: the {piece.length} bytes at {piece.offset} of {piece.shown} are not those that were packed; "
                "pack or upload the shard again"
            )
        return data

    def _cut(self, piece: RemotePiece) -> bytes:
        size = self._block_bytes
        first, last = piece.offset // size, max(piece.offset, piece.offset + piece.length - 1) // size
        ahead = min(self.link.num_ahead(size), self._most_blocks // 2) if self._is_in_order(piece, first) else 0
        for number in range(last + 1, min(last + ahead, (piece.object_size - 1) // size) + 1):
            self._block(piece, number, is_needed=False)
        parts = b"".join(self._block(piece, number, is_needed=True) for number in range(first, last + 1))
        return cut(piece, parts, first * size)

    def _is_in_order(self, piece: RemotePiece, first: int) -> bool:
        """Return whether the block before was asked for not long ago, so that the next ones will be, too."""
        with self._lock:
            return first == 0 or _key(piece, first - 1) in self._blocks

    def _block(self, piece: RemotePiece, number: int, *, is_needed: bool) -> bytes:
        """Return a block; where it is not needed yet, only see that it comes."""
        key = _key(piece, number)
        with self._lock:
            found = self._blocks.get(key)
            begins = found is None
            if found is None:
                found = self._blocks[key] = Future()
                self._forget_oldest()
            elif is_needed:
                self._blocks.move_to_end(key)
            if begins and not is_needed and self._ahead is None:
                self._ahead = ThreadPoolExecutor(_MOST_AHEAD, "headrace-objects")
        if begins and not is_needed:
            assert self._ahead is not None
            self._ahead.submit(self._bring_in_turn, piece, key, found)
            return b""
        if begins:
            self._bring(piece, key, found)
        return found.result(self._timeout_seconds * 2) if is_needed else b""

    def _bring_in_turn(self, piece: RemotePiece, key: _Key, block: Future[bytes]) -> None:
        """Bring a block, a little behind the one that was asked for before."""
        with self._lock:
            now = time.monotonic()
            begins_at = max(now, self._next_at)
            self._next_at = begins_at + self.link.first_byte_seconds / self.link.num_ahead(self._block_bytes)
        time.sleep(begins_at - now)
        self._bring(piece, key, block)

    def _bring(self, piece: RemotePiece, key: _Key, block: Future[bytes]) -> None:
        start = key[3] * self._block_bytes
        try:
            block.set_result(self._get(piece, start, min(start + self._block_bytes, piece.object_size)))
        except BaseException as error:
            with self._lock, suppress(KeyError):
                del self._blocks[key]  # who needs it next asks again
            block.set_exception(error)

    def _forget_oldest(self) -> None:
        """Let go of blocks beyond the limit that nobody waits for; called with the lock."""
        for key in list(self._blocks)[: max(0, len(self._blocks) - self._most_blocks)]:
            if self._blocks[key].done():
                del self._blocks[key]

    def _get(self, piece: RemotePiece, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        got = (piece.opened or self._bucket(piece.store)).get(piece.path, start, end, piece.etag)
        with self._lock:
            self.link.note(got)
            self._uncounted += Counter({
                "requests": 1,
                "bytes": len(got.data),
                "first_byte_microseconds": round(got.first_byte_seconds * 1e6),
                "transfer_microseconds": round(got.transfer_seconds * 1e6),
            })  # fmt: skip
        return got.data

    def _bucket(self, store: str) -> Bucket:
        with self._lock:
            if store not in self._buckets:
                self._buckets[store] = Bucket(store, self._timeout_seconds)
            return self._buckets[store]


def _key(piece: RemotePiece, number: int) -> _Key:
    return piece.opened or piece.store, piece.path, piece.etag, number

"""The tar shards of a bucket: their samples by the index beside each, read alone or with their neighbours.

How this works: `block` samples that lie together are one request, which the first thread that needs one of them makes while
others wait for it; a fixed number of bytes is kept, the oldest go first. Of a block that is in more shards than one each has a
request of its own, so that a shard that cannot be read costs no sample of another. Where each sample is a block of its own
nothing is kept. What the store refuses for now is asked for again, later and later.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow

from headrace.base.errors import FetchFailed, FetchRejected, ItemError, SourceError
from headrace.base.redaction import hide_secrets_in_text
from headrace.store.file_systems import Store, open_store
from headrace.store.objects import PAUSES, Listed
from headrace.store.samples import Sample, Stored, join_samples
from headrace.store.shard_index import index_path, read_rows

#: Of what lies between two samples or in a block, more than anybody packs.
_MOST_AT_ONCE = 512 << 20
#: Where samples are read in their order, bytes of a block.
_BLOCK_BYTES = 4 << 20
_Block = tuple[int, bytes]
"""Where in its shard it was read from, and the bytes."""


def list_with_index(store: Store, prefix: str) -> list[Listed]:
    """Return what is below a prefix; where it names one shard also the index, which is beside it; raises SourceError."""
    found = store.list_objects(prefix)
    if any(one.path == prefix for one in found) and prefix.endswith(".tar"):
        beside = index_path(Path(prefix)).as_posix()
        with contextlib.suppress(SourceError):  # that there is none is said where it is looked for
            found += store.list_objects(beside)
    return found


def list_object_shard(bucket: Store, shard: Listed, found: Sequence[Listed]) -> list[Sample]:
    """Return the samples of a shard, by its index.

    Args:
        bucket: Where both are.
        shard: The tar file.
        found: The objects among which its index is.

    Raises:
        SourceError: If it has no index, or one of another file. Headers are not compared: that would be a request each.
    """
    beside = _beside(shard)
    index = next((one for one in found if one.path == beside), None)
    shown = f"{bucket.store}/{shard.path}"
    if index is None:
        raise SourceError(
            f"{shown} has no index {beside}; make it where the shard was packed, with `headrace pack --index`"
        )
    try:
        content = bucket.get(index.path, 0, index.size, index.etag).data
    except ItemError as error:
        raise SourceError(error.reason) from None
    rows, _ = read_rows(pyarrow.BufferReader(content), shard.size, shown)
    return list(join_samples(row.stored for row in rows))


def _beside(shard: Listed) -> str:
    return index_path(Path(shard.path)).as_posix()


class ObjectShardReader:
    """The samples of shards in buckets, each by its number, as `ShardReader` has those of files; any thread.

    Args:
        urls: Addresses of shards, or of what they are below, such as `s3://photos/packed`.
        block: Samples that are read at once; None: as many as come to 4 MB.
        kept_bytes: Of blocks.
        fs: A file system in which the addresses are paths; None: they name buckets.

    Raises:
        MissingExtra: If obstore is not installed.
        SourceError: If they cannot be listed, there is no shard, or one has no index.
    """

    def __init__(
        self, urls: Sequence[str], *, block: int | None = 1, kept_bytes: int = 256 << 20, fs: Any = None
    ) -> None:
        self.paths = list(urls)
        self.shown = hide_secrets_in_text(urls[0]) + (f" and {len(urls) - 1:,} more" if len(urls) > 1 else "")
        self._fs = fs
        self._shards: list[tuple[str, Listed]] = []
        """Each with the address of where it was found, by which a process opens that again."""
        self._samples: list[tuple[int, Sample]] = []
        known: set[str] = set()
        for url in urls:
            self._add(url, known)
        num_bytes = sum(_end(sample) - _start(sample) for _, sample in self._samples)
        self._block = block or max(1, round(_BLOCK_BYTES * len(self._samples) / max(1, num_bytes)))
        self._kept_bytes = kept_bytes
        self._begin()

    def _begin(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._stores = {address: open_store(address, self._fs)[0] for address in {one for one, _ in self._shards}}
        for address, shard in self._shards:  # so one that alone is forbidden is known for one from the first read on
            self._stores[address].note_readable(_beside(shard))
        self._blocks: OrderedDict[tuple[int, int], Future[_Block]] = OrderedDict()
        """{number of the block, of the shard: what the block has of the shard}."""

    def _add(self, address: str, known: set[str]) -> None:
        store, prefix = open_store(address, self._fs)
        found = list_with_index(store, prefix)
        shards = [one for one in found if one.path.endswith(".tar")]
        opens = address if self._fs is not None else store.store
        if not shards:
            raise SourceError(
                f"{store.store}/{prefix} names no tar shard among {len(found):,} objects; upload what `headrace "
                "pack` made, with the index beside each shard"
            )
        for shard in shards:
            if (key := store.key(shard.path)) in known:  # what is named twice is read once
                continue
            known.add(key)
            self._samples += [(len(self._shards), sample) for sample in list_object_shard(store, shard, found)]
            self._shards.append((opens, shard))

    def __getstate__(self) -> dict[str, Any]:
        # What was listed goes along, so that a number is the same sample there; connections and locks do not.
        own = ("_lock", "_stores", "_blocks")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def __len__(self) -> int:
        return len(self._samples)

    def key(self, number: int) -> str:
        """Return the key of a sample."""
        return self._samples[number][1].key

    def num_bytes(self, numbers: Sequence[int]) -> int:
        """Return the size of the files of samples."""
        return sum(part.length for number in numbers for part in self._samples[number][1].parts.values())

    def read_parts(self, number: int) -> dict[str, bytes]:
        """Return all files of a sample, {part: bytes}.

        Raises:
            FetchRejected: If its bytes are not those that were packed, or its shard was replaced or removed.
            SourceError: If the store does not answer, or this process was forked from the one that opened it.
        """
        if os.getpid() != self._process:
            raise SourceError(
                f"{self.shown} was opened in another process, whose connections a fork cannot use; start workers with "
                "multiprocessing_context='spawn'"
            )
        shard, sample = self._samples[number]
        start, data = self._read_block(number // self._block, shard)
        return {part: _cut(stored, start, data) for part, stored in sample.parts.items()}

    def close(self) -> None:
        """Let go of what was read."""
        self._blocks.clear()

    def _read_block(self, block: int, shard: int) -> _Block:
        if self._block == 1:
            return self._fetch(block, shard)
        key = block, shard
        with self._lock:
            found = self._blocks.get(key)
            is_mine = found is None
            if found is None:
                found = self._blocks[key] = Future()
                self._forget_oldest()
        if is_mine:
            try:
                found.set_result(self._fetch(block, shard))
            except BaseException as error:
                with self._lock:
                    self._blocks.pop(key, None)  # who needs it next asks again
                found.set_exception(error)
        return found.result()

    def _forget_oldest(self) -> None:
        """Let go of blocks beyond the limit, but for the newest; called with the lock."""
        done = {key: len(one.result()[1]) for key, one in self._blocks.items() if one.done() and not one.exception()}
        kept = sum(done.values())
        for key, num_bytes in done.items():
            if kept <= self._kept_bytes:
                return
            kept -= num_bytes
            del self._blocks[key]

    def _fetch(self, block: int, shard: int) -> _Block:
        first = block * self._block
        mine = [sample for of, sample in self._samples[first : first + self._block] if of == shard]
        start = min(map(_start, mine))
        return start, self._get(shard, start, max(map(_end, mine)))

    def _get(self, shard: int, start: int, end: int) -> bytes:
        if end <= start:  # an empty file; asked for no bytes, a store gives all
            return b""
        place, listed = self._shards[shard]
        store = self._stores[place]
        if end - start > _MOST_AT_ONCE:
            raise FetchRejected(
                f"tar.size: {end - start:,} bytes of {store.store}/{listed.path} would be read at once; name a smaller block"
            )
        for pause in PAUSES:
            try:
                return store.get(listed.path, start, end, listed.etag).data
            except FetchFailed as error:
                problem = error
                time.sleep(pause)
        raise SourceError(problem.reason)


def _start(sample: Sample) -> int:
    return min(part.offset for part in sample.parts.values())


def _end(sample: Sample) -> int:
    return max(part.offset + part.length for part in sample.parts.values())


def _cut(stored: Stored, start: int, data: bytes) -> bytes:
    content = data[stored.offset - start : stored.offset - start + stored.length]
    if stored.crc32 is not None and zlib.crc32(content) != stored.crc32:
        raise FetchRejected(
            f"tar.checksum: the bytes of {stored.name} are not those that were packed; pack or upload its shard again"
        )
    return content

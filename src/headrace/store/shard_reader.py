"""Reads files of shards at random: one `pread` each, at a place that is known from the start."""

from __future__ import annotations

import logging
import os
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import FetchRejected, SourceError
from headrace.base.formatting import pluralize
from headrace.base.named_paths import Named, list_paths, show_paths
from headrace.store.expansion import most_expanded
from headrace.store.reading import changed, read_all, version_of
from headrace.store.samples import Sample, Singles, Stored
from headrace.store.shards import find_all_shards, list_shard

logger = logging.getLogger("headrace")


class ShardReader:
    """The samples of shards, each by its number; any thread, and any process after a fork, as no position is kept.

    Args:
        path: A tar file, a folder of them, a pattern such as `shard-{000..009}.tar`, or a list of these.
        part: Which file of a sample `read` returns; None: as `headrace.shards` chooses.
        checks: Whether `read` compares the checksum, where the index has one.

    Raises:
        SourceError: If there are no shards, or an index is not of its shard.
        SettingsError: If it is no path.
    """

    def __init__(self, path: Named, *, part: str | None = None, checks: bool = True) -> None:
        self.paths = paths = list_paths(
            path, "path", addresses="; copy the shards first, or name s3://, gs:// or az:// alone"
        )
        shards = find_all_shards(paths)
        self.shown = show_paths(paths)
        """What was named, for messages."""
        self._arguments = (paths, part, checks)
        self._checks = checks
        self._samples: list[Sequence[Sample]] = []
        self._starts = array("q")
        """For each shard: its samples, and the number of the first."""
        self._handles, self._offsets, self._lengths, self._crcs = array("i"), array("q"), array("q"), array("q")
        self._sizes = array("q")
        self._opened: list[int] = []
        self._most_bytes: dict[int, int] = {}
        """{handle: the largest file that is read of it}: a shard with a hole is larger than what it holds."""
        self._sure_bytes = -1
        """So large a file is read of any of them; -1: the shards are closed."""
        self._shards: dict[int, tuple[Path, tuple[int, int]]] = {}
        """{handle: the file and its version when it was listed}."""
        self.num_flaws = 0
        """Parts and samples that cannot be read, and are left out."""
        try:
            for shard in shards:
                self._add(shard, part)
        except BaseException:
            self.close()
            raise
        self._sure_bytes = min(self._most_bytes.values(), default=-1)
        if self.num_flaws:
            logger.warning(
                "%s: %s cannot be read, and %s left out; `headrace pack %s -o NEW` lists them", self.shown,
                pluralize(self.num_flaws, "part"), "is" if self.num_flaws == 1 else "are", paths[0],
            )  # fmt: skip

    def __reduce__(self) -> tuple[Callable[..., ShardReader], tuple[Any, ...]]:
        # A process that is spawned has other files under the same numbers, and would read those.
        return _open_again, self._arguments

    def _add(self, shard: Path, part: str | None) -> None:
        listed = list_shard(shard)
        self.num_flaws += len(listed.flaws)
        handle = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
        self._opened.append(handle)
        self._shards[handle] = shard, listed.version
        self._most_bytes[handle] = most_expanded(os.fstat(handle).st_blocks * 512)
        samples: Sequence[Sample] = listed.samples
        if isinstance(samples, Singles) and part is None:
            files: Sequence[Stored] = samples.files
        else:
            chosen = [(sample, None if sample.flaw else sample.choose(part)) for sample in samples]
            self.num_flaws += sum(one is None for _, one in chosen)
            samples = [sample for sample, one in chosen if one is not None]
            files = [one for _, one in chosen if one is not None]
        self._starts.append(len(self._offsets))
        self._samples.append(samples)
        self._handles.extend([handle] * len(files))
        self._offsets.extend([one.offset for one in files])
        self._lengths.extend([one.length for one in files])
        # Of all files of each: to make samples for it would take 20 times as long, in the thread that trains.
        is_single = samples is listed.samples
        self._sizes.extend(
            [one.length for one in files]
            if is_single
            else [sum(part.length for part in one.parts.values()) for one in samples]
        )
        self._crcs.extend([-1 if one.crc32 is None else one.crc32 for one in files])

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, number: int) -> bytes:
        """Return the chosen file of a sample.

        Raises:
            FetchRejected: If its bytes are not those that were packed.
        """
        # Each call of a function more is some hundredths of what reading 30 kB takes.
        handle, length, offset = self._handles[number], self._lengths[number], self._offsets[number]
        if length > self._sure_bytes:
            self._check_open()
            if length > self._most_bytes[handle]:
                raise _too_large(self.key(number), length)
        data = os.pread(handle, length, offset)
        if len(data) != length and len(data := read_all(handle, length, offset)) != length:
            raise FetchRejected(f"tar.truncated: sample {self.key(number)} has {len(data)} of its {length} bytes")
        if self._checks:
            self._check(number, data)
        return data

    def _check(self, number: int, data: bytes) -> None:
        """Raise FetchRejected if the bytes of a sample are not those that were packed."""
        crc = self._crcs[number]
        if crc < 0:
            self._check_version(number)
        elif zlib.crc32(data) != crc:
            raise _wrong(self.key(number))

    def read_parts(self, number: int) -> dict[str, bytes]:
        """Return all files of a sample, {part: bytes}; raises what `read` raises."""
        self._check_open()
        found: dict[str, bytes] = {}
        parts = self._sample(number).parts
        for part, stored in parts.items():
            if stored.length > self._most_bytes[self._handles[number]]:
                raise _too_large(stored.name, stored.length)
            data = read_all(self._handles[number], stored.length, stored.offset)
            if len(data) != stored.length or (stored.crc32 is not None and zlib.crc32(data) != stored.crc32):
                raise _wrong(stored.name)
            found[part] = data
        if any(stored.crc32 is None for stored in parts.values()):
            self._check_version(number)
        return found

    def parts(self, number: int) -> list[str]:
        """Return the parts of a sample, in the order in which they are packed."""
        return list(self._sample(number).parts)

    def key(self, number: int) -> str:
        """Return the key of a sample: what its files have in common."""
        return self._sample(number).key

    def _sample(self, number: int) -> Sample:
        number = range(len(self))[number]  # one from the end, as `read` takes it
        shard = bisect_right(self._starts, number) - 1
        return self._samples[shard][number - self._starts[shard]]

    def num_bytes(self, numbers: Sequence[int]) -> int:
        """Return the size of the files of samples: of all that `read_parts` reads."""
        return sum(map(self._sizes.__getitem__, numbers))

    def close(self) -> None:
        """Close the shards."""
        self._sure_bytes = -1
        while self._opened:
            os.close(self._opened.pop())

    def _check_version(self, number: int) -> None:
        """Raise FetchRejected if the shard of a sample is not the one that was listed any more."""
        shard, version = self._shards[self._handles[number]]
        if version_of(self._handles[number]) != version:
            raise FetchRejected(changed(str(shard)))

    def _check_open(self) -> None:
        """Raise SourceError if it was closed: other files may have the numbers of the shards now."""
        if not self._opened:
            raise SourceError("the shards were closed; open them again to read from them")


def _open_again(path: Named, part: str | None, checks: bool) -> ShardReader:
    return ShardReader(path, part=part, checks=checks)


def _too_large(name: str, length: int) -> FetchRejected:
    return FetchRejected(
        f"tar.size: {name} would take {length:,} bytes of memory, and its shard takes far less of the disk"
    )


def _wrong(name: str) -> FetchRejected:
    return FetchRejected(
        f"tar.checksum: the bytes of {name} are not those that were packed; fetch or pack its shard again"
    )

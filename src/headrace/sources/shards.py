"""The samples of tar shards: one job per sample, whose payload is a place in a shard."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator

from headrace.base.errors import SourceError
from headrace.base.formatting import pluralize
from headrace.base.named_paths import Named, list_paths, show_paths
from headrace.base.pieces import Piece
from headrace.sources.finite import Entry, FiniteSource
from headrace.store.samples import TEXT_PARTS, Sample, Singles
from headrace.store.shards import Listed, find_all_shards, list_shard

logger = logging.getLogger("headrace")


class Shards(FiniteSource):
    """One job per sample: neighbours in a tar with one stem, such as `0001.jpg` and `0001.cls`.

    The id is the name of the file that is the payload. Short texts beside it (`.cls`, `.txt`, `.json`) are attributes of the
    job. An index beside a shard (`headrace pack`) gives places and checksums; without one the headers are read first. A file
    that cannot be read, such as a link or one that was cut off, is a job that is rejected with the reason.

    Args:
        path: A tar file, a folder of them, a pattern such as `shard-{000..009}.tar`, or a list of these, which is sorted.
        part: Which file of a sample is the payload, such as `jpg`; None: the first image, else the first that is no short text.
        max_receives: Tries of one job.
    """

    def __init__(self, path: Named, *, part: str | None = None, max_receives: int = 3) -> None:
        super().__init__(max_receives=max_receives)
        self._paths = list_paths(path, "path", addresses="; hr.objects reads a bucket")
        self._part = part.lower().removeprefix(".") if part else None

    @property
    def where(self) -> str:
        """The absolute path, and the part if one is named."""
        part = f", only {self._part}" if self._part else ""
        return f"the shards {', '.join(map(os.path.abspath, self._paths))}{part}"

    @property
    def gives_files(self) -> bool:
        """True; see `protocols.GivesFiles`."""
        return True

    def entries(self) -> Iterator[Entry]:
        """Return the samples of all shards, in order.

        Raises:
            SourceError: If there are no shards, an index is not of its shard, or nothing at all can be read.
        """
        listed = [list_shard(shard) for shard in find_all_shards(self._paths)]
        if not any(one.samples for one in listed):
            reasons = [flaw.reason for one in listed for flaw in one.flaws]
            raise SourceError(
                f"{show_paths(self._paths)} holds nothing that can be read: {next(iter(reasons), 'its index is empty')}"
            )
        not_single = [one for one in listed if not isinstance(one.samples, Singles)]  # those have no flaws
        num_flaws = sum(len(one.flaws) + sum(bool(sample.flaw) for sample in one.samples) for one in not_single)
        if num_flaws:
            logger.warning(
                "%s: %s cannot be read, and will be rejected", show_paths(self._paths), pluralize(num_flaws, "part")
            )
        return number_ids(entry for one in listed for entry in self._of_shard(one))

    def _of_shard(self, listed: Listed) -> Iterator[Entry]:
        for sample in listed.samples:
            yield self._of_sample(sample, listed)
        yield from self._flaws(listed)

    def _flaws(self, listed: Listed) -> Iterator[Entry]:
        for flaw in listed.flaws:
            name = f"{listed.shard.name}{flaw.name}" if flaw.name.startswith("@") else flaw.name
            yield Entry(name, b"", refused=f"{flaw.reason} (in {listed.shard.name}, header at byte {flaw.offset:,})")

    def _of_sample(self, sample: Sample, listed: Listed) -> Entry:
        chosen = sample.choose(self._part)
        if sample.flaw:
            return Entry(chosen.name if chosen else sample.key, b"", refused=f"{sample.flaw} in {listed.shard.name}")
        if chosen is None:
            has = ", ".join(sample.parts)
            return Entry(sample.key, b"", refused=f"tar.part: the sample has no part {self._part!r}; it has {has}")
        texts = {
            name: one.text.strip() for name in TEXT_PARTS if (one := sample.parts.get(name)) and one.text is not None
        }
        piece = Piece(listed.shard, chosen.offset, chosen.length, chosen.crc32, listed.version)
        return Entry(chosen.name, piece, texts)


def number_ids(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Give ids that come again a number, as one name may be in two shards."""
    seen: dict[str, int] = {}
    for entry in entries:
        count = seen[entry.id] = seen.get(entry.id, 0) + 1
        yield entry if count == 1 else Entry(f"{entry.id}#{count}", entry.payload, entry.attributes, entry.refused)


class ShardFiles(Shards):
    """One job per file of tar shards, for packing them again: the id is its name."""

    def _of_shard(self, listed: Listed) -> Iterator[Entry]:
        for sample in listed.samples:
            for one in sample.parts.values():
                piece = Piece(listed.shard, one.offset, one.length, one.crc32, listed.version)
                yield Entry(one.name, piece, refused=f"{sample.flaw} in {listed.shard.name}" if sample.flaw else "")
        yield from self._flaws(listed)

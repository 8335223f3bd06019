"""One of N portions of a source, for N runs that know nothing of one another, such as the tasks of an array job.

How this works: an item belongs to the portion that a hash of its id names. So each run lists the whole source and keeps its own
items, and an item has one portion whatever order the source is listed in, and although files are added between two starts.
Clips do not list their frames: there a whole clip belongs to a portion, so that none is decoded twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import SettingsError
from headrace.sources.finite import Entry, FiniteSource


@dataclass(frozen=True, slots=True, order=True)
class Portion:
    """Which of how many portions; counted from 0, as array jobs count their tasks."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Portion:
        """Return the portion that a text such as `2/8` names; raises ValueError, saying what was expected."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(count)):
            raise ValueError(f"expected I/N, such as 0/8 for the first of eight portions, got {text!r}")
        if int(index) >= int(count):
            last = int(count) - 1
            raise ValueError(f"portions are counted from 0: the last of {count} is {last}/{count}, got {text}")
        return cls(int(index), int(count))

    @property
    def name(self) -> str:
        """Text for the names of files; in the order of the portions when sorted."""
        return f"{self.index:0{len(str(self.count - 1))}}-of-{self.count}"

    def beside(self, path: Path) -> Path:
        """Return its own file or folder: `out/results.jsonl` -> `out/results-2-of-8.jsonl`."""
        if path.name in ("", ".."):
            raise SettingsError(f"results of portions need a name of their own, such as out/results.jsonl; got {path}")
        return path.with_name(f"{path.stem}-{self.name}{path.suffix}")

    def holds(self, item: str) -> bool:
        """Return whether an item belongs to it."""
        digest = hashlib.blake2b(item.encode(errors="surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self.count == self.index

    def __str__(self) -> str:
        """Return it as `parse` reads it."""
        return f"{self.index}/{self.count}"


def take_portion(source: FiniteSource, portion: Portion) -> FiniteSource:
    """Return the part of a source that is a portion of it; raises as `PortionOf` does."""
    return source.with_parts(f"portion {portion}", portion.holds) or PortionOf(source, portion)


class PortionOf(FiniteSource):
    """The items of a source that belong to one portion of it.

    Args:
        source: Lists its items ahead.
        portion: Which of them.

    Raises:
        SettingsError: If the source does not list its items ahead, or if a run over it could keep no checkpoint.
    """

    def __init__(self, source: FiniteSource, portion: Portion) -> None:
        super().__init__(max_receives=source.max_receives)
        if not source.lists_ahead:
            raise SettingsError(
                f"--shard {portion}: {type(source).__name__} knows its items only once it reads them; give each run files of "
                "its own with --source"
            )
        if source.where is None:
            raise SettingsError(
                f"--shard {portion}: nothing tells where the items of {type(source).__name__} come from, so a portion that ran "
                "twice could not be told from two; name a folder, a list or a bucket with --source"
            )
        self._source = source
        self._portion = portion

    @property
    def where(self) -> str | None:
        """As the other source says, and which portion."""
        return None if self._source.where is None else f"portion {self._portion} of {self._source.where}"

    @property
    def gives_files(self) -> bool:
        """As the other source says."""
        return bool(getattr(self._source, "gives_files", False))

    def entries(self) -> Iterator[Entry]:
        """Return the items of the portion, in the order of the source."""
        number = 0
        for number, entry in enumerate(self._source.entries(), 1):  # noqa: B007 - counted to the end
            if self._portion.holds(entry.id):
                yield entry
        self.num_listed = number

    def job_ids(self) -> Callable[[str], bool]:
        """Return what tells whether a job of the portion may have an id."""
        of_source = self._source.job_ids()
        return lambda item: self._portion.holds(item) and of_source(item)

    def owns(self, item: str) -> bool:
        """Return whether a result of this id is of this portion."""
        return self._portion.holds(item)

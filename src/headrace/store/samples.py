"""Joins the files of one sample: neighbours in a tar with one stem, as WebDataset names them (`0001.jpg`, `0001.cls`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import ne
from typing import overload

import msgspec

#: Parts that are short texts about the sample, which become attributes of its job.
TEXT_PARTS = ("cls", "txt", "json")
#: Bytes of such a text; a longer one stays in the shard.
MOST_TEXT = 4_096
#: Parts that are the payload where a sample has several.
IMAGE_PARTS = frozenset({"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff"})
#: Suffixes of files that hold rows of images; see `sources.records`.
ROW_SUFFIXES = frozenset({
    ".parquet", ".arrow", ".feather", ".tfrecord", ".tfrecords", ".lmdb", ".mdb", ".sqlite", ".sqlite3", ".h5", ".hdf5",
})  # fmt: skip


class Stored(msgspec.Struct, frozen=True, gc=False):
    """One file in a shard; a Struct, as millions of them are made while shards are opened."""

    name: str
    offset: int
    length: int
    crc32: int | None = None
    text: str | None = None
    """Its content, where the index holds it."""


class Sample(msgspec.Struct):
    """The files that belong together."""

    key: str
    parts: dict[str, Stored]
    flaw: str = ""
    """Why it may not be used: one of its files cannot be read. It begins with a code."""

    def choose(self, part: str | None = None) -> Stored | None:
        """Return the file that a job works on; None if the sample has no such part.

        Args:
            part: Its name, such as `jpg` or `seg.png`; None: the first image, else the first that is no short text, else the
                first.
        """
        if part is not None:
            return self.parts.get(part)
        if len(self.parts) == 1:
            return next(iter(self.parts.values()))
        images = (one for name, one in self.parts.items() if name.rpartition(".")[2] in IMAGE_PARTS)
        others = (one for name, one in self.parts.items() if name not in TEXT_PARTS)
        return next(images, None) or next(others, None) or next(iter(self.parts.values()), None)


def split_name(name: str) -> tuple[str, str]:
    """Return the key and the part of a name: what is before and behind the first dot of its last segment."""
    folder, slash, last = name.rpartition("/")
    stem, _, part = last.partition(".")
    return folder + slash + stem, part.lower()


def is_hidden(name: str) -> bool:
    """Return whether tools put a file there for themselves: `.DS_Store`, `._0001.jpg`."""
    return name.rpartition("/")[2].startswith(".")


def join_samples(files: Iterable[Stored]) -> Iterator[Sample]:
    """Yield samples in the order of their first files. A part that comes twice begins a sample of its own."""
    sample: Sample | None = None
    for file in files:
        key, part = split_name(file.name)
        if sample is None or sample.key != key or part in sample.parts:
            if sample is not None:
                yield sample
            sample = Sample(key, {part: file})
        else:
            sample.parts[part] = file
    if sample is not None:
        yield sample


def find_apart(files: Iterable[Stored]) -> list[str]:
    """Return the names of files that are not beside the others of the same sample, and so are samples of their own."""
    keys: set[str] = set()
    names: set[str] = set()
    apart, last = [], None
    for file in files:
        key = split_name(file.name)[0]
        if key != last and key in keys and file.name not in names:
            apart.append(file.name)
        keys.add(key)
        names.add(file.name)
        last = key
    return apart


class Singles(Sequence[Sample]):
    """Samples of one file each, made when they are asked for: most shards have nothing else, and some have millions.

    Args:
        files: Of the samples, in order; see `are_single`.
    """

    def __init__(self, files: Sequence[Stored]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    @overload
    def __getitem__(self, number: int) -> Sample: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Sample]: ...

    def __getitem__(self, number: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(number, slice):
            return Singles(self.files[number])
        file = self.files[number]
        key, part = split_name(file.name)
        return Sample(key, {part: file})


def are_single(files: Sequence[Stored]) -> bool:
    """Return whether each file is sure to be a sample of its own: up to their first dots, neighbours have different names.

    Keys begin with that, so `join_samples` joins none of them. Folders with dots are left to it.
    """
    begins = [file.name.partition(".")[0] for file in files]
    return all(map(ne, begins, begins[1:]))

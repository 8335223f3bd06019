"""The rows of files of records on their way into shards: read once for their names, and again for what is in them.

A row becomes a sample: its value, and beside it a `.json` of the short values of its other columns, if it has any.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from headrace.base.documents import encode_document
from headrace.sources.finite import Entry
from headrace.sources.packing import PackedSource
from headrace.sources.records import Records
from headrace.store.naming import Named
from headrace.store.turns import Turns

#: {what a value begins with: the part that it becomes}.
_BEGINNINGS = {
    b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n": "png", b"GIF8": "gif", b"BM": "bmp", b"II*\x00": "tif", b"MM\x00*": "tif",
    b"\x93NUMPY": "npy",
}  # fmt: skip
_BESIDE = ".json"


def list_rows(source: Records) -> tuple[list[Entry], list[Named]]:
    """Return the items that rows become, without what is in them, and their names in shards."""
    entries, named, keys = [], [], set[str]()
    for row in _rows(source):
        value = row[0]
        key = _key(value.id, keys)
        for entry in row:
            part = "json" if entry is not value else _part(entry.payload)
            named.append(Named(entry.id, f"{key}.{part}", entry is value))
            entries.append(Entry(entry.id, b"", refused=entry.refused))
    return entries, named


class PackedRows(PackedSource):
    """Gives out what rows become, in the order of the files; one that is resumed reads them from the beginning."""

    def __init__(
        self, source: Records, entries: Sequence[Entry], turns: Turns, give_up: Callable[[str, str], object]
    ) -> None:
        super().__init__(source, entries, turns, give_up)
        self._rows = source

    @property
    def where(self) -> str | None:
        """What the rows come from, and which version of it: a changed file has other rows under the same ids."""
        versions = [[part.id, sorted(part.attributes.items())] for part in self._rows.parts()]
        return f"{self._rows.where} ({hashlib.sha256(encode_document(versions)).hexdigest()[:16]})"

    def remaining(self) -> Iterator[Entry | None]:
        """Return the items of a run; of a resumed one first those that are to be tried alone."""
        work_list = self._work_list
        if work_list is None:
            yield from self._items()
            return
        first = [entry.id for entry in work_list.entries[: work_list.num_alone]]
        alone = {entry.id: entry for entry in self._items() if entry.id in set(first)} if first else {}
        yield from (alone[one] for one in first if one in alone)
        others = {entry.id for entry in work_list.entries[work_list.num_alone :]}
        yield from (entry for entry in self._items() if entry.id in others)

    def _items(self) -> Iterator[Entry]:
        return (entry for row in _rows(self._rows) for entry in row)


def _rows(source: Records) -> Iterator[list[Entry]]:
    for entry in source.entries():
        value = Entry(entry.id, _content(entry.payload), refused=entry.refused)
        has_others = bool(entry.attributes) and not entry.refused
        beside = [Entry(f"{entry.id}{_BESIDE}", encode_document(dict(entry.attributes)))] if has_others else []
        yield [value, *beside]


def _content(value: Any) -> Any:
    """Return the bytes that a value is packed as; a path as it is, which is read."""
    if not isinstance(value, np.ndarray):
        return value
    file = io.BytesIO()
    np.lib.format.write_array(file, value, allow_pickle=False)
    return file.getvalue()


def _part(content: Any) -> str:
    if not isinstance(content, bytes):
        suffix = getattr(content, "suffix", "")[1:].lower()
        return suffix if suffix.isalnum() else "bin"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return next((part for start, part in _BEGINNINGS.items() if content.startswith(start)), "bin")


def _key(item: str, keys: set[str]) -> str:
    """Return `train_12` for `train.parquet#12`; with a number behind where two files would have the same."""
    file, _, row = item.rpartition("#")
    folder, slash, name = file.rpartition("/")
    stem = re.sub(r"[^\w\-]+", "_", name.partition(".")[0] or name)[-100:] or "rows"
    folder = re.sub(r"[^\w\-/]+", "_", folder)
    wanted = key = f"{folder}{slash}{stem}_{row or 'rest'}".lstrip("/")
    number = 1
    while key in keys:
        number += 1
        key = f"{wanted}~{number}"
    keys.add(key)
    return key

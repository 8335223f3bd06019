"""LMDB files, read and written without its library: what is not mapped cannot end the process when it is cut off or wrong.

How this works: a file is pages of one size. Two of them, of which the newer holds, say where the root of a tree of keys is; its
leaves hold keys and values, or where a value begins that takes pages of its own. Writers never change a page that the newest
root reaches, but one commit later they may: so after each reading it is looked whether the root is still the same.

References:
    openldap.org, libraries/liblmdb/mdb.c (data version 1): MDB_meta, MDB_db, MDB_page, MDB_node.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from headrace.store.expansion import MOST_BYTES

#: The longest key that LMDB takes.
MOST_KEY_BYTES = 511

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_HEAD = struct.Struct("<QHHHH")  # number, pad, flags, where free space begins and ends (or how many pages follow)
_META = struct.Struct("<IIQQ48s48sQQ")
_DB = struct.Struct("<IHHQQQQQ")  # page size, flags, depth, pages of branches, leaves and overflow, entries, root
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG, _SUB, _DUPLICATES = 1, 2, 4
_NOTHING = 2**64 - 1
_PAGE = 4096
_MOST_DEPTH = 64


class NotLmdb(ValueError):
    """The file is none, is damaged, or was changed while it was read; the message says which."""


class NoTable(ValueError):
    """There are several tables, or not the one that was asked for; the message names them."""


@dataclass(frozen=True, slots=True)
class _State:
    """What one of the first two pages says."""

    commit: int
    page_size: int
    num_pages: int
    root: int
    flags: int


class LmdbReader:
    """Reads the pairs of a file in the order of their keys.

    Args:
        handle: Of the file; it is left open.

    Attributes:
        passed_over: Tables that stand beside the pairs that were read so far.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._state = self._newest()
        self._num_pages = min(self._state.num_pages, os.fstat(handle).st_size // self._state.page_size)
        self._seen = 0
        self.passed_over: list[str] = []

    def pairs(self, table: str | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield all pairs of the unnamed table; of the named one if there is but one and nothing beside it.

        Args:
            table: The name of a table.

        Raises:
            NotLmdb: If it cannot be read, or not to its end.
            NoTable: If it is not clear which table is meant.
        """
        if table is None and not self._holds_tables():
            return self._walk(self._state.root, self._state.flags)
        tables = dict(self._tables())
        if table is None and len(tables) == 1:
            table = next(iter(tables))
        if table not in tables:
            what = f"no table {table!r}" if table is not None else "several tables"
            raise NoTable(f"has {what}; it has {', '.join(tables) or 'none'}")
        return self._walk(*tables[table])

    def _holds_tables(self) -> bool:
        """Return whether the first entry of the unnamed table is a table."""
        self._seen = 0
        for node_flags, _, _ in self._nodes(self._state.root):
            return bool(node_flags & _SUB)
        return False

    def _tables(self) -> Iterator[tuple[str, tuple[int, int]]]:
        self._seen = 0
        for node_flags, key, data in self._nodes(self._state.root):
            if node_flags & _SUB and not node_flags & _DUPLICATES and len(data) == _DB.size:
                flags, root = _DB.unpack(data)[1], _DB.unpack(data)[7]
                yield key.decode("utf-8", "replace"), (root, flags)

    def _walk(self, root: int, flags: int) -> Iterator[tuple[bytes, bytes]]:
        if flags & 4:  # MDB_DUPSORT
            raise NotLmdb("it holds several values for one key, which are not read")
        self._seen = 0
        for node_flags, key, data in self._nodes(root):
            if node_flags & _SUB:
                self.passed_over.append(key.decode("utf-8", "replace"))
                continue
            value = self._big(data) if node_flags & _BIG else data
            if self._newest() != self._state:
                raise NotLmdb("it was written to while it was read")
            yield key, value

    def _nodes(self, root: int, depth: int = 0) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (flags, key, data) of the leaves below a page; of a big value the data are its length and where it is."""
        if root == _NOTHING:
            return
        self._seen += 1
        if depth > _MOST_DEPTH or self._seen > self._num_pages:
            raise NotLmdb(f"its pages lead back to one another (page {root})")
        page = self._page(root)
        _, _, flags, lower, _ = _HEAD.unpack_from(page)
        for offset in self._offsets(page, root, lower):
            low, high, node_flags, key_size = _NODE.unpack_from(page, offset)
            begin = offset + _NODE.size + key_size
            if flags & _BRANCH:
                yield from self._nodes(low | high << 16 | node_flags << 32, depth + 1)
            elif flags & _LEAF:
                length = low | high << 16
                data = page[begin : begin + (8 if node_flags & _BIG else length)]
                if begin > len(page) or len(data) < (8 if node_flags & _BIG else length):
                    raise NotLmdb(f"page {root} is damaged")
                if node_flags & _BIG:
                    data += struct.pack("<Q", length)
                yield node_flags, page[offset + _NODE.size : begin], data
            else:
                raise NotLmdb(f"page {root} is no page of a tree")

    def _offsets(self, page: bytes, number: int, lower: int) -> Sequence[int]:
        if not _HEAD.size <= lower <= len(page) or lower % 2:
            raise NotLmdb(f"page {number} is damaged")
        offsets = struct.unpack_from(f"<{(lower - _HEAD.size) // 2}H", page, _HEAD.size)
        if any(not lower <= offset <= len(page) - _NODE.size for offset in offsets):
            raise NotLmdb(f"page {number} is damaged")
        return offsets

    def _big(self, data: bytes) -> bytes:
        number, length = struct.unpack("<QQ", data)
        begin = number * self._state.page_size
        if length > MOST_BYTES or number >= self._num_pages:
            raise NotLmdb(f"the value at page {number} is damaged")
        found = os.pread(self._handle, _HEAD.size + length, begin)
        if len(found) < _HEAD.size + length or not _HEAD.unpack_from(found)[2] & _OVERFLOW:
            raise NotLmdb(f"the value at page {number} is damaged, or cut off")
        return found[_HEAD.size :]

    def _page(self, number: int) -> bytes:
        size = self._state.page_size
        page = os.pread(self._handle, size, number * size) if number < self._num_pages else b""
        if len(page) < size:
            raise NotLmdb(f"page {number} is not there: the file is cut off")
        if _HEAD.unpack_from(page)[0] != number:
            raise NotLmdb(f"page {number} is another one")
        return page

    def _newest(self) -> _State:
        first = self._read_state(0)
        size = first.page_size if first else _PAGE
        found = [one for one in (first, self._read_state(size)) if one is not None]
        if not found:
            raise NotLmdb("it is no LMDB file of version 0.9")
        return max(found, key=lambda one: one.commit)

    def _read_state(self, offset: int) -> _State | None:
        data = os.pread(self._handle, _HEAD.size + _META.size, offset)
        if len(data) < _HEAD.size + _META.size or not _HEAD.unpack_from(data)[2] & _META_PAGE:
            return None
        magic, version, _, _, free, main, last, commit = _META.unpack_from(data, _HEAD.size)
        page_size, flags, root = _DB.unpack(free)[0], _DB.unpack(main)[1], _DB.unpack(main)[7]
        if (magic, version) != (_MAGIC, _VERSION) or page_size not in (2**power for power in range(9, 17)):
            return None
        return _State(commit, page_size, last + 1, root, flags)


def write_lmdb(
    file: BinaryIO, keys: Sequence[bytes], length_of: Callable[[int], int], read: Callable[[int], bytes]
) -> None:
    """Write a file whose keys map to values.

    Args:
        file: Open for writing, empty.
        keys: Sorted, different, 1 to `MOST_KEY_BYTES` bytes each.
        length_of: Returns how long the value of the key with this number is.
        read: Returns that value.
    """
    writer = _Writer(file)
    writer.write(keys, length_of, read)


class _Writer:
    """Writes leaves and their values one behind the other, then the branches above them, at last the first two pages."""

    #: A leaf holds at least two pairs, so longer ones have pages of their own: as mdb.c calculates it.
    _MOST_INSIDE = ((_PAGE - _HEAD.size) // 2 & ~1) - 2

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._next = 2
        self._counts = {_BRANCH: 0, _LEAF: 0, _OVERFLOW: 0}

    def write(self, keys: Sequence[bytes], length_of: Callable[[int], int], read: Callable[[int], bytes]) -> None:
        self._file.write(bytes(2 * _PAGE))
        level = self._leaves(keys, length_of, read)
        depth = 1 if level else 0
        while len(level) > 1:
            level, depth = self._branches(level), depth + 1
        root = level[0][1] if level else _NOTHING
        self._file.seek(0)
        for number in (0, 1):
            main = _DB.pack(0, 0, depth, *self._counts.values(), len(keys), root)
            free = _DB.pack(_PAGE, 0, 0, 0, 0, 0, 0, _NOTHING)
            size = self._next * _PAGE
            meta = _META.pack(_MAGIC, _VERSION, 0, size, free, main, self._next - 1, number)
            self._file.write((_HEAD.pack(number, 0, _META_PAGE, 0, 0) + meta).ljust(_PAGE, b"\0"))

    def _leaves(
        self, keys: Sequence[bytes], length_of: Callable[[int], int], read: Callable[[int], bytes]
    ) -> list[tuple[bytes, int]]:
        """Return (first key, page) of the leaves."""
        found: list[tuple[bytes, int]] = []
        nodes: list[bytes] = []
        first, used = b"", 0
        for number, key in enumerate(keys):
            length = length_of(number)
            is_big = _NODE.size + len(key) + length > self._MOST_INSIDE
            size = _even(_NODE.size + len(key) + (8 if is_big else length)) + 2
            if nodes and used + size > _PAGE - _HEAD.size:
                found.append((first, self._page(_LEAF, nodes)))
                nodes, used = [], 0
            if not nodes:
                first = key
            data = struct.pack("<Q", self._overflow(read(number))) if is_big else read(number)
            head = _NODE.pack(length & 0xFFFF, length >> 16, _BIG if is_big else 0, len(key))
            nodes.append(head + key + data)
            used += size
        if nodes:
            found.append((first, self._page(_LEAF, nodes)))
        return found

    def _branches(self, level: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
        """Return (first key, page) of the branches above pages; the first key of a branch is empty."""
        found: list[tuple[bytes, int]] = []
        nodes: list[bytes] = []
        first, used = b"", 0
        for place, (key, page) in enumerate(level):
            size = _even(_NODE.size + len(key)) + 2
            # One alone is no branch: the last page is not left without a neighbour.
            is_full = used + size > _PAGE - _HEAD.size or (place == len(level) - 2 and used + 2 * size + 1024 > _PAGE)
            if len(nodes) >= 2 and is_full:
                found.append((first, self._page(_BRANCH, nodes)))
                nodes, used = [], 0
            if not nodes:
                first, shown = key, b""
            else:
                shown = key
            nodes.append(_NODE.pack(page & 0xFFFF, page >> 16 & 0xFFFF, page >> 32, len(shown)) + shown)
            used += size
        found.append((first, self._page(_BRANCH, nodes)))
        return found

    def _overflow(self, data: bytes) -> int:
        number = self._next
        pages = -(-(_HEAD.size + len(data)) // _PAGE)
        head = struct.pack("<QHHI", number, 0, _OVERFLOW, pages)
        self._file.write(head)
        self._file.write(data)
        self._file.write(bytes(pages * _PAGE - _HEAD.size - len(data)))
        self._next += pages
        self._counts[_OVERFLOW] += pages
        return number

    def _page(self, flags: int, nodes: Sequence[bytes]) -> int:
        number, self._next = self._next, self._next + 1
        self._counts[flags] += 1
        page, upper, offsets = bytearray(_PAGE), _PAGE, []
        for node in nodes:
            upper -= _even(len(node))
            page[upper : upper + len(node)] = node
            offsets.append(upper)
        lower = _HEAD.size + 2 * len(nodes)
        page[: _HEAD.size] = _HEAD.pack(number, 0, flags, lower, upper)
        page[_HEAD.size : lower] = struct.pack(f"<{len(nodes)}H", *offsets)
        self._file.write(page)
        return number


def _even(size: int) -> int:
    return size + (size & 1)

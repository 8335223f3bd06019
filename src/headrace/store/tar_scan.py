"""Walks the headers of a tar file that anybody may have made, and unpacks nothing.

Nothing is written by a member's name, and links are not followed; so a name such as `../../etc/passwd` is only a strange name.
It is refused all the same, as names become ids and perhaps files later. What is refused: a link, a device, a sparse file, a
name that leads out of the archive, a member that is cut off. Each becomes a `Flaw`, which costs one item. Where no header can
be found any more, what is behind it cannot be found either: that is one `Flaw`, too, and it says how many bytes are lost.

A file that tar was given twice is a member, and later a hard link from its name to itself: that says nothing new, and is passed
over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.base.formatting import encodable
from headrace.store.tar_header import BLOCK, COMPRESSED, BadHeader, Header, padded, read_header, read_pax

#: Bytes of a name, or of the PAX records of one member.
_LONGEST_NAME = 4_096
_LARGEST_RECORDS = 1 << 20
_ZEROS = bytes(1 << 20)
_REFUSED = {
    "1": ("tar.link", "it is a link to another member"),
    "2": ("tar.link", "it is a symbolic link"),
    "3": ("tar.special", "it is a device"),
    "4": ("tar.special", "it is a device"),
    "6": ("tar.special", "it is a pipe"),
    "S": ("tar.sparse", "it is a sparse file, whose bytes do not lie in one place; pack it with tar without --sparse"),
    "M": ("tar.special", "it is the rest of a file that began in another archive"),
}
#: A folder, a volume's label, a list of a folder's files: they have no bytes that anybody wants.
_SKIPPED = frozenset("5VD")
_FILES = frozenset("07")

#: Symbolic links, devices, folders and pipes: POSIX lets a folder have a size, and none of them data behind its header.
_WITHOUT_DATA = frozenset("23456")


@dataclass(frozen=True, slots=True)
class Member:
    """One file in a tar."""

    name: str
    offset: int
    """Of its first byte in the tar."""
    length: int


@dataclass(frozen=True, slots=True)
class Flaw:
    """What cannot be read."""

    name: str
    offset: int
    """Of its header."""
    reason: str
    """Begins with a code, such as `tar.truncated`."""


@dataclass(slots=True)
class _Pending:
    """What the headers before a member said of it."""

    name: bytes | None = None
    target: bytes | None = None
    size: int | None = None
    is_sparse: bool = False
    flaw: tuple[str, str] | None = None
    begins: int | None = None
    """Where the first of these headers is."""


@dataclass(slots=True)
class TarScan:
    """Lists what is in an open tar file. Iterate over it once.

    Args:
        handle: Open for reading.

    Attributes:
        num_archives: How many archives were found, one behind the other; known at the end.
        has_end: Whether the last one ended as it should; known at the end.
    """

    handle: int
    num_archives: int = 1
    has_end: bool = False
    _at: int = 0
    _size: int = 0
    _pending: _Pending = field(default_factory=_Pending)
    _names: set[str] = field(default_factory=set)

    def __iter__(self) -> Iterator[Member | Flaw]:
        """Yield members and flaws in the order of the file."""
        self._size = os.fstat(self.handle).st_size
        while self._at < self._size:
            block = os.pread(self.handle, BLOCK, self._at)
            if not any(block):
                self._skip_zeros()
                continue
            if self.has_end:
                self.num_archives, self.has_end = self.num_archives + 1, False
            begins = self._at if self._pending.begins is None else self._pending.begins
            try:
                found = self._read(read_header(block), begins)
            except BadHeader as error:
                yield self._lost(begins, str(error))
                return
            if found is not None:
                yield found
        if self._pending.begins is not None:
            yield Flaw(
                self._where(self._pending.begins), self._pending.begins, "tar.truncated: it ends before a member"
            )

    def _skip_zeros(self) -> None:
        """Go to the next block that is not empty."""
        self.has_end = True
        while self._at < self._size:
            chunk = os.pread(self.handle, len(_ZEROS), self._at)
            if chunk == _ZEROS[: len(chunk)]:
                self._at += max(len(chunk), 1)
                continue
            used = len(chunk) - len(chunk.lstrip(b"\0"))
            self._at += used // BLOCK * BLOCK
            return

    def _read(self, header: Header, begins: int) -> Member | Flaw | None:
        """Return what a header means, and go on behind its data."""
        data = self._at + BLOCK
        if header.kind in "xgLK":
            self._pending.begins = begins
            self._read_extension(header, data)
            return None
        pending, self._pending = self._pending, _Pending()
        if header.kind == "S" and header.is_sparse_continued:
            data = self._skip_sparse_map(data)
        size = header.size if pending.size is None else pending.size
        if header.kind in _WITHOUT_DATA or (header.kind == "1" and pending.size is None and self._begins_another(data)):
            size = 0
        name = self._name(header.name if pending.name is None else pending.name)
        end = data + size
        self._at = data + padded(size)
        if end > self._size:
            self._at = self._size
            there = max(0, self._size - data)
            return Flaw(name, begins, f"tar.truncated: {there:,} of its {size:,} bytes are there: the file is cut off")
        target = header.target if pending.target is None else pending.target
        if header.kind == "1" and name in self._names and self._name(target) == name:
            return None
        flaw = pending.flaw or _flaw_of(header.kind, name, is_sparse=pending.is_sparse)
        if flaw is not None:
            return Flaw(name or self._where(begins), begins, ": ".join(flaw))
        if header.kind not in _FILES:
            return None
        self._names.add(name)
        return Member(name, data, size)

    def _begins_another(self, at: int) -> bool:
        """Return whether a member or the end is there: archives in PAX form, and no others, have data behind a hard link."""
        block = os.pread(self.handle, BLOCK, at)
        with contextlib.suppress(BadHeader):
            return not any(block) or bool(read_header(block))
        return False

    def _read_extension(self, header: Header, data: int) -> None:
        """Take in a header that is about the next member."""
        self._at = data + padded(header.size)
        if header.size > (_LONGEST_NAME if header.kind in "LK" else _LARGEST_RECORDS):
            self._pending.flaw = ("tar.header", f"the header before it has {header.size:,} bytes")
            return
        content = os.pread(self.handle, header.size, data)
        if len(content) < header.size:
            raise BadHeader("it ends within a header")
        if header.kind == "L":
            self._pending.name = content.rstrip(b"\0")
            return
        if header.kind == "K":
            self._pending.target = content.rstrip(b"\0")
            return
        records = read_pax(content)
        if header.kind == "g":
            if records.keys() & {b"path", b"size"}:
                raise BadHeader("a header for all members gives them one name or size")
            self._pending.begins = None
            return
        # Of a sparse file, `path` is a place that GNU tar made up.
        self._pending.name = records.get(b"GNU.sparse.name", records.get(b"path", self._pending.name))
        self._pending.target = records.get(b"linkpath", self._pending.target)
        self._pending.is_sparse = any(key.startswith(b"GNU.sparse") for key in records)
        if b"size" in records:
            if not records[b"size"].isdigit() or len(records[b"size"]) > 19:
                raise BadHeader("a size in PAX form is no number")
            self._pending.size = int(records[b"size"])

    def _skip_sparse_map(self, data: int) -> int:
        while True:
            block = os.pread(self.handle, BLOCK, data)
            if len(block) < BLOCK:
                raise BadHeader("it ends within the map of a sparse file")
            data += BLOCK
            if block[504] != 1:
                return data

    def _lost(self, at: int, why: str) -> Flaw:
        self._at, lost = self._size, self._size - at
        if at and lost < BLOCK:
            return Flaw(self._where(at), at, "tar.truncated: it ends within a header: the file is cut off")
        start = os.pread(self.handle, 6, 0) if at == 0 else b""
        packed = next((name for magic, name in COMPRESSED.items() if start.startswith(magic)), "")
        if packed:
            why = (
                f"it is compressed ({packed}), and members of a compressed file cannot be read at random; uncompress it"
            )
        return Flaw(
            self._where(at),
            at,
            f"tar.damaged: no tar header at byte {at:,} ({why}); the last {lost:,} bytes are not read",
        )

    def _where(self, at: int) -> str:
        return f"@{at}"

    def _name(self, name: bytes) -> str:
        return encodable(name.removeprefix(b"./").decode("utf-8", "surrogateescape"))


def _flaw_of(kind: str, name: str, *, is_sparse: bool) -> tuple[str, str] | None:
    """Return code and reason why a member is refused; None if it is not."""
    if kind in _SKIPPED:
        return None
    if is_sparse:
        return _REFUSED["S"]
    if kind in _REFUSED:
        return _REFUSED[kind]
    if kind not in _FILES:
        return ("tar.special", f"it is of kind {kind!a}, which only some tools know")
    if name.startswith("/") or ".." in name.split("/"):
        return ("tar.path", "its name leads out of the archive")
    if not name or name.endswith("/") or "\0" in name or len(name) > _LONGEST_NAME:
        return ("tar.name", f"its name has {len(name):,} characters; expected 1 to {_LONGEST_NAME:,}, and no zero")
    return None

"""One block of 512 bytes of a tar file: read from anybody's file, and written in the one form that every tool reads."""

from __future__ import annotations

from dataclasses import dataclass

#: A header's size, and what members are padded to.
BLOCK = 512
#: Two blocks of zeros end an archive.
END = bytes(2 * BLOCK)
#: What begins a file that was compressed as a whole.
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_CHECKSUM = slice(148, 156)
#: The checksum is taken with spaces in its own place.
_SPACES_SUM = 8 * ord(" ")


class BadHeader(ValueError):
    """A block is no header of a tar file."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says."""

    name: bytes
    size: int
    kind: str
    """One character: `0` is a file, `5` a folder, `x` a header in PAX form for the next member, ..."""
    is_sparse_continued: bool
    """GNU's old sparse files: more blocks of the map follow."""
    target: bytes = b""
    """Of a link."""


def read_header(block: bytes) -> Header:
    """Return what a block says; raises BadHeader if it is none."""
    if len(block) < BLOCK:
        raise BadHeader(f"{len(block)} of {BLOCK} bytes are there")
    said = _number(block[_CHECKSUM])
    # Some old tools add the bytes as signed numbers.
    unsigned = sum(block) - sum(block[_CHECKSUM]) + _SPACES_SUM
    if said != unsigned and said != unsigned - 256 * sum(byte > 127 for byte in block):
        raise BadHeader(f"its checksum says {said}, and the bytes come to {unsigned}")
    name = block[:100].partition(b"\0")[0]
    is_posix = block[257:263] == b"ustar\0"
    prefix = block[345:500].partition(b"\0")[0] if is_posix else b""
    kind = chr(block[156]) if block[156] else "0"
    if not block[156] and name.endswith(b"/"):  # as tools of before 1988 write a folder
        kind = "5"
    target = block[157:257].partition(b"\0")[0]
    return Header(prefix + b"/" + name if prefix else name, _number(block[124:136]), kind, block[482] == 1, target)


def padded(size: int) -> int:
    """Return how many bytes a member of this size takes without its header."""
    return -(-size // BLOCK) * BLOCK


def make_header(name: bytes, size: int, kind: str = "0") -> bytes:
    """Return the header block of a file that bears no time and no owner: the same bytes on every machine.

    Args:
        name: At most 100 bytes.
        size: Less than 8 GiB.
        kind: As in `Header`.
    """
    if len(name) > 100 or size >= 8**11:
        raise BadHeader("the name or size does not fit into one block")
    digits, letter = b"%011o\0" % size, kind.encode()
    checksum = _CONSTANT_SUM + sum(name) + sum(digits) + letter[0]
    block = (name.ljust(100, b"\0"), _OWNER, digits, _TIME, b"%06o\0 " % checksum, letter, _REST)
    return b"".join(block)


#: What stands between the fields that differ: mode 644, no owner, no time, and `ustar` with nothing behind it.
_OWNER, _TIME, _REST = (
    b"0000644\0" + b"0000000\0" * 2,
    b"00000000000\0",
    (bytes(100) + b"ustar\x0000").ljust(355, b"\0"),
)
_CONSTANT_SUM = sum(_OWNER) + sum(_TIME) + sum(_REST) + _SPACES_SUM


def make_headers(name: str, size: int) -> bytes:
    """Return all blocks before a file's bytes: one, and before it two or more in PAX form where one does not suffice."""
    encoded = name.encode()
    if len(encoded) <= 100 and size < 8**11:
        return make_header(encoded, size)
    records = _pax_record(b"path", encoded) + (_pax_record(b"size", b"%d" % size) if size >= 8**11 else b"")
    short = encoded[:100].decode(errors="ignore").encode()
    extended = make_header(b"PaxHeaders/headrace", len(records), "x") + records.ljust(padded(len(records)), b"\0")
    return extended + make_header(short, size if size < 8**11 else 0)


def read_pax(data: bytes) -> dict[bytes, bytes]:
    """Return the records of a header in PAX form; raises BadHeader if they are none."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        digits, space, _ = data[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() and space else 0
        record = data[at : at + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if length <= len(digits) + 1 or len(record) < length or record[-1:] != b"\n" or not equals:
            raise BadHeader("a record in PAX form is damaged")
        records[key] = value
        at += length
    return records


def _pax_record(key: bytes, value: bytes) -> bytes:
    """Return `LENGTH KEY=VALUE` and a line feed, where LENGTH counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _number(field: bytes) -> int:
    """Return a number in octal digits, or in GNU's binary form."""
    if field[0] & 0x80:
        number = int.from_bytes(field, "big", signed=True) & ((1 << (8 * len(field) - 1)) - 1)
        if field[0] & 0x40:
            raise BadHeader("a number is negative")
        return number
    text = field.partition(b"\0")[0].strip()  # as tarfile and GNU tar do, also where more stands behind it
    if text.strip(
        b"01234567"
    ):  # `int` takes signs and underlines, too: a negative size would lead back to its own header
        raise BadHeader(f"{bytes(text)!r} is no octal number")
    return int(text, 8) if text else 0

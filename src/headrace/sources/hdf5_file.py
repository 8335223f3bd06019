"""Reads an HDF5 file by its library, in a process of its own: what is asked comes from stdin, rows go to stdout.

Run by `hdf5_rows`; see there.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import IO, Any

import h5py
import msgspec
import numpy as np

from headrace.store.expansion import MOST_BYTES

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 64, 2**24
#: Of values of any length, whose bytes nobody knows before.
_VALUES_AT_ONCE = 8
#: Memory of this process, beyond what it has before it opens the file.
_MOST_MEMORY = 6 * MOST_BYTES
#: Data sets of a group that are looked at to see what they are.
_LOOKED_AT = 1_000
#: Of a row: so many bytes that are all those of no value are no accident.
_TELLING_BYTES = 16
_LENGTH = struct.Struct("<Q")
_Message = Mapping[str, Any]


class _Unclear(Exception):
    """Something has to be named; the message says what."""


def answer(asked: Mapping[str, Any], next_message: Iterator[Mapping[str, Any]]) -> Iterator[_Message]:
    """Yield the messages about a file: what columns it has; then, once it is said which are wanted, its rows.

    Raises:
        _Unclear: If another group has to be named.
    """
    with h5py.File(asked["path"], "r") as file:
        group = _group(asked["path"], file, asked["table"])
        found = dict(islice(_inside(group), _LOOKED_AT))
        is_each = asked["each"] or _are_items(found)
        if not is_each:
            found = {name: one for name, one in found.items() if one.ndim}
        if not found:
            raise _Unclear(
                f"{asked['path']} has no data set in {group.name}; the groups there are {_groups(group)}: name one with table="
            )
        kinds = {name: _kind_of(one) for name, one in found.items()}
        yield {"kinds": {name: kind for name, kind in kinds.items() if kind}, "each": is_each}
        wanted = next(next_message)
        if wanted["each"]:
            yield from _items(group, asked["cpu_seconds"])
        else:
            yield from _rows(found, wanted["columns"], kinds, asked["cpu_seconds"])


def _rows(
    found: Mapping[str, Any], columns: Sequence[str], kinds: Mapping[str, str], seconds: int
) -> Iterator[_Message]:
    payload, number, unwritten = found[columns[0]], len(found[columns[0]]), 0
    columns = [name for name in columns if found[name].ndim and len(found[name]) == number]
    step = min(_rows_at_once(found[name]) for name in columns)
    for start in range(0, number, step):
        _limit_time(seconds)
        _check_written(payload, start, min(start + step, number))
        parts = [found[name][start : start + step] for name in columns]
        empty = _count_empty(parts[0], payload)
        unwritten = unwritten + empty if empty == len(parts[0]) else empty
        for row in zip(*parts, strict=True):
            yield {"row": {name: _value_of(value, kinds[name]) for name, value in zip(columns, row, strict=True)}}
    if unwritten:
        yield {
            "warning": f"the last {unwritten:,} of {number:,} rows of {payload.name} hold nothing but {payload.fillvalue}, as "
            "rows do that were never written; they are given all the same"
        }


def _items(group: Any, seconds: int) -> Iterator[_Message]:
    """Yield each data set as a row."""
    for name, one in _inside(group):
        _limit_time(seconds)
        size = one.dtype.itemsize * int(np.prod(one.shape, dtype=float))
        if size > MOST_BYTES:
            yield {"refused": f"records.size: {one.name} takes {size:,} bytes, more than {MOST_BYTES:,}"}
            continue
        if one.ndim:
            _check_written(one, 0, len(one))
        kind = "binary" if _holds_bytes(one) else ""
        yield {"row": {"value": _value_of(one[()], kind), "name": name}}


def _group(path: str, file: Any, name: str | None) -> Any:
    group = file
    for part in filter(None, (name or "").split("/")):
        if _is_hard(group, part) and hasattr(group[part], "keys"):
            group = group[part]
            continue
        raise _Unclear(f"{path} has no group {name!r}; {group.name} has {_groups(group)}")
    return group


def _groups(group: Any) -> str:
    """Return the names of the groups in a group, to be shown."""
    return ", ".join(one for one in group if _is_hard(group, one) and hasattr(group[one], "keys")) or "none"


def _is_hard(group: Any, name: str) -> bool:
    """Return whether a name is of something in the file itself: a link may lead to another file."""
    return name in group and type(group.get(name, getlink=True)).__name__ == "HardLink"


def _inside(group: Any) -> Iterator[tuple[str, Any]]:
    """Yield the data sets of a group whose content is in this file."""
    for name in group:
        one = group[name] if _is_hard(group, name) else None
        # A structure is no value, nor is what names another data set.
        if not isinstance(one, h5py.Dataset) or one.dtype.names is not None or h5py.check_ref_dtype(one.dtype):
            continue
        if one.shape is not None and not one.is_virtual and not one.external:
            yield name, one


def _holds_bytes(one: Any) -> bool:
    """Return whether a data set as a whole may be the bytes of a file."""
    if one.ndim:
        return bool(one.ndim == 1 and one.dtype == np.uint8 and h5py.check_vlen_dtype(one.dtype) is None)
    return bool(one.dtype.kind == "V" or h5py.check_string_dtype(one.dtype) is not None)


def _are_items(found: Mapping[str, Any]) -> bool:
    """Return whether data sets are surely an item each: the bytes of files of several lengths."""
    sizes = {len(one) if one.ndim else one.dtype.itemsize for one in found.values()}
    no_rows = all(not one.ndim for one in found.values())
    return bool(found) and all(map(_holds_bytes, found.values())) and (len(sizes) > 1 or no_rows)


def _rows_at_once(one: Any) -> int:
    """Return how many rows of a data set are read at once.

    Raises:
        ValueError: If a row, or what has to be unpacked for it, is too large to be believed.
    """
    row = one.dtype.itemsize * int(np.prod(one.shape[1:], dtype=float))
    chunk = one.dtype.itemsize * int(np.prod(one.chunks or (0,), dtype=float))
    if max(row, chunk) > MOST_BYTES:
        raise ValueError(f"{one.name}: a row or chunk takes {max(row, chunk):,} bytes, more than {MOST_BYTES:,}")
    most = _VALUES_AT_ONCE if one.dtype.kind == "O" else _ROWS_AT_ONCE
    return max(1, min(most, int(_BYTES_AT_ONCE // max(1, row))))


def _check_written(one: Any, start: int, end: int) -> None:
    """Raise ValueError if rows were never written: the library would make up values for them, as many as the file says."""
    if not one.dtype.itemsize or not all(one.shape):
        return
    rows = one.chunks[0] if one.chunks else end
    for row in range(start // rows * rows, end, rows) if one.chunks else ():
        if one.id.get_chunk_info_by_coord((row, *[0] * (one.ndim - 1))).byte_offset is None:
            raise ValueError(f"{one.name}: nothing was ever written at row {row:,}")
    if not one.chunks and not one.id.get_storage_size():
        raise ValueError(f"{one.name}: nothing was ever written")


def _count_empty(rows: Any, one: Any) -> int:
    """Return how many rows at the end hold nothing but what stands where nothing was written."""
    if one.dtype.kind not in "biuf" or one.ndim < 2 or rows[:1].nbytes < _TELLING_BYTES:
        return 0
    count = 0
    while count < len(rows) and bool(np.all(rows[-1 - count] == one.fillvalue)):
        count += 1
    return count


def _kind_of(one: Any) -> str:
    """Return what the items of a data set are, in Arrow's words; `uint8*`: bytes one by one."""
    kind = one.dtype
    inner = h5py.check_vlen_dtype(kind)
    if (text := h5py.check_string_dtype(kind)) is not None:
        return "string" if text.encoding == "utf-8" else "binary"
    if inner == np.uint8 or (kind.kind == "V" and kind.names is None):
        return "binary"
    if inner is not None or one.ndim > 1:
        return "list"
    if kind == np.uint8:
        return "uint8*"
    return {"i": "int64", "u": "uint64", "f": "double", "b": "bool"}.get(kind.kind, "other")


def _value_of(value: Any, kind: str) -> Any:
    """Return an item of a data set as what a message may hold."""
    if kind == "binary":
        return (
            bytes(value) if isinstance(value, bytes) else value.encode() if isinstance(value, str) else value.tobytes()
        )
    if isinstance(value, bytes):
        return _text_or_bytes(value) if kind == "string" else value
    if isinstance(value, np.generic) and isinstance(value.item(), bool | int | float | bytes):
        return value.item()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return {"data": value.tobytes(), "type": value.dtype.str, "shape": value.shape}
    if isinstance(value, np.ndarray):
        return [_value_of(one, kind) for one in value]
    return value if isinstance(value, str) else str(value)


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _limit_time(seconds: int) -> None:
    """Let the kernel end this process if it takes so much processor time from here on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + seconds
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard < 0 else min(most, hard), hard))


def _limit_memory() -> None:
    """Let the kernel refuse this process memory that no file can need."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = used + _MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def _messages(file: IO[bytes]) -> Iterator[Mapping[str, Any]]:
    while head := file.read(_LENGTH.size):
        yield msgspec.msgpack.decode(file.read(_LENGTH.unpack(head)[0]))


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks decides
    out, messages = sys.stdout.buffer, _messages(sys.stdin.buffer)

    def send(message: _Message) -> None:
        data = msgspec.msgpack.encode(message)
        out.write(_LENGTH.pack(len(data)) + data)
        if "row" not in message:
            out.flush()

    asked = next(messages)
    _limit_memory()
    _limit_time(asked["cpu_seconds"])
    try:
        for message in answer(asked, messages):
            send(message)
        send({})
    except BrokenPipeError:  # nobody wants more
        os._exit(0)
    except _Unclear as error:
        send({"unclear": str(error)})
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
        send({"damaged": str(error) or type(error).__name__})


if __name__ == "__main__":
    _main()

"""Values between processes: structure as MessagePack, arrays and long bytes through shared memory; nothing is pickled.

One arena per direction and child. A request is answered before the next is written, so an arena is free again by then.

A value arrives as it was sent or not at all: MessagePack alone would turn tuples and sets into lists and dataclasses into
dicts, and a stage would then answer differently in another process.

Who cleans up: the owner of an arena removes it. All processes of a run share one resource tracker (multiprocessing's),
which outlives them and removes what a killed owner left; until then `sweep` does, for a child that died.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import Shortage, StageFailed
from headrace.base.signals import shelter_tracker
from headrace.base.units import format_size
from headrace.pipeline.sizes import holds_only_plain

_ARRAY = 1
_BYTES = 2
_SCALAR = 3
_TUPLE = 4
_SHARED_MEMORY = Path("/dev/shm")
#: Shorter bytes travel inside the message.
_INLINE_BYTES = 1024
_ALIGNMENT = 64


class _ArrayHeader(msgspec.Struct, array_like=True):
    offset: int
    dtype: str
    shape: tuple[int, ...]


class _BytesHeader(msgspec.Struct, array_like=True):
    offset: int
    length: int


_headers = msgspec.msgpack.Encoder()
# Built before threads start: see `remote`.
_array_headers, _bytes_headers = msgspec.msgpack.Decoder(_ArrayHeader), msgspec.msgpack.Decoder(_BytesHeader)


class Arena:
    """A growing piece of shared memory that one process writes and another reads.

    Args:
        name: Of an arena to attach to; None makes one.
        prefix: What the names of one that is made begin with.
        num_bytes: Size of one that is made.

    Raises:
        NoSharedMemory: If there is not so much shared memory.
    """

    def __init__(self, name: str | None = None, *, prefix: str = "", num_bytes: int = 1 << 20) -> None:
        self._owner = name is None
        self._prefix = prefix or new_prefix()
        # Attaching registers the name with the tracker a second time, which changes nothing; unregistering here, as often
        # advised, would make the tracker forget the owner's registration, for it is the same tracker.
        self._memory = shared_memory.SharedMemory(name=name) if name else _make(self._prefix, num_bytes)
        self._used = 0

    @property
    def name(self) -> str:
        """What the other side attaches to; changes when the arena grows."""
        return self._memory.name

    @property
    def _view(self) -> memoryview:
        view = self._memory.buf
        if view is None:
            raise RuntimeError("the arena was closed")
        return view

    def reset(self) -> None:
        """Forget what was written."""
        self._used = 0

    def reserve(self, num_bytes: int) -> None:
        """Make room for a whole message; only between `reset` and the first `write`.

        Raises:
            NoSharedMemory: If there is not so much shared memory; the arena is as it was.
        """
        if num_bytes > self._memory.size:
            larger = _make(self._prefix, num_bytes + num_bytes // 4)
            self.close()
            self._memory = larger

    def write(self, data: np.ndarray | bytes) -> int:
        """Copy data in and return its offset."""
        offset = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        num_bytes = data.nbytes if isinstance(data, np.ndarray) else len(data)
        if isinstance(data, np.ndarray):
            place: np.ndarray = np.ndarray(data.shape, data.dtype, self._memory.buf, offset)
            place[...] = data
        else:
            self._view[offset : offset + num_bytes] = data
        self._used = offset + num_bytes
        return offset

    def array(self, header: _ArrayHeader) -> np.ndarray:
        """Return the array at a place, as a view."""
        return np.ndarray(header.shape, np.dtype(header.dtype), self._memory.buf, header.offset)

    def bytes(self, header: _BytesHeader) -> bytes:
        """Return the bytes at a place."""
        return bytes(self._view[header.offset : header.offset + header.length])

    def close(self) -> None:
        """Detach; the owner's memory goes away."""
        with contextlib.suppress(BufferError):  # a view still lives; the memory goes with the process
            self._memory.close()
        if self._owner:
            with contextlib.suppress(FileNotFoundError):
                self._memory.unlink()


_prefixes = itertools.count(1)
_serials = itertools.count(1)


def new_prefix() -> str:
    """Return what the names of one child's arenas begin with; unique on this machine."""
    return f"headrace-{os.getpid()}-{next(_prefixes)}-{os.urandom(3).hex()}-"


def sweep(prefix: str) -> None:
    """Remove the arenas that a dead process left."""
    for path in _SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(FileNotFoundError):
            left = shared_memory.SharedMemory(name=path.name)
            left.close()
            left.unlink()


def _make(prefix: str, num_bytes: int) -> shared_memory.SharedMemory:
    shelter_tracker()
    memory = shared_memory.SharedMemory(name=f"{prefix}{next(_serials)}", create=True, size=num_bytes)
    try:
        # Without this, memory that is not there (containers often have 64 MB) kills the process that writes to it, by SIGBUS.
        os.posix_fallocate(memory._fd, 0, num_bytes)  # type: ignore[attr-defined]  # noqa: SLF001
    except OSError as error:
        memory.close()
        memory.unlink()
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise NoSharedMemory(
            f"{format_size(num_bytes)} more of shared memory were needed, and {_free()}; give {_SHARED_MEMORY} more room "
            "(docker run --shm-size=1g), use fewer workers (stages.NAME.workers), or executor = 'thread'"
        ) from None
    return memory


class NoSharedMemory(OSError):
    """There is no room for an arena: two for each process, of 1 MiB to begin with and as large as its largest message."""


def _free() -> str:
    try:
        state = os.statvfs(_SHARED_MEMORY)
    except OSError as error:
        return f"{_SHARED_MEMORY} cannot be looked at ({error.strerror})"
    sizes = [format_size(blocks * state.f_frsize) for blocks in (state.f_bavail, state.f_blocks)]
    return f"{sizes[0]} of {sizes[1]} are free in {_SHARED_MEMORY}"


def pack(value: Any, arena: Arena) -> bytes:
    """Return a message for the value; its arrays and long bytes are written to the arena.

    Raises:
        StageFailed: If the value holds something that cannot travel between processes, or is too large for any.
        Shortage: If there is no room in shared memory now.
    """

    def outside(part: Any) -> msgspec.msgpack.Ext:
        if type(part) is np.ndarray and not part.dtype.hasobject and part.dtype.names is None:
            header = _ArrayHeader(arena.write(part), part.dtype.str, part.shape)
            return msgspec.msgpack.Ext(_ARRAY, _headers.encode(header))
        if isinstance(part, _Long):
            return msgspec.msgpack.Ext(_BYTES, _headers.encode(_BytesHeader(arena.write(part.data), len(part.data))))
        if isinstance(part, np.generic) and not part.dtype.hasobject and part.dtype.names is None:
            header = _ArrayHeader(arena.write(np.asarray(part)), part.dtype.str, ())
            return msgspec.msgpack.Ext(_SCALAR, _headers.encode(header))
        if isinstance(part, _Tuple):
            return msgspec.msgpack.Ext(_TUPLE, msgspec.msgpack.encode(part.parts, enc_hook=outside))
        raise TypeError(_describe(part))

    try:
        arena.reset()
        arena.reserve(_count_needed(value))
        return msgspec.msgpack.encode(_prepare(value), enc_hook=outside)
    except OSError as error:
        raise _too_large(_count_needed(value), error) from None
    except RecursionError:
        raise StageFailed(
            "a value that contains itself, or is nested too deeply, cannot travel between processes"
        ) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise StageFailed(
            f"this cannot travel between processes: {error}; stages with executor = 'process' take and return arrays, bytes, "
            "text, numbers, lists, tuples and dicts"
        ) from None


def _too_large(num_bytes: int, error: OSError) -> StageFailed | Shortage:
    """Return whose fault it is that a value found no room: its own where it is larger than all the shared memory there is."""
    what = f"a value of {num_bytes} bytes does not fit into shared memory: {error}; or make the value smaller"
    try:
        state = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return StageFailed(what)
    fits = num_bytes < state.f_blocks * state.f_frsize
    return Shortage(f"shortage.shared_memory: {what}") if fits else StageFailed(what)


def unpack(message: bytes, arena: Arena, *, copy: bool) -> Any:
    """Return the value of a message.

    Args:
        message: From `pack`.
        arena: Where the other side wrote.
        copy: Whether arrays are copied out; if not they are views that the next message overwrites.
    """

    def outside(code: int, data: memoryview) -> Any:
        if code == _BYTES:
            return arena.bytes(_bytes_headers.decode(data))
        if code == _TUPLE:
            return tuple(msgspec.msgpack.decode(data, ext_hook=outside))
        array = arena.array(_array_headers.decode(data))
        if code == _SCALAR:
            return array[()]
        return array.copy() if copy else array

    return msgspec.msgpack.decode(message, ext_hook=outside)


class _Long:
    """Marks bytes that go through the arena."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class _Tuple:
    """Marks a tuple, which MessagePack would turn into a list."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def _prepare(value: Any) -> Any:
    """Return the value with its long bytes and tuples marked.

    Raises:
        TypeError: If something in it would not arrive as it was sent.
    """
    kind = type(value)
    if kind is bytes and len(value) > _INLINE_BYTES:
        return _Long(value)
    if kind in _PLAIN or kind is np.ndarray or isinstance(value, np.generic):
        return value
    if kind is list:
        return value if holds_only_plain(value) else [_prepare(part) for part in value]
    if kind is tuple:
        return _Tuple([_prepare(part) for part in value])
    if kind is dict:
        for key in value:
            if type(key) not in _PLAIN:
                raise TypeError(f"a dict with a key of type {type(key).__name__}")
        return {key: _prepare(part) for key, part in value.items()}
    raise TypeError(_describe(value))


def _describe(value: Any) -> str:
    dtype = f" of {value.dtype}" if isinstance(value, np.ndarray | np.generic) else ""
    return f"a value of type {type(value).__name__}{dtype}"


def _count_needed(value: Any) -> int:
    if isinstance(value, np.ndarray | np.generic | bytes):
        return _ALIGNMENT + (len(value) if isinstance(value, bytes) else value.nbytes)
    if isinstance(value, dict):
        return sum(_count_needed(part) for part in value.values())
    if isinstance(value, list | tuple) and not holds_only_plain(value):
        return sum(_count_needed(part) for part in value)
    return 0

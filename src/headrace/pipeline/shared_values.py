"""Values between processes: structure as MessagePack, arrays and long bytes through shared memory; nothing is pickled.

One arena per direction and child. A request is answered before the next is written, so an arena is free again by then.
"""

from __future__ import annotations

import contextlib
from multiprocessing import resource_tracker, shared_memory
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import StageFailed

_ARRAY = 1
_BYTES = 2
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


class Arena:
    """A growing piece of shared memory that one process writes and another reads.

    Args:
        name: Of an arena to attach to; None makes one.
    """

    def __init__(self, name: str | None = None, num_bytes: int = 1 << 20) -> None:
        self._owner = name is None
        self._memory = _attach(name) if name else shared_memory.SharedMemory(create=True, size=num_bytes)
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
        """Make room for a whole message; only between `reset` and the first `write`."""
        if num_bytes > self._memory.size:
            self.close()
            self._memory = shared_memory.SharedMemory(create=True, size=2 * num_bytes)

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


def _attach(name: str) -> shared_memory.SharedMemory:
    memory = shared_memory.SharedMemory(name=name)
    # Before Python 3.13 attaching also registers for clean-up, and the reader's exit would destroy the owner's memory.
    resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]  # noqa: SLF001
    return memory


def pack(value: Any, arena: Arena) -> bytes:
    """Return a message for the value; its arrays and long bytes are written to the arena.

    Raises:
        StageFailed: If the value holds something that cannot travel between processes.
    """
    arena.reset()
    arena.reserve(_needed(value))

    def outside(part: Any) -> msgspec.msgpack.Ext:
        if isinstance(part, np.ndarray) and not part.dtype.hasobject:
            header = _ArrayHeader(arena.write(part), part.dtype.str, part.shape)
            return msgspec.msgpack.Ext(_ARRAY, _headers.encode(header))
        if isinstance(part, _Long):
            return msgspec.msgpack.Ext(_BYTES, _headers.encode(_BytesHeader(arena.write(part.data), len(part.data))))
        if isinstance(part, np.generic):
            return outside(np.asarray(part))
        raise TypeError(type(part).__name__)

    try:
        return msgspec.msgpack.encode(_lengthened(value), enc_hook=outside)
    except (TypeError, ValueError, OverflowError) as error:
        raise StageFailed(
            f"a value of type {error} cannot travel between processes; stages with executor = 'process' take and return "
            "arrays, bytes, text, numbers, lists and dicts"
        ) from None


def unpack(message: bytes, arena: Arena, *, copy: bool) -> Any:
    """Return the value of a message.

    Args:
        message: From `pack`.
        arena: Where the other side wrote.
        copy: Whether arrays are copied out; if not they are views that the next message overwrites.
    """

    def outside(code: int, data: memoryview) -> Any:
        if code == _ARRAY:
            array = arena.array(msgspec.msgpack.decode(data, type=_ArrayHeader))
            return array.copy() if copy else array
        return arena.bytes(msgspec.msgpack.decode(data, type=_BytesHeader))

    return msgspec.msgpack.decode(message, ext_hook=outside)


class _Long:
    """Marks bytes that go through the arena."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


def _lengthened(value: Any) -> Any:
    kind = type(value)
    if kind is bytes and len(value) > _INLINE_BYTES:
        return _Long(value)
    if kind is list or kind is tuple:
        return [_lengthened(part) for part in value]
    if kind is dict:
        return {key: _lengthened(part) for key, part in value.items()}
    return value


def _needed(value: Any) -> int:
    if isinstance(value, np.ndarray | np.generic | bytes):
        return _ALIGNMENT + (len(value) if isinstance(value, bytes) else value.nbytes)
    if isinstance(value, dict):
        return sum(_needed(part) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(_needed(part) for part in value)
    return 0

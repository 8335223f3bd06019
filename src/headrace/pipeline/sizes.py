"""How large a value is, for the bounds of queues and for spans: by its type, so that it costs about a microsecond.

Arrays, tensors, bytes, text and pictures are counted as they are. Of lists, tuples, dicts and the attributes of objects the
members are, some levels deep; where a container holds many containers, a few of them stand for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from sys import getsizeof
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

#: Types that hold no memory of others.
PLAIN = frozenset((type(None), bool, int, float, complex, str))
#: A number in a list: the object and the list's pointer to it.
_NUMBER_BYTES = 32
#: Containers and objects of one container that are looked into, by depth: about as much as a microsecond each allows.
_MOST_INSIDE = (16, 8, 4, 2)
#: Members of one container that are looked at.
_MOST_MEMBERS = 10_000
#: Modes of Pillow with one byte a pixel; its others take four.
_BYTE_MODES = ("1", "L", "P")

_Size = Callable[[Any, int], int]

_shape_keys: dict[tuple[tuple[int, ...], np.dtype], str] = {}


def measure(value: Any) -> tuple[int, str | None]:
    """Return a value's size in bytes, about, and the shape key of an array.

    A single number counts as nothing, and so does what an object holds inside of other objects.
    """
    kind = type(value)
    if kind is bytes:
        return len(value), None
    if kind is np.ndarray:
        key = (value.shape, value.dtype)
        name = _shape_keys.get(key)
        if name is None:
            name = f"{value.dtype}[{'x'.join(map(str, value.shape))}]"
            if len(_shape_keys) < 10_000:  # a stream of ever new shapes must not grow memory without end
                _shape_keys[key] = name
        return value.nbytes, name
    return (_sizes.get(kind) or _size_by_type(kind))(value, 0), None


def holds_only_plain(values: Iterable[Any]) -> bool:
    """Return whether all members are numbers, text or None; at the speed of C."""
    return PLAIN.issuperset(map(type, values))


def _no_bytes(value: Any, depth: int) -> int:
    return 0


def _length(value: Any, depth: int) -> int:
    return len(value)


def _text(value: Any, depth: int) -> int:
    return getsizeof(value)


def _nbytes(value: Any, depth: int) -> int:
    try:
        return int(value.nbytes)
    except Exception:  # somebody's property
        return 0


def _picture(value: Any, depth: int) -> int:
    width, height = value.size
    return int(width * height * (1 if value.mode in _BYTE_MODES else 4))


def _dict(value: Any, depth: int) -> int:
    return _members(value.values(), len(value), depth)


def _sequence(value: Any, depth: int) -> int:
    return _members(value, len(value), depth)


def _object(value: Any, depth: int) -> int:
    """Look at attributes, not at objects among them: they may be a model, or the whole program."""
    if depth >= len(_MOST_INSIDE):
        return 0
    total = 0
    for part in _attributes(value):
        kind = type(part)
        size = _sizes.get(kind) or _size_by_type(kind)
        if size is not _object:
            total += _nbytes(part, depth) if kind is np.ndarray else size(part, depth + 1)
    return total


def _attributes(value: Any) -> list[Any]:
    names = [name for cls in type(value).__mro__ for name in _slots(cls)]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in names)]


def _slots(cls: type) -> Sequence[str]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _members(members: Iterable[Any], count: int, depth: int) -> int:
    if depth >= len(_MOST_INSIDE) or not count:
        return 0
    if count <= _MOST_INSIDE[depth]:
        return _few(members, depth)
    total = 0
    seen = list(islice(members, 0, None, -(-count // _MOST_MEMBERS)))
    kinds = set(map(type, seen))
    for kind in kinds:
        some = seen if len(kinds) == 1 else [member for member in seen if type(member) is kind]
        total += _alike(kind, some, depth)
    return total * count // len(seen)


def _few(members: Iterable[Any], depth: int) -> int:
    total = 0
    for member in members:
        kind = type(member)
        if kind is np.ndarray:
            total += member.nbytes
        elif kind is str:
            total += getsizeof(member)
        elif kind in PLAIN:
            total += _NUMBER_BYTES
        else:
            total += (_sizes.get(kind) or _size_by_type(kind))(member, depth + 1)
    return total


def _alike(kind: type, members: list[Any], depth: int) -> int:
    if kind is np.ndarray:
        return sum(member.nbytes for member in members)
    if kind is str:
        return sum(map(getsizeof, members))
    if kind in PLAIN:
        return _NUMBER_BYTES * len(members)
    size = _sizes.get(kind) or _size_by_type(kind)
    if size not in (_dict, _sequence, _object):
        return sum(size(member, depth) for member in members)
    step = -(-len(members) // _MOST_INSIDE[depth])
    some = members[::step]
    return sum(size(member, depth + 1) for member in some) * len(members) // len(some)


_sizes: dict[type, _Size] = {
    **dict.fromkeys(PLAIN, _no_bytes),
    str: _text,
    bytes: _length,
    bytearray: _length,
    dict: _dict,
    **dict.fromkeys((list, tuple, set, frozenset), _sequence),
}


def _size_by_type(kind: type) -> _Size:
    """Return what measures values of a type seen for the first time."""
    size: _Size
    if issubclass(kind, type | FunctionType | MethodType | ModuleType):  # they are shared
        size = _no_bytes
    elif hasattr(kind, "nbytes"):  # tensors, scalars and memory views, tables of Arrow
        size = _nbytes
    elif kind.__module__.partition(".")[0] == "PIL" and hasattr(kind, "getbands"):
        size = _picture
    else:
        size = _object
    if len(_sizes) < 1_000:  # types may be made on the way
        _sizes[kind] = size
    return size

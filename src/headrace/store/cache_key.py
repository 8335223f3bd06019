"""Under what a result is kept in a cache: which content it was made of, and all that was done to it.

What cannot be told gives no key, and then nothing is kept: a cache that is wrong once is worse than none. A file counts as its
path with size, time of change and number; one that was changed within the last seconds has none, as another change could leave
them as they are. Of code, the bytes of its functions count and the file that they stand in; what it imports does not.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.pieces import Piece, RemotePiece

#: Two changes of a file within the steps of its clock look like one; no file system has longer steps.
_RACY_NS = 2_000_000_000
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def identity(payload: Any, *, is_immutable: bool = False) -> str | None:
    """Return a text that is another one for other content; None if nothing tells.

    Args:
        payload: Of the job.
        is_immutable: Whether an http(s) address always has the same content.
    """
    if isinstance(payload, bytes):
        return f"bytes {hashlib.blake2b(payload, digest_size=32).hexdigest()}"
    if isinstance(payload, Path):
        return _version(payload)
    if isinstance(payload, Piece):
        version = _version(payload.path)
        return version and f"{version} {payload.offset} {payload.length} {payload.crc32}"
    if isinstance(payload, RemotePiece):
        if payload.etag is None:
            return None
        return f"{payload.shown} {payload.etag} {payload.object_size} {payload.offset} {payload.length} {payload.crc32}"
    if is_immutable and isinstance(payload, str) and payload.startswith(("http://", "https://")):
        return f"address {payload}"
    return None


def _version(path: Path) -> str | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if time.time_ns() - found.st_mtime_ns < _RACY_NS:
        return None
    return f"{os.path.abspath(path)} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


def digest_recipe(steps: Sequence[Mapping[str, Any]], version: str) -> bytes:
    """Return the hash of what stages do, each given by what tells its results apart, in order."""
    said = {"headrace": version, "python": sys.version_info[:2], "steps": [dict(step) for step in steps]}
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).digest()


def make_key(recipe: bytes, found: str) -> bytes:
    """Return the key of a result: 32 bytes."""
    return hashlib.sha256(recipe + found.encode("utf-8", "surrogatepass")).digest()


def hash_code(function: Any, where: str) -> str:
    """Return the hash of a function's code and of what it holds.

    Raises:
        SettingsError: If it holds something whose content cannot be told.
    """
    digest = hashlib.sha256()
    _add(digest, function, where, {})
    return digest.hexdigest()


def _add(digest: Any, value: Any, where: str, seen: dict[int, Any]) -> None:
    """Take a function or a value that it holds into a hash; `seen` keeps what was, so that no other gets its id."""
    if isinstance(value, _PLAIN):
        digest.update(f"{type(value).__name__} {value!r};".encode())
        return
    if id(value) in seen:
        digest.update(b"again;")
        return
    seen[id(value)] = value
    said, held = _take_apart(value, where)
    digest.update(said + b";%d;" % len(held))
    for one in held:
        _add(digest, one, where, seen)


def _take_apart(value: Any, where: str) -> tuple[bytes, list[Any]]:
    """Return what tells a value from others, and the values that it holds."""
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return _say_code(value.__code__) + _file_of(value), [value.__defaults__, value.__kwdefaults__, cells]
    if isinstance(value, types.MethodType):
        return b"method", [value.__func__, value.__self__]
    if isinstance(value, type | types.ModuleType):
        file = _file_of(value) if isinstance(value, type) else b""
        return f"{getattr(value, '__module__', '')} {getattr(value, '__qualname__', value)}".encode() + file, []
    if isinstance(value, types.BuiltinFunctionType | np.ufunc):
        return f"{value!r:.40} {value.__name__}".encode().partition(b" at 0x")[0], []
    if isinstance(value, functools.partial):
        return b"partial", [value.func, value.args, value.keywords]
    if isinstance(value, list | tuple):
        return type(value).__name__.encode(), list(value)
    if isinstance(value, Mapping):
        return b"map", [part for key in sorted(value, key=repr) for part in (key, value[key])]
    if isinstance(value, Path):
        return f"path {value}".encode(), []
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype.str} {value.shape}".encode(), [value.tobytes()]
    return _take_object_apart(value, where)


def _take_object_apart(value: Any, where: str) -> tuple[bytes, list[Any]]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)]
    if not slots and not hasattr(value, "__dict__"):
        raise SettingsError(
            f"{where}: its code holds a {type(value).__name__}, whose content headrace cannot tell from another; cache a "
            "stage before it, or keep such values out of the function"
        )
    return b"object", [type(value), getattr(value, "__dict__", {}), [getattr(value, name) for name in slots]]


def _say_code(code: types.CodeType) -> bytes:
    """Return what a function does, and not where it stands."""
    said = code.co_code + repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            said += _say_code(constant)
        else:
            said += repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant).encode()
    return said


def _file_of(value: Any) -> bytes:
    """Return the hash of the file in which something is defined, for the functions beside it that it calls; empty: no file."""
    try:
        source = inspect.getsourcefile(value)
        return _hash_file(source, os.stat(source).st_mtime_ns) if source else b""
    except (OSError, TypeError):
        return b""


@functools.lru_cache(maxsize=256)
def _hash_file(path: str, changed_ns: int) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()

"""Under what a result is kept in a cache: which content it was made of, and all that was done to it.

What cannot be told gives no key, and then nothing is kept: a cache that is wrong once is worse than none. A file counts as its
path with size, time of change and number; one that was changed within the last seconds has none, as another change could leave
them as they are. What counts of code: see `code_hash`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.pieces import Piece, RemotePiece

#: Two changes of a file within the steps of its clock look like one; no file system has longer steps.
_RACY_NS = 2_000_000_000


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
        if payload.etag is None or _is_young(payload.etag) or getattr(payload.opened, "is_archive", False):
            return None
        return f"{payload.shown} {payload.etag} {payload.object_size} {payload.offset} {payload.length} {payload.crc32}"
    if is_immutable and isinstance(payload, str) and payload.startswith(("http://", "https://")):
        return f"address {payload}"
    return None


def _is_young(etag: str) -> bool:
    """Return whether a version is no more than a time (of a file system that knows nothing better), and may have just begun."""
    kind, _, rest = etag.partition(" ")
    return kind == "text" or (kind == "time" and time.time() - float(rest.partition(" ")[0]) < _RACY_NS / 1e9)


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
    said = {"headrace": version, "python": sys.version_info[:3], "steps": [dict(step) for step in steps]}
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).digest()


def make_key(recipe: bytes, found: str) -> bytes:
    """Return the key of a result: 32 bytes, of which the last four tell what was done; see `is_of_other_work`."""
    return hashlib.sha256(recipe + found.encode("utf-8", "surrogatepass")).digest()[:28] + recipe[:4]


def is_of_other_work(key: bytes, other: bytes) -> bool:
    """Return whether something else was done for the result of one key than for that of another."""
    return key[-4:] != other[-4:]

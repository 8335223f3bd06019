"""A part of a file as the payload of a job: a member of a tar shard, read only when a worker fetches it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a local file: where they are, and how to know that they are the right ones."""

    path: Path
    offset: int
    length: int
    crc32: int | None = None
    """Of the bytes, as `zlib.crc32` counts it; None: nobody noted it."""

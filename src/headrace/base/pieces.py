"""A part of a file as the payload of a job: a member of a tar shard, read only when a worker fetches it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a local file: where they are, and how to know that they are the right ones."""

    path: Path
    offset: int
    length: int
    crc32: int | None = None
    """Of the bytes, as `zlib.crc32` counts it; None: nobody noted it."""
    version: tuple[int, int] | None = None
    """Size of the file and time of its last change when it was listed; compared where there is no checksum."""


@dataclass(frozen=True, slots=True)
class RemotePiece:
    """Bytes of an object in an object store, or all of it.

    Only a source of the program makes one: it is read with the operator's credentials, so no job from a queue may name one.
    """

    store: str
    """Address of the bucket, such as `s3://photos`, or of what is below a path of a file system."""
    path: str
    """Of the object in it."""
    offset: int
    length: int
    object_size: int
    etag: str | None = None
    """Of the object when it was listed: what was replaced since is refused. None: the store tells none."""
    crc32: int | None = None
    """As of `Piece`."""
    opened: Any = field(default=None, repr=False)
    """What reads it, where the program handed in a file system; None: the bucket of the address."""

    @property
    def shown(self) -> str:
        """The address of the object, for people to read."""
        return f"{self.store}/{self.path}"

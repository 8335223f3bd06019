"""What a packed folder holds: `manifest.json`, replaced whenever a shard is finished."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import SourceError
from headrace.store.shard_index import replace_file

#: Version of the manifest. 1: 2026-11, first.
SCHEMA = "headrace.pack/1"
MANIFEST = "manifest.json"
UNREADABLE = "unreadable.jsonl"


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One finished shard."""

    name: str
    bytes: int
    files: int
    sha256: str


class Encoding(msgspec.Struct, frozen=True, kw_only=True):
    """What images became before they were packed."""

    #: Of a format that is not told how exact it is to be.
    USUAL_QUALITY: ClassVar[int] = 90

    format: Literal["jpeg", "webp"] | None = None
    """Of all images; null: JPEG and WebP stay what they are, and other formats pass unchanged."""
    short_side: int | None = None
    """Pixels of the shorter side at most; null: as they are."""
    quality: int | None = None
    """1 to 100; null: 90, and only of images whose size or format is another."""

    def describe(self) -> str:
        """Return it as options of the command."""
        options = {"--encode": self.format, "--short-side": self.short_side, "--quality": self.quality}
        return " ".join(f"{name} {value}" for name, value in options.items() if value is not None)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a packed folder."""

    schema: str = SCHEMA
    format: str
    """`tar` or `parquet`."""
    complete: bool
    """Whether every item of the source is packed or in `unreadable.jsonl`."""
    files: int
    """In all finished shards."""
    bytes: int
    unreadable: int
    shards: list[ShardEntry]
    encoding: Encoding | None = None
    """Null: files are as they were."""


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a manifest into a folder."""
    content = encode_document(manifest, indent=True) + b"\n"
    replace_file(folder / MANIFEST, lambda file: file.write(content))


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if it has none.

    Raises:
        SourceError: If it is damaged, or of a later version of headrace.
    """
    path = folder / MANIFEST
    try:
        manifest = decode_document(path.read_bytes(), Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from None
    if manifest.schema != SCHEMA:
        raise SourceError(f"{path} has the schema {manifest.schema!r}; this headrace knows {SCHEMA}")
    return manifest


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

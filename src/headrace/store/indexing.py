"""Makes the index of a tar shard that others packed, and checks a packed folder against its manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import SourceError
from headrace.base.formatting import pluralize
from headrace.store.manifest import hash_file, read_manifest
from headrace.store.reading import checksum
from headrace.store.samples import Stored, is_hidden
from headrace.store.shard_index import Row, write_index
from headrace.store.shards import open_shard, warn_of_doubts, with_text
from headrace.store.tar_scan import Flaw, TarScan


def index_shard(shard: Path) -> int:
    """Write the index of a shard, from its content; return the number of its files.

    Raises:
        SourceError: If a part of it cannot be read: an index would hide that.
    """
    with open_shard(shard) as handle:
        rows = []
        scan = TarScan(handle)
        for one in scan:
            if isinstance(one, Flaw):
                raise SourceError(
                    f"{shard}: {one.name}: {one.reason}; pack what can be read with: headrace pack {shard} -o NEW"
                )
            if not is_hidden(one.name):
                crc32 = checksum(handle, one.length, one.offset)
                rows.append(Row(with_text(Stored(one.name, one.offset, one.length, crc32), handle)))
        if not rows:
            raise SourceError(f"{shard} holds no file")
        warn_of_doubts(shard, scan, [row.stored for row in rows], is_whole=True)
        write_index(shard, handle, rows)
    return len(rows)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a packed folder came to when it was read again."""

    num_shards: int
    num_bytes: int
    problems: list[str]


def verify_folder(folder: Path) -> Verified:
    """Read every shard of a packed folder again, and compare it with the manifest.

    Raises:
        SourceError: If the folder has no manifest.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise SourceError(f"{folder} has no manifest.json: `headrace pack SOURCE -o {folder}` would have made one")
    problems = [] if manifest.complete else [f"{folder} is not complete: go on with `headrace pack ... --resume`"]
    num_bytes = 0
    for entry in manifest.shards:
        shard = folder / entry.name
        try:
            size = shard.stat().st_size
            digest = hash_file(shard)
        except OSError as error:
            problems.append(f"{shard} cannot be read: {error.strerror}")
            continue
        num_bytes += size
        if size != entry.bytes:
            problems.append(f"{shard} has {size:,} bytes; {entry.bytes:,} were packed")
        elif digest != entry.sha256:
            problems.append(
                f"{shard} has other content than was packed (SHA-256 {digest[:12]}, expected {entry.sha256[:12]})"
            )
    extra = sorted({one.name for one in folder.glob("shard-*.tar")} - {entry.name for entry in manifest.shards})
    if extra:
        problems.append(f"{pluralize(len(extra), 'shard')} that the manifest does not name, such as {extra[0]}")
    return Verified(len(manifest.shards), num_bytes, problems)

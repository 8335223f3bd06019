"""Finds the shards that a user names, and lists what is in them."""

from __future__ import annotations

import glob
import logging
import os
import re
import shlex
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import SourceError
from headrace.base.named_paths import refuse_unreachable
from headrace.base.patient_open import open_patiently
from headrace.store.reading import version_of
from headrace.store.samples import (
    MOST_TEXT,
    ROW_SUFFIXES,
    TEXT_PARTS,
    Sample,
    Singles,
    Stored,
    are_single,
    find_apart,
    is_hidden,
    join_samples,
    split_name,
)
from headrace.store.shard_index import Row, index_path, read_index
from headrace.store.tar_scan import Flaw, TarScan

logger = logging.getLogger("headrace")

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
#: Shards that one pattern can name.
_MOST_SHARDS = 1_000_000
_COMPRESSED = (".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")


@dataclass(frozen=True, slots=True)
class Listed:
    """What a shard holds."""

    shard: Path
    samples: Sequence[Sample]
    flaws: list[Flaw]
    is_indexed: bool
    version: tuple[int, int]
    """Of the file, before it was looked at; see `reading.version_of`."""


def find_all_shards(paths: Sequence[Path]) -> list[Path]:
    """Return the tar shards that paths name, each once, in their order.

    Raises:
        SourceError: If one of them names none.
    """
    found: dict[Path, None] = {}
    for path in paths:
        shards = find_shards(path)
        if not shards:
            raise no_shards(path)
        found.update(dict.fromkeys(shards))
    return list(found)


def find_shards(text: str | Path) -> list[Path] | None:
    """Return the tar shards that a path names: a file, a folder of them, `shard-{000..009}.tar`, `shard-*.tar`; None: none.

    Raises:
        SourceError: If a pattern names shards that are not there, or what is named is compressed or cannot be reached.
    """
    path = Path(text)
    refuse_unreachable(path)
    if _BRACES.search(str(text)) and not path.exists():
        shards = [Path(name) for name in expand_braces(str(text))]
        missing = [shard for shard in shards if not shard.is_file()]
        if missing:
            raise SourceError(
                f"{len(missing):,} of the {len(shards):,} shards of {text} do not exist, such as {missing[0]}"
            )
        return shards
    if glob.has_magic(str(text)) and not path.exists():
        files = sorted(Path(name) for name in glob.glob(str(text), recursive=True))
        are_shards = all(file.is_file() and file.suffix == ".tar" for file in files)
        _refuse_compressed(files)
        return files if files and are_shards else None
    if path.is_file():
        _refuse_compressed([path])
        return [path] if path.suffix == ".tar" else None
    if not path.is_dir():
        return None
    shards = sorted(file for file in path.glob("*.tar") if not file.name.startswith("."))
    # A folder of photographs that holds an archive among others stays a folder of photographs.
    others = (file.name for file in path.iterdir() if not file.name.endswith((".tar", ".idx.parquet")))
    return shards if shards and not any(name not in _BESIDE_SHARDS and name[0] != "." for name in others) else None


def _refuse_compressed(files: Sequence[Path]) -> None:
    """Refuse compressed tars: no member can be read by its place, and as a file one would be an item that nobody means."""
    if files and all(file.name.lower().endswith(_COMPRESSED) for file in files):
        raise SourceError(
            f"{files[0]} is a compressed tar, in which no sample can be read without all before it; decompress it first "
            "(gunzip, bunzip2, unxz or zstd -d) and name the .tar; files inside of a tar may be compressed"
        )


def no_shards(text: str | Path) -> SourceError:
    """Return the error of a path that names no shards: what is there instead, and what to do."""
    path = Path(text)
    expected = "expected a .tar file, a folder of them, shard-{000..009}.tar or shard-*.tar"
    if path.is_dir():
        _refuse_compressed([file for file in path.iterdir() if file.name not in _BESIDE_SHARDS and file.name[0] != "."])
        packed = f"{path.name or 'photos'}-packed"
        names = [file.name.lower() for file in path.iterdir()]
        has_rows = any(name.endswith(tuple(ROW_SUFFIXES)) and not name.endswith(".idx.parquet") for name in names)
        what, source = ("rows", f"records://{path}") if has_rows else ("files", str(path))
        return SourceError(
            f"{path} names no tar shards: the folder holds none, or other files beside them; make some of its {what} with: "
            f"headrace pack {shlex.quote(source)} -o {shlex.quote(packed)}"
        )
    if path.is_file() or (glob.has_magic(str(text)) and glob.glob(str(text), recursive=True)):
        return SourceError(f"{path} names no tar shards; {expected}")
    seen_from = "" if path.is_absolute() else f", seen from {Path.cwd()}"
    return SourceError(f"{path} names no tar shards: there is no such file or folder{seen_from}; {expected}")


_BESIDE_SHARDS = frozenset({"manifest.json", "unreadable.jsonl", "README.md", "LICENSE"})


def expand_braces(text: str) -> list[str]:
    """Return the names that `{000..009}` stands for; other text is one name."""
    found = _BRACES.search(text)
    if found is None:
        return [text]
    first, last = int(found[1]), int(found[2])
    if not first <= last < first + _MOST_SHARDS:
        raise SourceError(
            f"{found[0]} names no shards; expected the smaller number first, and at most {_MOST_SHARDS:,}"
        )
    width = len(found[1])
    rest = expand_braces(text[found.end() :])
    return [
        f"{text[: found.start()]}{number:0{width}d}{behind}" for number in range(first, last + 1) for behind in rest
    ]


@contextmanager
def open_shard(shard: Path) -> Iterator[int]:
    """Give a handle of a shard.

    Raises:
        SourceError: If it cannot be opened.
    """
    try:
        # Readers of shards hold all of them open.
        handle = open_patiently(lambda: os.open(shard, os.O_RDONLY | os.O_CLOEXEC), str(shard), holds_others=True)
    except OSError as error:
        raise SourceError(f"{shard} cannot be read: {error.strerror}") from error
    try:
        yield handle
    finally:
        os.close(handle)


def list_rows(shard: Path, handle: int) -> tuple[list[Row], list[Flaw], bool]:
    """Return the files in a shard, what cannot be read of it, and whether an index was used."""
    rows = read_index(shard, handle)
    if rows is not None:
        return rows, [], True
    found, flaws = [], []
    scan = TarScan(handle)
    for one in scan:
        if isinstance(one, Flaw):
            flaws.append(one)
        elif not is_hidden(one.name):
            found.append(Row(Stored(one.name, one.offset, one.length)))
    warn_of_doubts(shard, scan, [row.stored for row in found], is_whole=not flaws)
    if not found and not flaws:
        flaws.append(Flaw("@0", 0, "tar.empty: there is no file in it"))
    return found, flaws, False


def warn_of_doubts(shard: Path, scan: TarScan, files: Sequence[Stored], *, is_whole: bool) -> None:
    """Say what is strange about a shard whose headers were read, though its files can be.

    Args:
        shard: The file.
        scan: Has come to its end.
        files: That it found.
        is_whole: Whether there was nothing else.
    """
    if scan.num_archives > 1:
        logger.warning("%s: %d archives stand in it one behind the other; all are read", shard, scan.num_archives)
    if is_whole and not scan.has_end:
        logger.warning("%s ends without the mark of an end: it may have been cut off between two files", shard)
    if apart := find_apart(files):
        logger.warning(
            "%s: %s not beside the others of the same sample, and each is taken for a sample of its own, such as %s; make the "
            "tar in the order of names (tar --sort=name), or unpack it and pack the folder with `headrace pack`",
            *(shard, "1 file is" if len(apart) == 1 else f"{len(apart):,} files are", apart[0]),
        )


def list_shard(shard: Path) -> Listed:
    """Return the samples of a shard, from its index, else from its headers.

    Raises:
        SourceError: If the shard or its index cannot be used.
    """
    with open_shard(shard) as handle:
        version = version_of(handle)
        rows, flaws, is_indexed = list_rows(shard, handle)
        files = [row.stored if is_indexed else with_text(row.stored, handle) for row in rows]
        # What is wrong with a sample is noted in it, so that those beside flaws must stay.
        samples = Singles(files) if not flaws and are_single(files) else list(join_samples(files))
        return Listed(shard, samples, list(_blame(samples, flaws)), is_indexed, version)


def _blame(samples: Sequence[Sample], flaws: list[Flaw]) -> Iterator[Flaw]:
    """Give flaws to the samples that they are of, as half a sample is a wrong one; yield those of no sample."""
    by_key = {sample.key: sample for sample in samples} if flaws else {}
    for flaw in flaws:
        sample = by_key.get(split_name(flaw.name)[0])
        if sample is None and flaw.reason.startswith("tar.damaged") and len(samples) > 1:
            last, before = samples[-1], samples[-2]
            if len(last.parts) < len(before.parts):
                last.flaw = f"{flaw.reason}; the files of this sample may be among them"
        if sample is None:
            yield flaw
        else:
            sample.flaw = sample.flaw or f"{flaw.reason} ({flaw.name}, header at byte {flaw.offset:,})"


def read_text(stored: Stored, data: bytes) -> str | None:
    """Return a file's content if it is a short text about a sample; None otherwise."""
    if split_name(stored.name)[1] not in TEXT_PARTS or stored.length > MOST_TEXT:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def with_text(stored: Stored, handle: int) -> Stored:
    """Return a file's record with its content and checksum if it is a short text about a sample; as it is otherwise."""
    if split_name(stored.name)[1] not in TEXT_PARTS or stored.length > MOST_TEXT:
        return stored
    data = os.pread(handle, stored.length, stored.offset)
    return Stored(stored.name, stored.offset, stored.length, zlib.crc32(data), read_text(stored, data))


def has_index(shard: Path) -> bool:
    """Return whether a shard has an index."""
    return index_path(shard).exists()

"""A shard without an index has no checksums: nothing else than its times tells that it is another one."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from headrace.base.errors import FetchRejected
from headrace.base.pieces import Piece
from headrace.sources.shards import ShardFiles, Shards
from headrace.stages.local_files import PieceReader
from headrace.store.indexing import index_shard
from headrace.store.loader import Loader
from headrace.store.shard_reader import ShardReader


def write_shard(path: Path, letter: str) -> Path:
    """Write 20 members of 40 bytes, all at the same places."""
    with tarfile.open(path, "w") as file:
        for number in range(20):
            member = tarfile.TarInfo(f"{number:03}.jpg")
            member.size = 40
            file.addfile(member, io.BytesIO(f"{letter}{number:03}".encode() * 10))
    return path


def change(shard: Path, way: str) -> None:
    """Put other bytes at the same places."""
    other = write_shard(shard.with_name("other"), "B")
    os.utime(other, ns=(1, 1))
    if way == "replaced":
        other.rename(shard)
        return
    shard.write_bytes(other.read_bytes())
    os.utime(shard, ns=(1, 1))


@pytest.mark.parametrize("way", ["replaced", "written to"])
@pytest.mark.parametrize("kind", [Shards, ShardFiles])
def test_a_run_gives_no_other_bytes(tmp_path: Path, kind: type[Shards], way: str) -> None:
    """Neither before it is opened nor after."""
    shard = write_shard(tmp_path / "a.tar", "A")
    pieces = [entry.payload for entry in kind(shard).entries()]
    assert all(isinstance(piece, Piece) for piece in pieces)
    first, second = pieces[0], pieces[1]
    assert isinstance(first, Piece)
    assert isinstance(second, Piece)
    opened, fresh = PieceReader(None, 1_000), PieceReader(None, 1_000)
    assert opened(first) == b"A000" * 10
    change(shard, way)
    with pytest.raises(FetchRejected, match=r"tar\.changed"):
        fresh(second)
    if way == "replaced":  # the old one is still open
        assert opened(second) == b"A001" * 10
    else:
        with pytest.raises(FetchRejected, match=r"tar\.changed"):
            opened(second)


def test_a_loader_gives_no_other_bytes(tmp_path: Path) -> None:
    """Samples and single files."""
    shard = write_shard(tmp_path / "a.tar", "A")
    loader, reader = Loader(shard, 2, shuffle=False), ShardReader(shard)
    unchecked = ShardReader(shard, checks=False)
    assert reader.read(1) == b"A001" * 10
    change(shard, "written to")
    with pytest.raises(FetchRejected, match=r"tar\.changed"):
        next(iter(loader))
    with pytest.raises(FetchRejected, match=r"tar\.changed"):
        reader.read(1)
    assert unchecked.read(1) == b"B001" * 10
    skipping = Loader(write_shard(tmp_path / "c.tar", "A"), 2, shuffle=False, rejects="skip")
    change(tmp_path / "c.tar", "written to")
    assert list(skipping) == []
    assert skipping.num_rejected == 20


def test_with_an_index_the_checksums_say_it(tmp_path: Path) -> None:
    """A shard that was copied over itself is the same."""
    shard = write_shard(tmp_path / "a.tar", "A")
    index_shard(shard)
    reader = ShardReader(shard)
    (piece, *_) = [entry.payload for entry in Shards(shard).entries()]
    os.utime(shard, ns=(1, 1))
    assert reader.read(1) == b"A001" * 10
    assert isinstance(piece, Piece)
    assert PieceReader(None, 1_000)(piece) == b"A000" * 10

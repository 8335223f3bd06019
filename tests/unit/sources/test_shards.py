"""Samples of tar shards as jobs: what is given out, what is refused, and that no wrong byte goes on."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

import headrace as hr
from headrace.base.errors import FetchFailed, FetchRejected, SourceError
from headrace.base.pieces import Piece
from headrace.base.plan import Plan
from headrace.cli.loading import parse_source
from headrace.sources.shards import ShardFiles, Shards
from headrace.stages.local_files import PieceReader
from headrace.store.indexing import index_shard

FILES = {f"{number:03d}.{part}": (f"picture {number}" if part == "jpg" else f"{number % 7}").encode()
         for number in range(30) for part in ("cls", "jpg")}  # fmt: skip


def make_tar(path: Path, files: dict[str, bytes] = FILES, links: tuple[str, ...] = ()) -> Path:
    """Write a shard with Python's tarfile, as others do."""
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info)
    return path


@pytest.mark.parametrize("indexed", [True, False])
def test_each_sample_is_a_job(indexed: bool, tmp_path: Path) -> None:
    """The payload is the image, the text beside it an attribute; with an index there is a checksum, too."""
    shard = make_tar(tmp_path / "a.tar")
    if indexed:
        index_shard(shard)
    entries = list(Shards(shard).entries())
    assert [entry.id for entry in entries] == [f"{number:03d}.jpg" for number in range(30)]
    assert [entry.attributes for entry in entries] == [{"cls": f"{number % 7}"} for number in range(30)]
    read = PieceReader(None, 1_000)
    assert [read(entry.payload) for entry in entries] == [FILES[entry.id] for entry in entries]
    assert all((entry.payload.crc32 is not None) == indexed for entry in entries)


def test_the_part_that_is_asked_for_is_the_payload(tmp_path: Path) -> None:
    """A sample without it is refused, and says what it has."""
    shard = make_tar(tmp_path / "a.tar", {"1.jpg": b"1", "1.seg.png": b"mask", "2.jpg": b"2"})
    first, second = Shards(shard, part="seg.png").entries()
    assert PieceReader(None, 1_000)(first.payload) == b"mask"
    assert second.refused == "tar.part: the sample has no part 'seg.png'; it has jpg"


def test_one_name_in_two_shards_gives_two_ids(tmp_path: Path) -> None:
    """Or a run could not tell them apart."""
    for name in ("a", "b"):
        make_tar(tmp_path / f"{name}.tar", {"1.jpg": name.encode()})
    assert [entry.id for entry in Shards(tmp_path).entries()] == ["1.jpg", "1.jpg#2"]


def test_what_cannot_be_read_is_rejected_and_the_rest_goes_on(tmp_path: Path) -> None:
    """A link costs one job, with a code; nothing outside of the shard is opened."""
    shard = make_tar(tmp_path / "a.tar", links=("evil.jpg", "../up.jpg"))
    pipeline = hr.Pipeline(Shards(shard), stages=[hr.fetch("fetch"), hr.stage("name", len)])
    result = hr.run(pipeline)
    assert result.counters.delivered == 30
    assert result.counters.rejected == 2


def test_half_a_sample_is_no_sample(tmp_path: Path) -> None:
    """Where the image is cut off, its label alone would be a wrong item."""
    shard = make_tar(tmp_path / "a.tar")
    with tarfile.open(shard) as tar:
        last = tar.getmember("029.jpg")
    os.truncate(shard, last.offset_data + 3)
    entries = list(Shards(shard).entries())
    assert len(entries) == 30
    assert [entry.id for entry in entries if entry.refused] == ["029.cls"]
    assert entries[-1].refused.startswith("tar.truncated: 3 of its 10 bytes are there")


def test_a_damaged_header_says_how_much_is_lost(tmp_path: Path) -> None:
    """What is behind it cannot be found; the sample before it may lack files."""
    shard = make_tar(tmp_path / "a.tar")
    with tarfile.open(shard) as tar:
        place = tar.getmember("010.jpg").offset
    with shard.open("r+b") as file:
        file.seek(place)
        file.write(b"\xff")
    entries = list(Shards(shard).entries())
    assert [entry.id for entry in entries if not entry.refused] == [f"{number:03d}.jpg" for number in range(10)]
    assert [entry.id for entry in entries if entry.refused] == ["010.cls", f"a.tar@{place}"]
    assert "files of this sample may be among them" in entries[-2].refused


@pytest.mark.parametrize("content", [b"", bytes(10_240), b"GIF89a" * 300])
def test_a_file_that_holds_nothing_is_an_error(content: bytes, tmp_path: Path) -> None:
    """0 bytes, an empty archive, no archive at all: a clear stop before the run."""
    shard = tmp_path / "a.tar"
    shard.write_bytes(content)
    with pytest.raises(SourceError, match="holds nothing that can be read: tar"):
        list(Shards(shard).entries())


def test_one_bad_shard_among_others_costs_only_itself(tmp_path: Path) -> None:
    """It is one refused job."""
    make_tar(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes(b"")
    entries = list(Shards(tmp_path).entries())
    assert len(entries) == 31
    assert entries[-1].id == "b.tar@0"
    assert entries[-1].refused.startswith("tar.empty")


def test_changed_bytes_are_never_handed_on(tmp_path: Path) -> None:
    """Each byte of a packed image is covered by the checksum of the index."""
    shard = make_tar(tmp_path / "a.tar")
    index_shard(shard)
    payload = next(iter(Shards(shard).entries())).payload
    assert isinstance(payload, Piece)
    content = shard.read_bytes()
    for at in range(payload.length):
        damaged = bytearray(content)
        damaged[payload.offset + at] ^= 0x10
        shard.write_bytes(bytes(damaged))
        with pytest.raises(FetchRejected, match=r"tar\.checksum: the 9 bytes at"):
            PieceReader(None, 1_000)(payload)


def test_a_shard_that_shrinks_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    """Somebody replaces it during the run."""
    shard = make_tar(tmp_path / "a.tar")
    payload = list(Shards(shard).entries())[-1].payload
    read = PieceReader(None, 1_000)
    assert read(payload) == b"picture 29"
    os.truncate(shard, payload.offset + 4)
    with pytest.raises(FetchRejected, match=r"tar\.truncated: .* has 4 of the 10 bytes"):
        read(payload)


def test_the_limits_of_files_hold_for_parts_of_files(tmp_path: Path) -> None:
    """Folders that jobs may read, the largest size, and what is no regular file."""
    shard = make_tar(tmp_path / "a.tar")
    piece = next(iter(Shards(shard).entries())).payload
    with pytest.raises(FetchRejected, match=r"file\.refused"):
        PieceReader([str(tmp_path / "other")], 1_000)(piece)
    with pytest.raises(FetchRejected, match=r"file\.too_large: 9 bytes at .* more than max_bytes = 8"):
        PieceReader(None, 8)(piece)
    with pytest.raises(FetchRejected, match=r"file\.special"):
        PieceReader(None, 1_000)(Piece(Path("/dev/zero"), 0, 10))
    with pytest.raises(FetchRejected, match=r"file\.unreadable"):
        PieceReader(None, 1_000)(Piece(tmp_path / "gone.tar", 0, 10))
    with pytest.raises((FetchRejected, FetchFailed)):
        PieceReader(None, 1_000)(Piece(tmp_path, 0, 10))


def test_more_shards_than_may_be_open_are_read(tmp_path: Path) -> None:
    """The oldest are closed; none stays open once nobody reads."""
    before = len(os.listdir("/proc/self/fd"))
    for number in range(150):
        make_tar(tmp_path / f"{number:03d}.tar", {f"{number}.jpg": str(number).encode()})
    read = PieceReader(None, 1_000)
    entries = list(Shards(tmp_path).entries())
    assert [read(entry.payload) for entry in entries] == [str(number).encode() for number in range(150)]
    assert len(os.listdir("/proc/self/fd")) <= before + 64
    del read
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_run_over_shards_is_resumed(tmp_path: Path) -> None:
    """Every sample comes out once, as from a folder."""
    shard = make_tar(tmp_path / "a.tar")
    results = tmp_path / "out.jsonl"
    pipeline = hr.Pipeline(Shards(shard), stages=[hr.fetch("fetch"), hr.stage("size", len)], delivery=hr.jsonl(results))
    hr.run(pipeline, Plan(), limit=12)
    result = hr.run(pipeline, Plan(), resume=True)
    assert result.before is not None
    assert result.before.delivered == 12
    ids = sorted(line.split('"id":"')[1].split('"')[0] for line in results.read_text().splitlines())
    assert ids == [f"{number:03d}.jpg" for number in range(30)]


def test_the_command_line_knows_shards_from_folders(tmp_path: Path) -> None:
    """By what is there."""
    shard = make_tar(tmp_path / "a.tar")
    assert isinstance(parse_source(str(shard), drain=False), Shards)
    assert isinstance(parse_source(str(tmp_path), drain=False), Shards)
    (tmp_path / "photo.jpg").touch()
    assert not isinstance(parse_source(str(tmp_path), drain=False), Shards)


def test_packing_again_takes_every_file(tmp_path: Path) -> None:
    """Not only the payloads."""
    shard = make_tar(tmp_path / "a.tar")
    assert [entry.id for entry in ShardFiles(shard).entries()] == list(FILES)
    with pytest.raises(SourceError, match="names no tar shards"):
        list(Shards(tmp_path / "none.tar").entries())


def test_what_the_list_refuses_does_not_stop_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Forty links in a row are forty rejections: the brake is for pipelines in which nothing succeeds."""
    shard = make_tar(tmp_path / "a.tar", {}, links=tuple(f"{number}.jpg" for number in range(40)))
    good = make_tar(tmp_path / "b.tar")
    pipeline = hr.Pipeline(Shards(f"{tmp_path}"), stages=[hr.fetch("fetch"), hr.stage("name", len)])
    result = hr.run(pipeline)
    assert (shard.exists(), good.exists()) == (True, True)
    assert (result.counters.delivered, result.counters.rejected) == (30, 40)
    assert "run.nothing_succeeded" not in result.counters.notes
    assert "nothing succeeds" not in caplog.text

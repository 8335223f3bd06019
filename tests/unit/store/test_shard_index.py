"""An index is used only for the shard that it was made of."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from headrace.base.errors import SourceError
from headrace.store.formats import FORMATS
from headrace.store.indexing import index_shard, verify_folder
from headrace.store.manifest import MANIFEST, read_manifest
from headrace.store.shard_index import index_path, read_index
from headrace.store.shard_reader import ShardReader
from headrace.store.shard_writer import ShardWriter
from headrace.store.shards import expand_braces, find_shards, list_shard, open_shard


def make_shard(path: Path, files: dict[str, bytes]) -> Path:
    """Write a finished shard with its index."""
    grown = ShardWriter(path.with_name(f".{path.name}.partial"))
    for name, data in files.items():
        grown.append(name, data)
    FORMATS["tar"].finish(grown, path)
    grown.close()
    return path


def read(shard: Path) -> dict[str, int]:
    """Return the names and checksums of an index."""
    with open_shard(shard) as handle:
        rows = read_index(shard, handle)
    assert rows is not None
    return {row.stored.name: row.stored.crc32 or 0 for row in rows}


FILES = {
    f"{number:03d}.{part}": os.urandom(50) if part == "jpg" else b"7"
    for number in range(200)
    for part in ("jpg", "cls")
}


def test_an_index_says_what_the_headers_say(tmp_path: Path) -> None:
    """Read from the index or from the headers, the samples are the same, but for the checksums."""
    shard = make_shard(tmp_path / "a.tar", FILES)
    indexed = list_shard(shard)
    index_path(shard).unlink()
    scanned = list_shard(shard)
    assert indexed.is_indexed
    assert not scanned.is_indexed
    places = [
        [
            (one.key, [(part.name, part.offset, part.length, part.text) for part in one.parts.values()])
            for one in found.samples
        ]
        for found in (indexed, scanned)
    ]
    assert places[0] == places[1]
    assert len(places[0]) == 200


def test_an_index_made_later_is_the_one_of_packing(tmp_path: Path) -> None:
    """`headrace pack --index` and packing write the same bytes."""
    shard = make_shard(tmp_path / "a.tar", FILES)
    packed = index_path(shard).read_bytes()
    index_path(shard).unlink()
    assert index_shard(shard) == len(FILES)
    assert index_path(shard).read_bytes() == packed


def test_an_index_of_a_shard_of_another_size_is_refused(tmp_path: Path) -> None:
    """As after half a copy."""
    shard = make_shard(tmp_path / "a.tar", FILES)
    os.truncate(shard, shard.stat().st_size - 512)
    with pytest.raises(SourceError, match=r"is of a file of .* bytes, and the shard has .*headrace pack .*--index"):
        read(shard)


def test_an_index_of_another_shard_of_the_same_size_is_refused(tmp_path: Path) -> None:
    """The headers tell two shards apart that have files of the same sizes."""
    shard = make_shard(tmp_path / "a.tar", FILES)
    other = make_shard(tmp_path / "b.tar", {f"x{name}": data for name, data in FILES.items()})
    index_path(shard).write_bytes(index_path(other).read_bytes())
    with pytest.raises(SourceError, match=r"is of another file than a\.tar"):
        read(shard)


def test_a_copy_keeps_its_index(tmp_path: Path) -> None:
    """Times of files change when they are copied; that is no reason to refuse."""
    shard = make_shard(tmp_path / "a.tar", FILES)
    os.utime(shard, (1, 1))
    assert len(read(shard)) == len(FILES)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"offset": -1}, "places that are not in the shard"),
        ({"offset": 1 << 40}, "places that are not in the shard"),
        ({"length": -5}, "places that are not in the shard"),
        ({"length": 1 << 40}, "places that are not in the shard"),
    ],
)
def test_places_outside_of_the_shard_are_refused(change: dict[str, int], says: str, tmp_path: Path) -> None:
    """Somebody else may have written the index."""
    shard = make_shard(tmp_path / "a.tar", {"a.jpg": b"1", "b.jpg": b"2"})
    table = pyarrow.parquet.read_table(index_path(shard), partitioning=None)
    for name, value in change.items():
        column = table.schema.get_field_index(name)
        values = [*table[name].to_pylist()[:-1], value]
        table = table.set_column(column, table.schema.field(name), pyarrow.array(values, pyarrow.int64()))
    pyarrow.parquet.write_table(table, index_path(shard))
    with pytest.raises(SourceError, match=says):
        read(shard)


def test_an_index_that_is_a_bomb_is_refused_by_its_footer(tmp_path: Path) -> None:
    """A million rows of a shard of 3 kB, or gigabytes of names, are not read."""
    shard = make_shard(tmp_path / "a.tar", {"a.jpg": b"1"})
    schema = pyarrow.parquet.read_schema(index_path(shard))
    for rows, name in ((1_000_000, "a"), (1, "a" * 50_000_000)):
        columns = {"name": [name] * rows, "offset": [512] * rows, "length": [1] * rows, "crc32": [0] * rows}
        columns |= {"text": [None] * rows, "source": [None] * rows}  # type: ignore[dict-item]
        pyarrow.parquet.write_table(pyarrow.Table.from_pydict(columns, schema=schema), index_path(shard))
        with pytest.raises(SourceError, match="are more than a shard"):
            read(shard)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\x00" * 4_000, os.urandom(4_000)])
def test_an_index_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    """The error says how to make it anew."""
    shard = make_shard(tmp_path / "a.tar", {"a.jpg": b"1"})
    index_path(shard).write_bytes(content)
    with pytest.raises(SourceError, match="cannot be used"):
        read(shard)


def test_a_parquet_of_something_else_is_refused(tmp_path: Path) -> None:
    """It has no version."""
    shard = make_shard(tmp_path / "a.tar", {"a.jpg": b"1"})
    pyarrow.parquet.write_table(pyarrow.table({"name": ["a"]}), index_path(shard))
    with pytest.raises(SourceError, match="version None"):
        read(shard)


def test_a_shard_with_a_flaw_gets_no_index(tmp_path: Path) -> None:
    """An index would hide what cannot be read."""
    shard = make_shard(tmp_path / "a.tar", FILES)
    index_path(shard).unlink()
    os.truncate(shard, 1_500)
    with pytest.raises(SourceError, match=r"tar\.truncated.*headrace pack .* -o NEW"):
        index_shard(shard)
    assert not index_path(shard).exists()


def test_shards_are_found_by_every_way_to_name_them(tmp_path: Path) -> None:
    """A file, a folder, braces; a folder of photographs with an archive among them is no folder of shards."""
    data = tmp_path / "data"
    data.mkdir()
    shards = [make_shard(data / f"s-{number:02d}.tar", {"a.jpg": b"1"}) for number in range(8, 12)]
    (data / MANIFEST).write_text("{}")
    assert find_shards(shards[0]) == shards[:1]
    assert find_shards(data) == shards
    assert find_shards(f"{data}/s-{{08..11}}.tar") == shards
    with pytest.raises(SourceError, match=r"1 of the 5 shards .* do not exist, such as .*s-12\.tar"):
        find_shards(f"{data}/s-{{08..12}}.tar")
    (data / "photo.jpg").touch()
    assert find_shards(data) is None
    assert find_shards(data / "photo.jpg") is None
    assert find_shards(tmp_path / "nothing") is None


def test_what_names_no_shards_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is wrong, or seen from another folder; a folder of photographs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"1")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "train.parquet").write_bytes(b"1")
    for name, says in (
        ("tables", "headrace pack records://tables -o tables-packed"),
        ("data", f"no such file or folder, seen from {tmp_path}; expected a .tar file"),
        (tmp_path / "data", "no such file or folder; expected"),
        ("photos/a.jpg", "names no tar shards; expected"),
        ("photos", "headrace pack photos -o photos-packed"),
        ("photos/*.tar", "no such file or folder"),
        ("photos/*.jpg", "photos/*.jpg names no tar shards; expected"),
    ):
        with pytest.raises(SourceError, match=re.escape(says)):
            ShardReader(name)


@pytest.mark.parametrize("name", ["a.tgz", "a.tar.gz", "*.tgz", "*.tar.*", "A.TAR.XZ"])
def test_a_compressed_tar_is_no_item(name: str, tmp_path: Path) -> None:
    """It would be packed, or decoded as an image, as one file; a folder of archives stays a folder of files."""
    for one in ("a.tgz", "a.tar.gz", "A.TAR.XZ"):
        (tmp_path / one).write_bytes(b"1")
    with pytest.raises(SourceError, match=r"is a compressed tar.*decompress it first"):
        find_shards(tmp_path / name)
    with pytest.raises(SourceError, match="is a compressed tar"):
        ShardReader(tmp_path)
    assert find_shards(tmp_path) is None


def test_more_shards_than_handles_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader keeps its shards open: to wait for a handle until one comes free would be to wait for itself."""
    for name in ("a.tar", "b.tar"):
        make_shard(tmp_path / name, FILES)
    usual, refused = os.open, []

    def refuse(path: str | Path, *args: int, **more: Any) -> int:
        if str(path).endswith("b.tar") and len(refused) < 100:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return usual(path, *args, **more)

    monkeypatch.setattr("headrace.base.patient_open._PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SourceError, match=r"b\.tar cannot be read: Too many open files"):
        ShardReader(tmp_path)


def test_a_pattern_of_shards(tmp_path: Path) -> None:
    """As a shell writes it, for all that takes shards; one that finds other files too names files, not shards."""
    shards = [make_shard(tmp_path / f"x-{number}.tar", {f"{number}.jpg": b"1"}) for number in range(3)]
    (tmp_path / "x-3.txt").write_text("no shard")
    assert find_shards(tmp_path / "x-*.tar") == shards
    assert len(ShardReader(str(tmp_path / "x-*.tar"))) == 3
    assert find_shards(tmp_path / "x-*") is None
    assert find_shards(tmp_path / "y-*.tar") is None


def test_braces_are_numbers_of_one_width() -> None:
    """As a shell expands them."""
    assert expand_braces("a{8..10}b{00..01}") == [f"a{one}b{two}" for one in (8, 9, 10) for two in ("00", "01")]
    for wrong in ("{5..1}", "{0..99999999}"):
        with pytest.raises(SourceError, match="names no shards"):
            expand_braces(wrong)


def test_a_folder_without_a_manifest_cannot_be_verified(tmp_path: Path) -> None:
    """The error says what would have made it."""
    with pytest.raises(SourceError, match="no manifest"):
        verify_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"schema": 3}', b"\xff"])
def test_a_damaged_manifest_is_refused(content: bytes, tmp_path: Path) -> None:
    """It names its file."""
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(SourceError, match=r"manifest\.json cannot be read"):
        read_manifest(tmp_path)


def test_small_members_are_written_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand members of 100 bytes are two calls of the system, and all of them are there after them."""
    calls: list[int] = []
    write = os.pwritev

    def count(handle: int, parts: list[bytes], offset: int) -> int:
        calls.append(offset)
        return write(handle, parts, offset)

    monkeypatch.setattr(os, "pwritev", count)
    writer = ShardWriter(tmp_path / "a.tar")
    for number in range(1000):
        writer.append(f"{number}.txt", b"%100d" % number)
    digest = writer.end()
    writer.close()
    assert len(calls) <= 3  # with the mark of the end
    content = (tmp_path / "a.tar").read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest
    with tarfile.open(tmp_path / "a.tar") as archive:
        members = [archive.extractfile(one) for one in archive]
        assert [one.read() for one in members if one is not None] == [b"%100d" % number for number in range(1000)]


def test_a_large_member_is_neither_copied_nor_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system is given its very bytes, at once; one that it does not take was not added, and what was before it is kept."""
    large, given = bytes(3 << 20), []
    write = os.pwritev

    def note(handle: int, parts: list[memoryview], offset: int) -> int:
        given.append(parts[0].obj)
        return write(handle, parts, offset)

    writer = ShardWriter(tmp_path / "a.tar")
    writer.append("small", b"1")
    monkeypatch.setattr(os, "pwritev", note)
    writer.append("large", large)
    assert any(one is large for one in given)
    assert os.stat(writer.handle).st_size == writer.size
    size = writer.size

    def refuse(handle: int, parts: list[memoryview], offset: int) -> int:
        if parts[0].obj is large:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, parts, offset)

    monkeypatch.setattr(os, "pwritev", refuse)
    with pytest.raises(OSError, match="No space left"):
        writer.append("another", large)
    assert writer.size == size == os.stat(writer.handle).st_size
    writer.append("last", b"2")
    digest = writer.end()
    writer.close()
    assert hashlib.sha256((tmp_path / "a.tar").read_bytes()).hexdigest() == digest
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames() == ["small", "large", "last"]

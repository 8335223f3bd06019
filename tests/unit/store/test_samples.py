"""Files of one sample, and samples of one file that are made when they are asked for."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from headrace.store.indexing import index_shard
from headrace.store.samples import Singles, Stored, are_single, join_samples
from headrace.store.shard_index import index_path
from headrace.store.shard_reader import ShardReader
from headrace.store.shards import list_shard


def test_samples_of_one_file_are_those_that_joining_makes() -> None:
    """Whatever the names: where each file is called a sample of its own, joining neighbours comes to the same."""
    draw, num_single = random.Random(4), 0
    for _ in range(3_000):
        names = ["".join(draw.choices("aB./", k=draw.randint(0, 5))) for _ in range(draw.randint(0, 4))]
        files = [Stored(name, 512 * place, 1) for place, name in enumerate(names)]
        if are_single(files):
            num_single += 1
            assert list(Singles(files)) == list(join_samples(files))
    assert 500 < num_single < 2_900
    assert are_single([Stored("a/1.jpg", 0, 1), Stored("a/2.jpg", 0, 1)])
    assert not are_single([Stored("a/1.jpg", 0, 1), Stored("a/1.cls", 0, 1)])


def write_tar(path: Path, names: list[str]) -> None:
    """Write a tar in which each file holds its name."""
    with tarfile.open(path, "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))


@pytest.mark.parametrize("part", [None, "jpg"])
def test_shards_of_both_kinds_are_read_as_one(tmp_path: Path, part: str | None) -> None:
    """Keys, parts and bytes are found by number, from the end as well, across a shard without a sample of that part."""
    write_tar(tmp_path / "a.tar", ["1.jpg", "2.jpg", "3.jpg"])
    write_tar(tmp_path / "b.tar", ["4.jpg", "4.cls", "x/5.jpg"])
    write_tar(tmp_path / "c.tar", ["6.png"] if part else ["6.jpg"])
    write_tar(tmp_path / "d.tar", ["7.jpg"])
    singles = [isinstance(list_shard(shard).samples, Singles) for shard in sorted(tmp_path.glob("*.tar"))]
    assert singles == [True, False, True, True]
    reader = ShardReader(tmp_path, part=part)
    keys = ["1", "2", "3", "4", "x/5", *([] if part else ["6"]), "7"]
    assert [reader.key(number) for number in range(len(reader))] == keys
    assert [reader.read(number) for number in range(len(reader))] == [f"{key}.jpg".encode() for key in keys]
    assert reader.parts(3) == ["jpg", "cls"]
    assert reader.read_parts(3) == {"jpg": b"4.jpg", "cls": b"4.cls"}
    assert reader.num_bytes([2, 3]) == 3 * len("1.jpg")
    assert (reader.key(-1), reader.read(-1)) == ("7", b"7.jpg")
    with pytest.raises(IndexError):
        reader.key(len(reader))
    reader.close()


@pytest.mark.parametrize("indexes", [False, True])
def test_parts_that_lie_apart_are_said(indexes: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tar that was made without sorting has its labels elsewhere: they would be samples of their own, unnoticed."""
    look = index_shard if indexes else list_shard
    shard = tmp_path / "a.tar"
    for names in (["1.jpg", "1.cls", "2.jpg"], ["1.jpg", "1.jpg", "2.jpg", "1.jpg"], ["a/1.jpg", "b/1.jpg"]):
        write_tar(shard, names)
        look(shard)
        index_path(shard).unlink(missing_ok=True)
        assert not caplog.records
    write_tar(shard, ["1.jpg", "2.jpg", "2.json", "1.cls", "2.cls"])
    look(shard)
    [said] = caplog.records
    assert "2 files are not beside the others of the same sample" in said.getMessage()
    assert "such as 1.cls" in said.getMessage()


def test_an_index_does_not_hide_that_a_shard_may_be_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Between two files nothing else tells."""
    shard = tmp_path / "a.tar"
    write_tar(shard, ["1.jpg", "2.jpg"])
    os.truncate(shard, 1_024)
    assert index_shard(shard) == 1
    assert "may have been cut off" in caplog.text

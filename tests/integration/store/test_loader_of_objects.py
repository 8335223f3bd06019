"""`hr.loader` over shards in a bucket: what it gives from files, by few requests, whatever the store answers."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import FetchRejected, SourceError
from headrace.cli import main
from headrace.store.loading_work import LoadedSample

pytest.importorskip("obstore")
SIZE = 200


@pytest.fixture
def packed(bucket: Any, tmp_path: Path) -> Path:
    """Pack images with labels into three shards and upload them below `packed`; return the folder."""
    folder = tmp_path / "files"
    folder.mkdir()
    for index in range(SIZE):
        (folder / f"{index:03d}.jpg").write_bytes(bytes([index]) * 20_000)
        (folder / f"{index:03d}.cls").write_text(str(index % 10))
    assert main(["-q", "pack", str(folder), "-o", str(tmp_path / "data"), "--shard", "2MB"]) == 0
    for file in (tmp_path / "data").iterdir():
        bucket.upload_file(str(file), "photos", f"packed/{file.name}")
    return tmp_path / "data"


def number_of(sample: LoadedSample) -> int:
    """Return which sample it is, after looking at all of it."""
    number = int(sample.key)
    assert sample.parts == {"jpg": bytes([number]) * 20_000, "cls": str(number % 10).encode()}
    return number


def numbers_of(batches: Any) -> list[list[int]]:
    """Return batches as lists."""
    return [batch.tolist() for batch in batches]


def all_of(batches: Any) -> list[int]:
    """Return the numbers of all samples in their order."""
    return [number for batch in numbers_of(batches) for number in batch]


def requests_of(s3: Any) -> int:
    """Return how many requests for shards were made."""
    return sum(method == "GET" and path.endswith(".tar") for method, path, _ in s3.seen)


@pytest.mark.smoke
@pytest.mark.parametrize("settings", [{}, {"block": 64}, {"shuffle": False}, {"ordered": False, "workers": 4}])
def test_a_bucket_gives_what_its_files_give(settings: dict[str, Any], s3: Any, packed: Path) -> None:
    """The same batches; a sample is one request, a block one for each shard, and in sequence 4 MB are one."""
    loader = hr.loader("s3://photos/packed", 8, transform=number_of, seed=4, **settings)
    files = hr.loader(packed, 8, transform=number_of, seed=4, **settings)
    for _ in range(2):
        assert sorted(numbers_of(loader)) == sorted(numbers_of(files))
    assert loader.state() == files.state()
    s3.seen.clear()
    list(hr.loader("s3://photos/packed", 8, seed=4, **settings))
    blocks = {"block": 4, "shuffle": 1}.get(next(iter(settings), ""))
    assert requests_of(s3) in (range(blocks, blocks + 3) if blocks else [SIZE])


def test_shards_may_be_named_one_by_one(s3: Any, packed: Path) -> None:
    """In a list, twice, or with what they are below: each is read once."""
    first, second = (f"s3://photos/packed/shard-00000{number}.tar" for number in range(2))
    both = sorted(all_of(hr.loader([second, first, first], 8, transform=number_of)))
    assert both == list(range(len(both)))
    assert len(both) < SIZE
    with hr.loader(["s3://photos/packed", first], 8, transform=number_of) as loader:
        assert sorted(all_of(loader)) == list(range(SIZE))


def test_what_the_store_refuses_for_now_is_asked_for_again(s3: Any, packed: Path) -> None:
    """503 with slow-down, 500, and bodies that are cut off cost no sample."""
    loader = hr.loader("s3://photos/packed", 8, transform=number_of, shuffle=False)
    s3.refuse = {"shard-000000.tar": [503, 500]}
    s3.cut_bodies = 1
    assert all_of(loader) == list(range(SIZE))


def test_a_replaced_or_damaged_shard_gives_no_wrong_sample(s3: Any, bucket: Any, packed: Path) -> None:
    """Replaced while it is read: refused by its ETag; damaged before: by the checksum, which may be skipped."""
    content = bytearray((packed / "shard-000000.tar").read_bytes())
    content[1_536 + 100] ^= 1  # of the first image: behind a label and a header
    loader = hr.loader("s3://photos/packed", 8, transform=number_of, shuffle=False)
    bucket.put_object(Bucket="photos", Key="packed/shard-000000.tar", Body=bytes(content))
    with pytest.raises(FetchRejected, match=r"object\.changed"):
        list(loader)
    with pytest.raises(FetchRejected, match=r"tar\.checksum: the bytes of 000\.jpg"):
        list(hr.loader("s3://photos/packed", 8, shuffle=False))
    skips = hr.loader("s3://photos/packed", 8, transform=number_of, rejects="skip")
    assert sorted(all_of(skips)) == list(range(1, SIZE))
    assert skips.num_rejected == 1


def test_a_store_that_never_answers_is_a_clear_stop(s3: Any, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few tries; never a hang, and never a shorter epoch."""
    monkeypatch.setattr("headrace.store.object_shards.PAUSES", (0.0, 0.0))
    loader = hr.loader("s3://photos/packed", 8, transform=number_of, rejects="skip", shuffle=False)
    s3.refuse = {"shard-000000.tar": [503] * 9}
    with pytest.raises(SourceError, match=r"object\.busy"):
        list(loader)
    s3.refuse = {}
    assert all_of(loader) == list(range(SIZE))


@pytest.mark.parametrize(
    ("url", "says"), [("s3://photos/none", "does not exist"), ("s3://photos/2026", "no tar shard")]
)
def test_what_is_no_shard_is_said(url: str, says: str, s3: Any, bucket: Any, packed: Path) -> None:
    """When the loader is made."""
    bucket.put_object(Bucket="photos", Key="2026/a.jpg", Body=b"x")
    with pytest.raises(SourceError, match=says):
        hr.loader(url, 4)
    bucket.delete_object(Bucket="photos", Key="packed/shard-000000.idx.parquet")
    with pytest.raises(SourceError, match=r"has no index packed/shard-000000\.idx\.parquet"):
        hr.loader("s3://photos/packed", 4)


def test_a_forked_process_is_told_what_to_do(s3: Any, packed: Path) -> None:
    """The library's threads are not there, and it panics."""
    loader = hr.loader("s3://photos/packed", 8)
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def read() -> None:
        try:
            next(iter(loader))
        except SourceError as error:
            sender.send(str(error))

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    assert receiver.poll(60)
    assert "multiprocessing_context='spawn'" in receiver.recv()
    child.join(60)


@pytest.mark.full
def test_processes_read_a_bucket_by_what_was_listed(s3: Any, bucket: Any, packed: Path) -> None:
    """A shard that was added since changes no number."""
    with hr.loader("s3://photos/packed", 8, transform=number_of, executor="process", seed=4) as loader:
        bucket.upload_file(str(packed / "shard-000000.tar"), "photos", "packed/added.tar")
        bucket.upload_file(str(packed / "shard-000000.idx.parquet"), "photos", "packed/added.idx.parquet")
        assert numbers_of(loader) == numbers_of(hr.loader(packed, 8, transform=number_of, seed=4))


def test_an_empty_file_is_a_sample(s3: Any, bucket: Any, tmp_path: Path) -> None:
    """A store that is asked for no bytes gives the whole shard."""
    folder = tmp_path / "files"
    folder.mkdir()
    for index in range(6):
        (folder / f"{index}.txt").write_bytes(b"x" * index)
    assert main(["-q", "pack", str(folder), "-o", str(tmp_path / "data")]) == 0
    for file in (tmp_path / "data").iterdir():
        bucket.upload_file(str(file), "photos", f"packed/{file.name}")
    for settings in ({}, {"block": 2}, {"shuffle": False}):
        loader = hr.loader("s3://photos/packed", 2, transform=lambda sample: len(sample.parts["txt"]), **settings)
        assert sorted(all_of(loader)) == [0, 1, 2, 3, 4, 5]

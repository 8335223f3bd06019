"""A packed folder: the same bytes in whatever order results come, wherever the process ends, and whatever is given up."""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import tarfile
from pathlib import Path

import pyarrow.parquet
import pytest

from headrace.base.errors import DeliveryFailed, DeliveryRejected, SettingsError
from headrace.base.records import Job
from headrace.delivery.packed import Packed
from headrace.sources.records import Records
from headrace.store import shard_writer
from headrace.store.indexing import verify_folder
from headrace.store.manifest import read_manifest
from headrace.store.naming import name_members
from headrace.store.tfrecord import read_example, read_records
from headrace.store.turns import Turns

DRAW = random.Random(11)
ITEMS = {f"{number // 10}/{number:03d}.{part}": DRAW.randbytes(DRAW.choice([0, 1, 511, 512, 3_000]) if part == "jpg" else 5)
         for number in range(60) for part in ("jpg", "txt")}  # fmt: skip
ITEMS = {name: data if name.endswith("jpg") else f"t {name}".encode() for name, data in ITEMS.items()}
LOST = {"2/021.jpg", "2/022.txt", "5/059.txt", "5/059.jpg", "0/000.jpg"}


def packer(folder: Path, **options: object) -> Packed:
    """Return a delivery of all items."""
    return Packed(folder, name_members(ITEMS), Turns(list(ITEMS)), shard_bytes=20_000, **options)  # type: ignore[arg-type]


def content(folder: Path) -> dict[str, bytes]:
    """Return all that is in a folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def pack_all(packed: Packed, order: list[str], flush_each: int = 10**9) -> None:
    """Bring items in an order; those that are lost are given up."""
    for number, one in enumerate(order):
        if one in LOST:
            packed.give_up(one, f"file.unreadable: {one} cannot be read")
        else:
            packed.deliver(Job(one, b""), ITEMS[one])
        if number % flush_each == flush_each - 1:
            packed.flush()


@pytest.fixture(scope="module", params=["tar", "parquet", "tfrecord", "lmdb"])
def right(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    """What comes of items that come in order."""
    folder = tmp_path_factory.mktemp("right") / "data"
    packed = packer(folder, format=request.param)
    packed.open(None)
    pack_all(packed, list(ITEMS))
    packed.close()
    return request.param, content(folder)


def test_the_folder_holds_every_item_that_was_read(right: tuple[str, dict[str, bytes]], tmp_path: Path) -> None:
    """By Python's tarfile or pyarrow; the manifest is right, and lists as many as were lost."""
    form, files = right
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.complete
    assert manifest.unreadable == len(LOST) == len(files["unreadable.jsonl"].splitlines())
    assert len(manifest.shards) > 5
    read: dict[str, bytes] = {}
    for entry in manifest.shards:
        if form == "tar":
            with tarfile.open(tmp_path / entry.name) as tar:
                read |= {info.name: tar.extractfile(info).read() for info in tar.getmembers()}  # type: ignore[union-attr]
        elif form == "lmdb":
            rows = Records(tmp_path / entry.name).entries()
            read |= {row.attributes["key"]: row.payload for row in rows}  # type: ignore[misc]
        elif form == "tfrecord":
            examples = read_records(io.BytesIO(files[entry.name]))
            read |= {row["name"].decode(): row["data"] for row in map(read_example, examples)}  # type: ignore[arg-type]
        else:
            table = pyarrow.parquet.read_table(tmp_path / entry.name, partitioning=None)
            read |= dict(zip(table["name"].to_pylist(), table["data"].to_pylist(), strict=True))
    assert read == {name: data for name, data in ITEMS.items() if name not in LOST}
    assert manifest.files == len(read)
    if form != "tar":
        rows = list(Records(tmp_path).entries())
        assert sorted(row.payload for row in rows) == sorted(read.values())  # type: ignore[type-var]
    assert verify_folder(tmp_path).problems == []
    assert {name.partition(".")[0] for name in files} == {f"shard-{n:06d}" for n in range(len(manifest.shards))} | {
        "manifest",
        "unreadable",
    }


@pytest.mark.parametrize("seed", range(12))
def test_the_order_in_which_results_come_does_not_matter(
    seed: int, right: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """A little out of order, or at random; flushed never, or after each."""
    draw = random.Random(seed)
    reach = draw.choice([2, 8, len(ITEMS)])
    places = {one: place + draw.random() * reach for place, one in enumerate(ITEMS)}
    packed = packer(tmp_path / "data", format=right[0])
    packed.open(None)
    pack_all(packed, sorted(ITEMS, key=places.__getitem__), flush_each=draw.choice([1, 3, 10**9]))
    packed.close()
    assert content(tmp_path / "data") == right[1]


@pytest.mark.parametrize("seed", range(12))
def test_a_process_that_ends_anywhere_changes_nothing(
    seed: int, right: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """As if killed after some results, half a member behind the whole ones: what is recovered is not done again."""
    draw = random.Random(100 + seed)
    folder, done, lost = tmp_path / "data", set[str](), set[str]()
    starts = 0
    while True:
        starts += 1
        packed = packer(folder, format=right[0])
        if folder.exists():
            found = packed.recover({})
            assert found >= done, "what was durable is gone"
            done = found
        for one in lost:
            packed.give_up(one, "as the journal says")
        packed.open(None)
        left = [one for one in ITEMS if one not in done and one not in lost]
        left.sort(key={one: place + draw.random() * 9 for place, one in enumerate(left)}.__getitem__)
        for one in left[: draw.randint(1, 40)]:
            if one in LOST:
                packed.give_up(one, f"file.unreadable: {one} cannot be read")
                lost.add(one)
            elif packed.deliver(Job(one, b""), ITEMS[one]):
                done.add(one)
            if draw.random() < 0.2:
                packed.flush()
        if packed.manifest().complete:
            break
        # Not closed: a killed process does nothing at its end. Half a member stays.
        for partial in folder.glob(".shard-*.partial"):
            with partial.open("ab") as file:
                file.write(draw.randbytes(draw.choice([0, 1, 600])))
    packed.close()
    assert starts > 2
    assert content(folder) == right[1]


def test_what_grew_before_the_machine_started_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut only finished shards count; the rest is done again."""
    packed = packer(tmp_path / "data")
    packed.open(None)
    order = [one for one in ITEMS if one not in LOST]
    for one in LOST:
        packed.give_up(one, "x.y: gone")
    for one in order[:40] + order[42:60]:
        packed.deliver(Job(one, b""), ITEMS[one])
    packed.flush()
    same = packer(tmp_path / "data").recover({})
    monkeypatch.setattr(shard_writer, "_BOOT_ID", tmp_path / "other")
    (tmp_path / "other").write_text("f" * 36)
    other = packer(tmp_path / "data").recover({})
    assert same == set(order[:40] + order[42:60])
    assert other < set(order[:40])
    assert not list((tmp_path / "data").glob(".spill*"))


def test_a_disk_that_is_full_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write may fail; what comes again is written, and nothing twice."""
    draw = random.Random(3)
    write = os.pwritev

    def full_now_and_then(handle: int, parts: list[bytes], offset: int) -> int:
        if draw.random() < 0.4:
            write(handle, [b"half"], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, parts, offset)

    monkeypatch.setattr(shard_writer.os, "pwritev", full_now_and_then)
    right, packed = packer(tmp_path / "right"), packer(tmp_path / "data")
    packed.open(None)
    said: set[str] = set()
    for one in [*ITEMS, "5/059.jpg"]:  # at the end once more: it finishes the last shard
        while True:
            try:
                packed.deliver(Job(one, b""), ITEMS[one])
                break
            except DeliveryFailed as error:
                said.add(str(error).rpartition(": ")[2])
    packed.close()
    assert said == {"No space left on device"}
    monkeypatch.undo()
    right.open(None)
    for one in ITEMS:
        right.deliver(Job(one, b""), ITEMS[one])
    right.close()
    assert content(tmp_path / "data") == content(tmp_path / "right")


def test_a_disk_that_is_still_full_at_the_end_leaves_what_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder is not complete; how the run ended is for the run to say, not for an error of closing it."""
    packed = packer(tmp_path / "data")
    packed.open(None)
    packed.deliver(Job("0/001.jpg", b""), ITEMS["0/001.jpg"])  # early: it waits for the first two

    def full(handle: int, parts: list[bytes], offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shard_writer.os, "pwritev", full)
    packed.give_up("0/000.jpg", "file.unreadable: gone")
    packed.give_up("0/000.txt", "file.unreadable: gone")
    packed.close()
    assert "data cannot be written: No space left on device" in caplog.text
    assert not packed.manifest().complete


@pytest.mark.parametrize("form", ["tar", "parquet", "tfrecord", "lmdb"])
def test_what_ended_between_the_last_item_and_the_end_is_finished(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to do then, so the run is not begun: taking in what is there finishes it."""

    def end(packed: Packed) -> None:
        packed.open(None)
        for one in ITEMS:
            packed.deliver(Job(one, b""), ITEMS[one])
        packed.close()

    end(packer(tmp_path / "right", format=form))
    last = len(list((tmp_path / "right").glob(f"shard-*.{form}"))) - 1
    replace = os.replace

    def cut_off(old: Path, new: Path) -> None:
        if f"shard-{last:06d}" in Path(new).name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(old, new)

    monkeypatch.setattr(os, "replace", cut_off)
    with pytest.raises(DeliveryFailed):
        end(packed := packer(tmp_path / "data", format=form))
    packed.close()
    assert not packed.manifest().complete
    monkeypatch.undo()
    resumed = packer(tmp_path / "data", format=form)
    assert resumed.recover({}) == set(ITEMS)
    assert resumed.manifest().complete
    assert content(tmp_path / "data") == content(tmp_path / "right")


def test_only_bytes_are_packed(tmp_path: Path) -> None:
    """What a stage made of an item must be a file again."""
    packed = packer(tmp_path / "data")
    packed.open(None)
    with pytest.raises(DeliveryRejected, match=r"pack\.type: the item became a list"):
        packed.deliver(Job("0/000.jpg", b""), [1])
    packed.close()


def test_a_folder_of_another_format_is_not_gone_on_with(tmp_path: Path) -> None:
    """Half tar and half Parquet would be no data set."""
    packed = packer(tmp_path / "data")
    packed.open(None)
    pack_all(packed, list(ITEMS))
    packed.close()
    with pytest.raises(SettingsError, match="is packed as tar; go on with --format tar"):
        packer(tmp_path / "data", format="parquet").recover({})
    with pytest.raises(FileNotFoundError):
        packer(tmp_path / "nothing").recover({})


def test_a_finished_shard_that_is_damaged_is_named(tmp_path: Path) -> None:
    """Without its index nobody knows what is in it."""
    packed = packer(tmp_path / "data")
    packed.open(None)
    pack_all(packed, list(ITEMS)[:60])
    packed.close()
    (tmp_path / "data" / "shard-000000.idx.parquet").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"shard-000000\.tar cannot be read back"):
        packer(tmp_path / "data").recover({})


def test_verifying_finds_every_kind_of_damage(tmp_path: Path) -> None:
    """A changed byte, a shard that is gone, one that is cut off, one that is not in the manifest."""
    packed = packer(tmp_path / "data")
    packed.open(None)
    pack_all(packed, list(ITEMS))
    packed.close()
    shards = sorted((tmp_path / "data").glob("shard-*.tar"))
    with shards[0].open("r+b") as file:
        file.seek(700)
        file.write(b"X")
    os.truncate(shards[1], 1_024)
    shutil.copy(shards[3], tmp_path / "data" / "shard-000099.tar")
    shards[2].unlink()
    problems = "\n".join(verify_folder(tmp_path / "data").problems)
    assert "shard-000000.tar has other content" in problems
    assert "shard-000001.tar has 1,024 bytes" in problems
    assert "shard-000002.tar cannot be read" in problems
    assert "such as shard-000099.tar" in problems


def test_names_that_lmdb_does_not_take(tmp_path: Path) -> None:
    """A key has 511 bytes at most: it is cut and marked, and a resumed run still knows what the item was called."""
    ids = [f"{'ä' * 110}/{'b' * 110}/{'c' * 110}/{'d' * 110}/{'e' * 110}{number}.jpg" for number in range(3)]
    packed = Packed(tmp_path / "data", name_members(ids), Turns(ids), format="lmdb")
    packed.open(None)
    for one in ids:
        packed.deliver(Job(one, b""), one.encode())
    packed.close()
    assert {row.payload for row in Records(tmp_path / "data").entries()} == {one.encode() for one in ids}
    again = Packed(tmp_path / "data", name_members(ids), Turns(ids), format="lmdb")
    assert again.recover({}) == set(ids)


def test_a_line_that_was_cut_off_costs_no_other(tmp_path: Path) -> None:
    """A full disk left half a reason; the next one stood on the same line, and both were lost to the start after that."""
    packed = packer(tmp_path / "data")
    packed.open(None)
    packed.give_up("2/021.jpg", "file.unreadable: gone")
    reasons = tmp_path / "data" / "unreadable.jsonl"
    reasons.write_bytes(reasons.read_bytes() + b'{"id": "2/022.txt", "rea')
    again = packer(tmp_path / "data")
    again.recover({})
    again.give_up("5/059.txt", "file.unreadable: gone, too")
    third = packer(tmp_path / "data")
    third.recover({})
    assert third.manifest().unreadable == 2

"""Batches from real shards: each sample once an epoch, resumed with 24 bytes, never a wrong byte."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import FetchRejected, ItemRejected, SettingsError, SourceError
from headrace.store.collating import stack
from headrace.store.formats import FORMATS
from headrace.store.indexing import index_shard
from headrace.store.loading_work import LoadedSample
from headrace.store.shard_reader import ShardReader
from headrace.store.shard_writer import ShardWriter

SIZE = 53


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of three shards of pictures and labels."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number, start in enumerate((0, 20, 40)):
        grown = ShardWriter(folder / f".{number}.partial")
        for index in range(start, min(start + 20, SIZE)):
            grown.append(f"{index:03d}.jpg", bytes([index]) * (100 + index))
            grown.append(f"{index:03d}.cls", str(index % 10).encode())
        FORMATS["tar"].finish(grown, folder / f"s-{number}.tar")
        grown.close()
    return folder


def number_of(sample: LoadedSample) -> int:
    """Return which sample it is, after looking at all of it."""
    number = int(sample.key)
    assert sample.parts == {"jpg": bytes([number]) * (100 + number), "cls": str(number % 10).encode()}
    return number


def test_a_reader_returns_each_sample_by_its_number(data: Path) -> None:
    """From any thread, and in a child after a fork: no position is shared."""
    reader = ShardReader(data)
    assert len(reader) == SIZE
    found: dict[int, bytes] = {}
    threads = [
        threading.Thread(target=lambda part=part: found.update({n: reader.read(n) for n in range(part, SIZE, 4)}))
        for part in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: bytes([number]) * (100 + number) for number in range(SIZE)}
    assert [ShardReader(data, part="cls").read(number) for number in (0, 52)] == [b"0", b"2"]
    reader.close()
    with pytest.raises(SourceError, match="names no tar shards"):
        ShardReader(data / "none")


def test_changed_bytes_are_refused(data: Path) -> None:
    """By both ways to read; unchecked reading must be asked for."""
    shard = data / "s-0.tar"
    content = bytearray(shard.read_bytes())
    content[512 + 50] ^= 1
    shard.write_bytes(bytes(content))
    reader = ShardReader(data)
    for read in (reader.read, reader.read_parts):
        with pytest.raises(FetchRejected, match=r"tar\.checksum: the bytes of 000"):
            read(0)
    assert reader.read(1) == bytes([1]) * 101
    assert len(ShardReader(data, checks=False).read(0)) == 100
    with pytest.raises(FetchRejected):
        list(hr.loader(data, 4))
    loader = hr.loader(data, 4, rejects="skip", transform=number_of, end="keep")
    read_all = [number for batch in loader for number in np.asarray(batch).tolist()]
    assert sorted(read_all) == list(range(1, SIZE))
    assert loader.num_rejected == 1
    os.truncate(shard, 600)
    with pytest.raises(FetchRejected, match=r"tar\.truncated"):
        reader.read(0)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_epoch_reads_every_sample_once(workers: int, data: Path) -> None:
    """In another order each time; the order does not depend on the workers."""
    loader = hr.loader(data, 8, transform=number_of, end="keep", workers=workers, seed=5)
    epochs = [[number for batch in loader for number in batch.tolist()] for _ in range(3)]
    assert all(sorted(epoch) == list(range(SIZE)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = hr.loader(data, 8, transform=number_of, end="keep", workers=7 - workers, seed=5, ahead_bytes=1)
    assert [[number for batch in again for number in batch.tolist()] for _ in range(3)] == epochs
    assert len(loader) == 7


def test_one_rank_reads_each_sample_once_without_being_asked(data: Path) -> None:
    """As a DataLoader does: a validation must not count samples twice. Several ranks have as many batches each."""
    loader = hr.loader(data, 8, transform=number_of)
    assert sorted(number for batch in loader for number in batch.tolist()) == list(range(SIZE))
    assert loader.num_repeated == 0
    by_rank = [hr.loader(data, 8, transform=number_of, rank=rank, ranks=2) for rank in range(2)]
    assert [len(list(one)) for one in by_rank] == [4, 4]
    assert sum(one.num_repeated for one in by_rank) == 2 * 4 * 8 - SIZE


def test_a_loop_that_is_left_goes_on_behind_what_it_handed_out(data: Path) -> None:
    """With 24 bytes, in another process, with other ranks: what was read ahead is not lost."""
    whole = [number for batch in hr.loader(data, 5, transform=number_of, end="keep") for number in batch.tolist()]
    loader = hr.loader(data, 5, transform=number_of, end="keep")
    begun: list[int] = []
    for batch in loader:
        begun += batch.tolist()
        if len(begun) == 15:
            break
    state = loader.state()
    assert len(state) == 24
    assert begun + [number for batch in loader for number in batch.tolist()] == whole
    rest: list[list[Any]] = []
    for rank in range(2):
        other = hr.loader(data, 4, transform=number_of, rank=rank, ranks=2)
        other.resume(state)
        rest.append([batch.tolist() for batch in other])
    by_step = [number for step in zip(*rest, strict=True) for batch in step for number in batch]
    assert by_step[: SIZE - 15] == whole[15:]
    assert len(rest[0]) == len(rest[1])
    with pytest.raises(SettingsError, match="seed"):
        hr.loader(data, 5, seed=1).resume(state)


def test_the_state_of_another_data_set_is_refused(data: Path, tmp_path: Path) -> None:
    """A larger one would take the place, and leave out samples without a word."""
    state = hr.loader(data / "s-0.tar", 4).state()
    with pytest.raises(SettingsError, match="of another order than that of these 53 samples"):
        hr.loader(data, 4).resume(state)


def test_a_spawned_process_opens_the_shards_itself(data: Path) -> None:
    """The numbers of open files are other files there."""
    loader = hr.loader(data, 8, transform=number_of, end="keep")
    before = next(iter(loader)).tolist()
    copy = pickle.loads(pickle.dumps(loader))
    loader.close()
    assert sorted(before + [number for batch in copy for number in batch.tolist()]) == list(range(SIZE))


def test_a_closed_loader_reads_from_no_other_file(data: Path) -> None:
    """Files that were opened since may have the numbers of its shards."""
    with hr.loader(data, 8) as loader:
        assert len(next(iter(loader))) == 8
    with pytest.raises(SourceError, match="were closed"):
        next(iter(loader))


def test_a_loader_without_samples_says_so(data: Path, tmp_path: Path) -> None:
    """Before the first batch, with the command that says why; and what is left out of others is said, too."""
    broken = tmp_path / "broken.tar"
    broken.write_bytes((data / "s-0.tar").read_bytes()[:550])
    with pytest.raises(SourceError, match=r"holds no sample that can be read; `headrace pack .*broken\.tar -o NEW`"):
        hr.loader(broken, 4)
    for batch in (0, 2.5, "4"):
        with pytest.raises(SettingsError, match="batch = "):
            hr.loader(data, batch)  # type: ignore[arg-type]


def test_samples_that_cannot_be_read_are_counted_in_a_warning(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are left out of every epoch, which nobody would notice."""
    cut = tmp_path / "cut.tar"
    content = (data / "s-0.tar").read_bytes()
    cut.write_bytes(content[: 512 * 9 + 20])
    loader = hr.loader(cut, 4)
    assert len(loader) == 1
    assert "1 part cannot be read, and is left out" in caplog.text


def test_an_error_of_a_transform_names_the_sample(data: Path) -> None:
    """Among a million, the traceback of the user's function does not say which it was."""
    with pytest.raises(ZeroDivisionError) as caught:
        list(hr.loader(data, 4, transform=lambda sample: 1 // (sample.key != "011")))
    assert caught.value.__notes__ == ["headrace: in the transform of sample '011'"]


def test_what_a_transform_raises_ends_the_loop(data: Path) -> None:
    """An error of the user's code is never skipped; a rejection is, where that was asked for."""

    def fail(sample: LoadedSample) -> int:
        if sample.key == "007":
            raise ItemRejected("not wanted")
        if sample.key == "011":
            raise ZeroDivisionError
        return 1

    loader = hr.loader(data, 4, transform=fail, rejects="skip", shuffle=False)
    with pytest.raises(ZeroDivisionError):
        list(loader)
    assert loader.num_rejected == 1
    assert not [one.name for one in threading.enumerate() if one.name.startswith("headrace-loader")]


def test_no_more_is_read_ahead_than_is_allowed(data: Path) -> None:
    """Counted in bytes: with a limit of one batch, two are never begun before one was taken."""
    begun: list[str] = []
    loader = hr.loader(data, 4, transform=lambda sample: begun.append(sample.key), ahead_bytes=1, shuffle=False)
    for number, _ in enumerate(loader, 1):
        assert len(begun) <= 4 * number


def test_values_are_stacked_by_their_kind() -> None:
    """Arrays, numbers, tuples, dicts; anything else is a list."""
    assert stack([np.zeros(3), np.ones(3)]).shape == (2, 3)
    assert stack([1, 2]).tolist() == [1, 2]
    pictures, labels = stack([(np.zeros(2), 1), (np.ones(2), 0)])
    assert pictures.shape == (2, 2)
    assert labels.tolist() == [1, 0]
    assert stack([{"a": 1}, {"a": 2}])["a"].tolist() == [1, 2]
    assert stack(["x", "y"]) == ["x", "y"]
    assert stack([]) == []
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(2, 4\), which cannot be stacked.*collate=list"):
        stack([np.zeros((2, 3)), np.zeros((2, 4))])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([np.zeros(2), None], "ndarray and NoneType"),
        ([None, np.zeros(2)], "NoneType and ndarray"),
        ([1, "a"], "int and str"),
        ([(1,), (1, 2)], "tuple of 1 and tuple of 2"),
        ([{"a": 1}, {"b": 1}], "dict with a and dict with b"),
    ],
)
def test_values_of_several_kinds_are_refused_by_name(values: list[Any], named: str) -> None:
    """Not made texts of, nor an error from inside."""
    with pytest.raises(ValueError, match=f"values such as {named}, which cannot be stacked"):
        stack(values)


@pytest.mark.parametrize("name", ["rank", "ranks", "block", "ahead_bytes", "transform", "collate"])
def test_a_setting_of_another_type_is_named(data: Path, name: str) -> None:
    """Before anything is read."""
    with pytest.raises(SettingsError, match=f"{name} = '4' is not possible"):
        hr.loader(data, 8, **{name: "4"})


def test_names_of_pytorchs_data_loader_lead_to_ours(data: Path) -> None:
    """Each of its arguments is one of ours, or is answered by what to write; what is neither stays a TypeError."""
    torch_data = pytest.importorskip("torch.utils.data")
    ours = inspect.signature(hr.loader).parameters
    for name in inspect.signature(torch_data.DataLoader).parameters:
        if name not in ours and name != "dataset":  # the first one of both
            with pytest.raises(SettingsError, match=f"^{name} is an argument of PyTorch's DataLoader; (write|leave)"):
                hr.loader(data, **{name: None})
    with pytest.raises(SettingsError, match=r"batch_size .* write batch="):
        hr.loader(data, batch_size=8, shuffle=True, num_workers=2)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="batch = None is not possible"):
        hr.loader(data)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colate'"):
        hr.loader(data, 8, colate=list)  # type: ignore[arg-type]


def test_a_list_of_shards_is_read_in_one_order(data: Path) -> None:
    """`glob` gives another one on every machine; what is named twice is read once."""
    shards = sorted(data.glob("*.tar"))
    keys = []
    for named in (data, shards, shards[::-1], map(str, shards), [*shards, shards[0], data]):
        with hr.loader(named, 8, transform=lambda one: one.key, seed=3) as loader:
            keys.append([list(batch) for batch in loader])
    assert keys == keys[:1] * 5


def test_what_is_written_in_place_is_not_copied(data: Path) -> None:
    """Two arrays of each sample, beside its label: the batch is the memory that transform wrote to."""
    starts: set[int] = set()

    def transform(sample: LoadedSample) -> Any:
        number = number_of(sample)
        picture, flow = sample.place((4, 6, 3)), sample.place([2], np.float32)
        picture[...], flow[...] = number, number / 2
        starts.add(picture.__array_interface__["data"][0])
        return picture, {"flow": flow, "number": number}

    seen = []
    with hr.loader(data, 8, transform=transform, workers=2) as loader:
        for pictures, beside in loader:
            assert (pictures == beside["number"][:, None, None, None]).all()
            assert beside["flow"].tolist() == [[number / 2] * 2 for number in beside["number"]]
            assert {one.__array_interface__["data"][0] for one in pictures} <= starts
            seen += beside["number"].tolist()
    assert sorted(seen) == list(range(SIZE))


def test_places_that_are_used_in_another_way(data: Path) -> None:
    """Left unused, turned, of another type, of one that is rejected: never a wrong sample."""

    def transform(sample: LoadedSample) -> np.ndarray:
        number = number_of(sample)
        place = sample.place((2, 2), np.uint8 if number % 7 else np.float32)
        place[...] = [[number, 0], [1, 2]]
        if number % 11 == 3:
            raise ItemRejected("not this one")
        if number % 5 == 4:
            return place.copy()
        return place.T if number >= 40 else place

    with hr.loader(data, 8, transform=transform, workers=1, shuffle=False, rejects="skip") as loader:
        found = [row for batch in loader for row in batch.tolist()]
    rows = [(number, [[number, 0], [1, 2]]) for number in range(SIZE) if number % 11 != 3]
    assert found == [np.transpose(row).tolist() if number >= 40 and number % 5 != 4 else row for number, row in rows]
    assert LoadedSample("a", {}).place((3,)).shape == (3,)
    with (
        hr.loader(data, 8, transform=lambda one: one.place((2 + int(one.key) % 2,)), shuffle=False) as loader,
        pytest.raises(ValueError, match="cannot be stacked"),
    ):
        next(iter(loader))


@pytest.mark.full
def test_tensors_are_stacked() -> None:
    """As PyTorch's own collate does; beside numbers, too."""
    torch = pytest.importorskip("torch")
    pictures, labels = stack([(torch.zeros(2, 3), 1), (torch.ones(2, 3), 0)])
    assert torch.equal(pictures, torch.stack([torch.zeros(2, 3), torch.ones(2, 3)]))
    assert labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"shapes \(1,\) and \(2,\)"):
        stack([torch.zeros(1), torch.zeros(2)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"workers": 0},
        {"rejects": "maybe"},
        {"rank": 1},
        {"end": "keep", "ranks": 2},
        {"end": ""},
        {"seed": None},
        {"seed": "one"},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], data: Path) -> None:
    """Before anything is read."""
    with pytest.raises(SettingsError):
        hr.loader(data, **{"batch": 4, **wrong})


def refuse_all_but_one(sample: LoadedSample) -> int:
    """Reject all samples but the last one."""
    if sample.key != "052":
        raise ItemRejected("not this one")
    return number_of(sample)


def test_a_batch_of_which_nothing_is_left_is_not_handed_out(data: Path) -> None:
    """A loop over two values of each batch would fail on an empty one; where other ranks wait, it is an error."""
    loader = hr.loader(data, 4, rejects="skip", transform=refuse_all_but_one, shuffle=False, end="keep")
    assert [batch.tolist() for batch in loader] == [[52]]
    assert loader.num_rejected == SIZE - 1
    one_of_two = hr.loader(data, 4, rejects="skip", transform=refuse_all_but_one, shuffle=False, ranks=2)
    with pytest.raises(SourceError, match="all 4 samples of a batch of rank 0 were rejected"):
        list(one_of_two)


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_of_a_data_loader_share_an_epoch(workers: int, data: Path) -> None:
    """Each batch comes once, in the order in which it comes without workers, whatever their number."""
    torch_data = pytest.importorskip("torch.utils.data")
    loader = hr.loader(data, 5, transform=number_of, end="keep", seed=3)

    class Batches(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Any:
            return iter(loader)

    alone = [batch.tolist() for batch in hr.loader(data, 5, transform=number_of, end="keep", seed=3)]
    context = "fork" if workers else None
    dealt = torch_data.DataLoader(
        Batches(), batch_size=None, num_workers=workers, multiprocessing_context=context, collate_fn=np.asarray
    )
    assert [batch.tolist() for batch in dealt] == alone
    loader.begin_epoch(1)
    second = [number for batch in dealt for number in batch.tolist()]
    assert sorted(second) == list(range(SIZE))
    assert second != [number for batch in alone for number in batch]


def test_parts_of_a_call_are_joined(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the system reads and writes 2 GiB at most; here it is 50 bytes."""
    pread, pwritev = os.pread, os.pwritev
    monkeypatch.setattr(os, "pread", lambda handle, length, offset: pread(handle, min(length, 600), offset))
    monkeypatch.setattr(os, "pwritev", lambda handle, parts, offset: pwritev(handle, [b"".join(parts)[:50]], offset))
    grown = ShardWriter(data / ".long.partial")
    grown.append("1.jpg", b"0123456789" * 200)
    grown.append("2.jpg", b"x")
    grown.write()
    again = ShardWriter(data / ".long.partial")
    again.recover()
    assert again.rows == grown.rows
    assert again.end() == grown.end()
    FORMATS["tar"].finish(again, data / "t.tar")
    reader = ShardReader(data / "t.tar")
    assert [reader.read(number) for number in range(2)] == [b"0123456789" * 200, b"x"]
    assert reader.read_parts(0) == {"jpg": b"0123456789" * 200}
    (data / "t.idx.parquet").unlink()
    assert index_shard(data / "t.tar") == 2
    assert ShardReader(data / "t.tar").read(0) == b"0123456789" * 200


def test_a_shard_that_is_a_hole_is_not_read(tmp_path: Path) -> None:
    """2 kB on the disk whose header says 2 GB: they became as many zeros in memory, for each thread."""
    with (tmp_path / "a.tar").open("wb") as file:
        whole = 2**31
        info = tarfile.TarInfo("a.jpg")
        info.size = whole
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + whole + 1024)
    reader = ShardReader(tmp_path / "a.tar")
    for read, name in ((reader.read, "a"), (reader.read_parts, r"a\.jpg")):
        with pytest.raises(FetchRejected, match=rf"tar\.size: {name} would take 2,147,483,648 bytes"):
            read(0)
    reader.close()


def test_a_loop_is_over_once_another_one_begins(data: Path) -> None:
    """What is handed out is counted once: no batch comes twice, none is left out, and the older loop says why it ends."""
    loader = hr.loader(data, 8, transform=number_of, shuffle=False)
    older, got = iter(loader), []
    got += next(older).tolist()
    got += next(iter(loader)).tolist()  # a look at a batch, within the loop
    with pytest.raises(SourceError, match="this loop over the loader is over: another one began"):
        next(older)
    for batch in loader:
        got += batch.tolist()
    assert got == list(range(SIZE))
    with pytest.raises(SourceError, match="make two loaders"):
        list(zip(loader, loader, strict=False))
    current = iter(loader)
    next(current)
    loader.begin_epoch(7)
    with pytest.raises(SourceError, match="begin_epoch"):
        next(current)
    assert (loader.epoch, len(list(loader)), loader.epoch) == (7, 7, 8)


def test_all_files_of_a_sample_count_as_read_ahead(tmp_path: Path) -> None:
    """An image of some bytes beside an array of a megabyte."""
    grown = ShardWriter(tmp_path / ".partial")
    for index in range(40):
        grown.append(f"{index:03d}.jpg", b"x")
        grown.append(f"{index:03d}.npy", bytes(1 << 20))
    FORMATS["tar"].finish(grown, tmp_path / "s.tar")
    grown.close()
    begun: list[str] = []
    with hr.loader(tmp_path / "s.tar", 1, transform=lambda one: begun.append(one.key), ahead_bytes=3 << 20) as loader:
        loop = iter(loader)
        next(loop)
        time.sleep(0.2)  # what is read ahead is begun by then
        loop.close()
    assert 1 <= len(begun) <= 4


def test_numbers_of_numpy_are_numbers(data: Path) -> None:
    """The same order, and states that go from one to the other."""
    for plain in ({"seed": 5, "block": 8}, {"seed": 2**64 - 1, "rank": 1, "ranks": 2, "ordered": False}):
        kinds = {key: np.uint64 if key == "seed" else np.int32 for key in plain if key != "ordered"}
        other = {key: kinds[key](value) if key in kinds else value for key, value in plain.items()}
        one = hr.loader(data, 4, transform=number_of, **plain)
        two = hr.loader(data, np.int16(4), transform=number_of, **other)
        next(iter(two))
        one.resume(two.state())
        two.begin_epoch(np.int64(3))
        one.begin_epoch(3)
        assert sorted(np.concatenate(list(one))) == sorted(np.concatenate(list(two)))


def test_an_epoch_that_no_state_can_say_is_refused(data: Path) -> None:
    """A state has 32 bits for it."""
    loader = hr.loader(data, 4)
    loader.begin_epoch(2**32 - 1)
    assert len(loader.state()) == 24
    with pytest.raises(SettingsError, match=r"2\*\*32 - 1"):
        loader.begin_epoch(2**32)


_LEFT_OPEN = """
import sys, time
import headrace as hr
made = []
def slow(sample):
    if len(made) > 3:
        print("made more", flush=True)
    made.append(time.sleep(0.05))
    return 1
if __name__ == "__main__":
    loop = iter(hr.loader(sys.argv[1], 1, transform=slow, workers=1, executor=sys.argv[2]))
    next(loop)
"""


@pytest.mark.full
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_program_that_ends_does_not_make_what_was_read_ahead(executor: str, data: Path, tmp_path: Path) -> None:
    """It may have left a loop open: `loop = iter(loader)`."""
    (tmp_path / "program.py").write_text(_LEFT_OPEN)
    found = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(data), executor], capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0
    assert found.stdout.count("made more") < SIZE // 2


@pytest.mark.full
def test_a_loop_that_is_left_open_ends_in_silence(data: Path, tmp_path: Path) -> None:
    """With PyTorch loaded, modules had lost their names when the loop was ended: `Exception ignored in`."""
    pytest.importorskip("torch")
    program = "import sys\nimport headrace as hr\nimport torch\nloop = iter(hr.loader(sys.argv[1], 1))\nnext(loop)\n"
    found = subprocess.run([sys.executable, "-c", program, str(data)], capture_output=True, text=True, timeout=300)
    assert (found.returncode, found.stderr) == (0, "")

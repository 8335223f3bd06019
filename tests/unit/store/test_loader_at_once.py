"""Batches as they are ready, made in processes, or pinned: the same batches, each once, and a state that says which came."""

from __future__ import annotations

import os
import random
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError, SourceError
from headrace.store.formats import FORMATS
from headrace.store.handed_out import MOST_BEYOND, HandedOut
from headrace.store.loading_work import LoadedSample
from headrace.store.order import Course, Order, Position
from headrace.store.shard_writer import ShardWriter

SIZE = 53


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with one shard of samples that say their number."""
    folder = tmp_path / "data"
    folder.mkdir()
    grown = ShardWriter(folder / ".partial")
    for index in range(SIZE):
        grown.append(f"{index:03d}.txt", str(index).encode())
    FORMATS["tar"].finish(grown, folder / "s.tar")
    grown.close()
    return folder


def number_of(sample: LoadedSample) -> int:
    """Return which sample it is."""
    return int(sample.parts["txt"])


def numbers_of(batches: Any) -> list[list[int]]:
    """Return batches as lists."""
    return [batch.tolist() for batch in batches]


class Slow:
    """Keeps the batch with one sample back until it is let go."""

    def __init__(self, held: int) -> None:
        self.held = held
        self.go = threading.Event()

    def __call__(self, sample: LoadedSample) -> int:
        """Return the number of a sample."""
        if number_of(sample) == self.held:
            assert self.go.wait(60)
        return number_of(sample)


def test_a_slow_batch_holds_up_no_other_one(data: Path) -> None:
    """Each batch comes once and with the samples that it has in order; what waits comes when it is ready."""
    in_order = numbers_of(hr.loader(data, 4, transform=number_of, seed=2))
    slow = Slow(in_order[1][0])
    loader = hr.loader(data, 4, transform=slow, seed=2, ordered=False)
    got: list[list[int]] = []
    for batch in loader:
        got.append(batch.tolist())
        if len(got) == len(in_order) - 1:
            assert in_order[1] not in got
            slow.go.set()
    assert got[-1] == in_order[1]
    assert sorted(got) == sorted(in_order)
    assert len(loader.state()) == 24
    assert loader.epoch == 1


@pytest.mark.parametrize("ordered", [True, False])
def test_a_state_with_a_gap_is_resumed_exactly(ordered: bool, data: Path) -> None:
    """60 bytes say which batches came; the others come, in order or not, and none twice."""
    in_order = numbers_of(hr.loader(data, 4, transform=number_of, seed=2))
    slow = Slow(in_order[2][0])
    loader = hr.loader(data, 4, transform=slow, seed=2, ordered=False)
    batches = iter(loader)
    got = [next(batches).tolist() for _ in range(6)]
    state = loader.state()
    assert len(state) == 60
    slow.go.set()
    batches.close()  # type: ignore[attr-defined]
    other = hr.loader(data, 4, transform=number_of, seed=2, ordered=ordered)
    other.resume(state)
    rest = numbers_of(other)
    assert in_order[2] in rest
    assert sorted(got + rest) == sorted(in_order)
    assert numbers_of(other) != rest
    assert sorted(got + numbers_of(loader)) == sorted(in_order)  # the loop that was left goes on as well


def test_a_state_with_a_gap_is_of_its_batches_alone(data: Path) -> None:
    """With another size of batches the gap would be elsewhere; a state of the epoch's end fits all."""
    slow = Slow(numbers_of(hr.loader(data, 4, transform=number_of))[0][0])
    loader = hr.loader(data, 4, transform=slow, ordered=False)
    batches = iter(loader)
    next(batches)
    state = loader.state()
    for other in (
        hr.loader(data, 5),
        hr.loader(data, 4, rank=1, ranks=2),
        hr.loader(data, 4, end="drop"),
        hr.loader(data, 4, seed=1),
    ):
        with pytest.raises(SettingsError, match=r"out of order|seed"):
            other.resume(state)
    slow.go.set()
    for _ in batches:
        pass
    hr.loader(data, 5, rank=1, ranks=2).resume(loader.state())


def test_ranks_out_of_order_have_a_state_each(data: Path) -> None:
    """One may be without a gap where another has one: its place says nothing of the other's."""
    loader = hr.loader(data, 4, transform=number_of, ordered=False, ranks=2, workers=1)
    assert len(loader.state()) == 24
    batches = iter(loader)
    next(batches)
    assert len(loader.state()) == 60
    with pytest.raises(SettingsError, match="of one rank"):
        hr.loader(data, 4, ranks=2, rank=1).resume(loader.state())
    list(batches)
    assert len(loader.state()) == 24


def test_any_order_of_batches_is_counted_exactly() -> None:
    """Random takings, each state written and read again: what is left is what was not taken."""
    random_numbers = random.Random(4)
    order = Order(1_000, 7)
    for _ in range(200):
        course = Course(order, random_numbers.randint(1, 40), end=random_numbers.choice(["pad", "drop", "keep"]))
        every = list(range(course.steps_per_epoch))
        handed_out, begins, taken = HandedOut(Position(7, 0, 0)), 0, set[int]()
        for _ in range(random_numbers.randint(0, len(every))):
            free = [one for one in every if one not in taken and handed_out.has_room(one - begins)]
            number = random_numbers.choice(free)
            handed_out.take(number - begins, course)
            taken.add(number)
            if random_numbers.random() < 0.2:
                handed_out = HandedOut.decode(handed_out.encode(course), course)
                begins = next((one for one in every if one not in taken), len(every))
        assert {one for one in every if one >= begins and handed_out.has(one - begins)} | set(range(begins)) == taken
        assert len(handed_out.encode(course)) in (24, 60)


def test_no_more_than_fits_the_state_overtakes_a_batch(data: Path) -> None:
    """Batches of one sample, and the first is slow: with more than 256 others, all but those wait for it."""
    handed_out = HandedOut(Position(0, 0, 0))
    assert handed_out.has_room(MOST_BEYOND - 1)
    assert not handed_out.has_room(MOST_BEYOND)
    handed_out.take(MOST_BEYOND - 1, Course(Order(1_000), 1))
    assert len(handed_out.encode(Course(Order(1_000), 1))) == 60


@pytest.fixture
def by_processes(data: Path) -> Iterator[Any]:
    """Return a loader with two processes."""
    with hr.loader(data, 8, transform=number_of, seed=3, executor="process") as loader:
        yield loader


@pytest.mark.full
def test_processes_make_the_same_batches(data: Path, by_processes: Any) -> None:
    """In the same order; they stay for the next epoch, and a loop that is left goes on."""
    threads = hr.loader(data, 8, transform=number_of, seed=3)
    assert [numbers_of(by_processes) for _ in range(2)] == [numbers_of(threads) for _ in range(2)]
    first = next(iter(by_processes)).tolist()
    rest = numbers_of(by_processes)
    assert [first, *rest] == numbers_of(threads)


def kill_once(sample: LoadedSample) -> int:
    """Kill this process at one sample, if the file that says so can be taken away."""
    if number_of(sample) == 20:
        try:
            os.unlink(os.environ["HEADRACE_TEST_KILL"])
        except FileNotFoundError:
            return 20
        os.kill(os.getpid(), signal.SIGKILL)
    return number_of(sample)


@pytest.mark.full
def test_a_killed_process_is_an_error_and_no_hang(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next loop starts others, behind what was handed out."""
    monkeypatch.setenv("HEADRACE_TEST_KILL", str(tmp_path / "kill"))
    (tmp_path / "kill").touch()
    got: list[list[int]] = []
    with hr.loader(data, 8, transform=kill_once, executor="process", workers=1) as loader:
        with pytest.raises(SourceError, match="a process of the loader ended by itself"):
            got.extend(batch.tolist() for batch in loader)
        got += numbers_of(loader)
    assert got == numbers_of(hr.loader(data, 8, transform=number_of))


def fail(sample: LoadedSample) -> int:
    """Raise at one sample."""
    return 1 // (number_of(sample) - 20)


@pytest.mark.full
def test_an_error_in_a_process_names_the_sample(data: Path) -> None:
    """As in a thread."""
    loader = hr.loader(data, 8, transform=fail, executor="process", workers=1)
    with loader, pytest.raises(ZeroDivisionError) as caught:
        list(loader)
    assert "headrace: in the transform of sample '020'" in caught.value.__notes__


class TwoWords(ValueError):
    """Comes out of no pipe: it is made of two values, and pickle gives it one."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class WithCode(ValueError):
    """Goes into no pipe."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = lambda: text


def fail_in_words(sample: LoadedSample) -> int:
    """Raise an error of one's own."""
    raise TwoWords("no", "label") if number_of(sample) % 2 else WithCode("no label")


@pytest.mark.full
def test_an_error_that_cannot_be_sent_is_told_all_the_same(data: Path) -> None:
    """Its process is not taken for one that was killed."""
    with hr.loader(data, 1, transform=fail_in_words, executor="process", workers=1, shuffle=False) as loader:
        for kind, number in (("WithCode", 0), ("TwoWords", 1)):
            loader.resume(struct.pack("<QIIQ", 0, 0, loader._order.mark, number))
            with pytest.raises(RuntimeError, match=f"{kind}: no label") as caught:
                next(iter(loader))
            assert f"headrace: in the transform of sample '{number:03d}'" in caught.value.__notes__


def test_what_cannot_be_sent_to_a_process_is_refused(data: Path) -> None:
    """When the loader is made, with what to do."""
    with pytest.raises(SettingsError, match="define it as a function of a module"):
        hr.loader(data, 8, transform=lambda sample: sample, executor="process")
    for wrong in ({"executor": "fork"}, {"ordered": 1}, {"pin_memory": "yes"}):
        with pytest.raises(SettingsError):
            hr.loader(data, 8, **wrong)


class Tensor(np.ndarray[Any, Any]):
    """An array that says that it was pinned."""

    def pin_memory(self) -> str:
        """Return what a GPU would read."""
        return f"pinned {self.tolist()}"


@pytest.mark.parametrize("gpu", [True, False])
def test_tensors_are_pinned_where_there_is_a_gpu(gpu: bool, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for PyTorch; arrays of NumPy stay what they are."""
    cuda = SimpleNamespace(is_available=lambda: gpu)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, cuda=cuda))

    def collate(values: list[int]) -> Any:
        return {"tensor": np.asarray(values).view(Tensor), "others": (np.zeros(1), ["a"])}

    def first(pin_memory: bool | None) -> Any:
        return next(
            iter(hr.loader(data, 2, transform=number_of, collate=collate, shuffle=False, pin_memory=pin_memory))
        )

    assert isinstance(first(False)["tensor"], Tensor)
    if gpu:
        assert first(None)["tensor"] == first(True)["tensor"] == "pinned [0, 1]"
        assert isinstance(first(None)["others"][0], np.ndarray)
        return
    assert isinstance(first(None)["tensor"], Tensor)
    with pytest.raises(SettingsError, match="no CUDA device"):
        first(True)

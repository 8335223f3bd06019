"""What loading costs in the workers of a real loader, joined to the steps that used the batches."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # workers are real processes

from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info  # noqa: E402

from headrace import train  # noqa: E402
from headrace.base.documents import decode_document  # noqa: E402
from headrace.diagnose.training.steps import RankSteps, read_steps  # noqa: E402
from headrace.runs.formats.training import FOLDER, TrainingProcess  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402
from headrace.runs.training_phases import LoaderWork  # noqa: E402

_ITEM_CPU_SECONDS = 0.0005


def _compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Points(Dataset[Any]):
    """Items that hold random numbers of all three generators, and where they were made."""

    def __init__(self, count: int = 24, cost: float = 0.0) -> None:
        self.count, self.cost = count, cost

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        _compute(self.cost)
        info = get_worker_info()
        # A worker must see the very data set: programs set attributes on it.
        assert info is None or (info.dataset is self and type(info.dataset).__getitem__ is Points.__getitem__)
        return {
            "index": index,
            "torch": torch.randn(3),
            "numpy": np.random.rand(3) if info else np.zeros(3),
            "random": random.random() if info else 0.0,
        }


class Together(Points):
    """The same, fetched a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert type(indices) is list
        return [self[index] for index in indices]


class Stream(IterableDataset[Any]):
    """Numbers, some for each worker."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        yield from range(info.id if info else 0, 22, info.num_workers if info else 1)


class Own:
    """A batch type of the user's own."""

    def __init__(self, items: list[Any]) -> None:
        self.indices = torch.tensor([one["index"] for one in items])

    def pin_memory(self) -> Own:
        """As the loader asks of such types."""
        return self


class Jumbled:
    """A `collate_fn` that keeps what it gets."""

    def __call__(self, items: list[Any]) -> Any:
        """As the loader does."""
        return tuple(str(one) for one in items), None, {"first": items[0]}


def set_seed(worker: int) -> None:
    """A `worker_init_fn` that changes the data set, as programs do."""
    info = get_worker_info()
    assert info is not None
    info.dataset.cost = 1e-6 * worker


KINDS: dict[str, Callable[[], DataLoader[Any]]] = {
    "no workers": lambda: DataLoader(Points(), 4, shuffle=True),
    "workers": lambda: DataLoader(Points(), 4, shuffle=True, num_workers=2, worker_init_fn=set_seed),
    "spawn": lambda: DataLoader(Points(), 4, num_workers=2, multiprocessing_context="spawn", worker_init_fn=set_seed),
    "forkserver": lambda: DataLoader(Points(), 4, num_workers=1, multiprocessing_context="forkserver"),
    "persistent": lambda: DataLoader(Points(), 4, num_workers=2, persistent_workers=True, timeout=60),
    "getitems": lambda: DataLoader(Together(), 4, num_workers=2, drop_last=True),
    "no batches": lambda: DataLoader(Points(), batch_size=None, num_workers=2),
    "own batches": lambda: DataLoader(Points(), 5, num_workers=2, collate_fn=Own),
    "own collate": lambda: DataLoader(Points(), 5, num_workers=1, collate_fn=Jumbled()),
    "stream": lambda: DataLoader(Stream(), 4, num_workers=2),
    "stream, dropped rest": lambda: DataLoader(Stream(), 4, num_workers=2, drop_last=True),
    "stream, no workers": lambda: DataLoader(Stream(), 4),
    "stream, no batches": lambda: DataLoader(Stream(), batch_size=None, num_workers=2),
    "sampler": lambda: DataLoader(Points(), batch_sampler=[[3, 1], [2], [9, 8, 7]], num_workers=2),
    "keys that are no list": lambda: DataLoader(Points(), batch_sampler=[(3, 1), (2,)], num_workers=1),
}


def _plain(batch: Any) -> Any:
    """A batch as something that can be compared, with the types of everything in it."""
    kind = type(batch).__name__
    if isinstance(batch, torch.Tensor):
        return kind, str(batch.dtype), batch.is_shared(), batch.tolist()
    if isinstance(batch, dict):
        return kind, {key: _plain(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return kind, [_plain(value) for value in batch]
    return kind, _plain(vars(batch)) if isinstance(batch, Own) else repr(batch)


def _read(path: Path) -> tuple[RankSteps, TrainingProcess]:
    (steps,) = read_steps(read_run(path))
    (file,) = (path / FOLDER).iterdir()
    return steps, decode_document(file.read_bytes(), TrainingProcess)


def _go_through(loader: Any, epochs: int = 2) -> list[Any]:
    """The batches of a loop that trains on nothing much."""
    weight = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    batches = []
    for _ in range(epochs):
        for batch in loader:
            batches.append(_plain(batch))
            weight(torch.ones(1, 1)).sum().backward()
            optimizer.step()
    return batches


def _draw() -> list[Any]:
    return [torch.rand(1).item(), float(np.random.rand()), random.random()]


def _seed() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_random_numbers_are_the_same(kind: str, tmp_path: Path) -> None:
    """With and without recording: batches, their order and types, random numbers after; each batch is joined to its step."""
    _seed()
    bare = _go_through(KINDS[kind]()), _draw()
    _seed()
    loader = KINDS[kind]()
    before = dict(vars(loader))
    with train.profile(loader, output=tmp_path / "run") as same:
        watched = _go_through(same), _draw()
    assert watched == bare
    after = {name: value for name, value in vars(loader).items() if name != "_iterator"}
    assert after == {name: value for name, value in before.items() if name != "_iterator"}
    steps, process = _read(tmp_path / "run")
    assert process.not_measured == {}
    assert steps.batches.step.tolist() == list(range(len(bare[0])))
    assert (steps.batches.work[LoaderWork.ITEMS].wall > 0).all()
    assert len(set(steps.batches.process.tolist()) - {process.process}) == _num_processes(loader)


def _num_processes(loader: DataLoader[Any]) -> int:
    return loader.num_workers * (1 if loader.persistent_workers else 2)


def test_a_batch_that_comes_out_of_order_is_joined_by_its_worker(tmp_path: Path) -> None:
    """With `in_order=False` the records are those of the workers that the batches say they came from."""
    loader = DataLoader(Whereabouts(), 2, num_workers=2, in_order=False)
    with train.profile(loader, output=tmp_path / "run") as same:
        batches = _go_through(same)
    steps, _ = _read(tmp_path / "run")
    assert [[process] * 2 for process in steps.batches.process.tolist()] == [batch[3] for batch in batches]


class Whereabouts(Dataset[Any]):
    """Each item is the process that made it; those of every other batch are dear."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        import os

        _compute(0.01 if index // 2 % 2 else 0.0)
        return os.getpid()


def test_the_cost_of_items_is_at_least_what_they_computed(tmp_path: Path) -> None:
    """The CPU time of a batch in its worker holds what its four items burnt, and no wait for the loop."""
    loader = DataLoader(Points(cost=_ITEM_CPU_SECONDS), 4, num_workers=2)
    with train.profile(loader, output=tmp_path / "run") as same:
        _go_through(same)
    steps, _ = _read(tmp_path / "run")
    items = steps.batches.work[LoaderWork.ITEMS]
    assert (items.cpu >= 4 * _ITEM_CPU_SECONDS).all()
    assert (items.wall >= items.cpu - 1e-4).all()  # two clocks are read one after the other


def test_an_iterator_that_is_dropped_half_way_ends_at_once(tmp_path: Path) -> None:
    """The workers end when the program drops the iterator, as without recording, and a second epoch is joined."""
    loader = DataLoader(Points(), 4, num_workers=2)
    gc.disable()
    try:
        with train.profile(loader, output=tmp_path / "run") as same:
            iterator = iter(same)
            next(iterator)
            workers = iterator._workers
            del iterator
            assert not any(worker.is_alive() for worker in workers)
            _go_through(same, epochs=1)
    finally:
        gc.enable()
    steps, _ = _read(tmp_path / "run")
    assert len(steps.batches) == 7
    assert steps.batches.step.tolist()[1:] == list(range(6))

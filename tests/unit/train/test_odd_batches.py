"""Batches of the user's own types come through a recorded loop, and none of their methods is called."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full

from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler  # noqa: E402

from headrace import train  # noqa: E402
from headrace.train.loader_watch import count_samples  # noqa: E402


class _Shy:
    """Whatever is asked of it raises."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class _ShyDict(dict[str, Any]):
    def values(self) -> Any:
        raise AssertionError("read too early")


class _ShyList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("read too early")

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("read too early")


class _Round:
    shape = "circle"


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (_Shy(), 0),
        (_ShyDict(x=torch.zeros(3, 2)), 3),
        (_ShyList([torch.zeros(4)]), 4),
        (_Round(), 0),
        (UserDict(x=torch.zeros(5, 1)), 5),
        ([[torch.tensor(1.0)]], 0),
        ((), 0),
    ],
    ids=["raises", "dict", "list", "shape", "UserDict", "scalar", "empty"],
)
def test_batches_are_counted_without_being_asked(batch: Any, samples: int, tmp_path: Path) -> None:
    """The loop gets the batch itself; its samples are counted where a tensor tells them."""
    assert count_samples(batch) == samples
    with train.profile([batch], output=tmp_path / "run") as same:
        assert next(iter(same)) is batch


class _ByList(Dataset[Any]):
    """Its keys are lists."""

    def __getitem__(self, index: Any) -> Any:
        assert type(index) is list
        return torch.tensor(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_keys_that_are_lists_stay_lists(workers: int, tmp_path: Path) -> None:
    """Without automatic batches, what the sampler gives is the data set's key, also in a worker."""
    sampler = BatchSampler(SequentialSampler(range(6)), 2, drop_last=False)
    loader = DataLoader(_ByList(), batch_size=None, sampler=sampler, num_workers=workers)
    with train.profile(loader, output=tmp_path / "run") as same:
        assert [batch.tolist() for batch in same] == [[0, 1], [2, 3], [4, 5]]


class _Endless(IterableDataset[Any]):
    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter([torch.zeros(2)])


def test_a_length_that_raises_is_no_length(tmp_path: Path) -> None:
    """The loop goes on as without headrace."""
    with train.profile(DataLoader(_Endless(), batch_size=None), output=tmp_path / "run") as same:
        assert sum(1 for _ in same) == 1

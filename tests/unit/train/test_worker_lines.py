"""Where the workers of a loader are seen at work."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headrace import train  # noqa: E402
from headrace.base.documents import decode_document  # noqa: E402
from headrace.runs.formats.training import FOLDER, TrainingProcess  # noqa: E402
from headrace.runs.training_phases import WORKERS  # noqa: E402
from headrace.train.loader_clock import BatchClock, WatchedFetcher  # noqa: E402
from headrace.train.loader_record import SharedRecords  # noqa: E402
from headrace.train.worker_lines import WorkerLines, find_batch_line  # noqa: E402


class _Items(torch.utils.data.Dataset):  # type: ignore[misc]
    """Items that take 20 ms each, in one line."""

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return torch.ones(2)


def test_only_what_makes_a_batch_counts() -> None:
    """The stack of a forked worker goes on below that with the line in which the training asked for its loader."""

    class Fetcher:
        collate_fn = list
        dataset = ()

        def fetch(self, index: Any) -> FrameType:
            return sys._getframe()

    frame = WatchedFetcher(Fetcher(), BatchClock(lambda record: None, 0, is_alone=False)).fetch(0)
    assert find_batch_line(sys._getframe()) is None
    inner = find_batch_line(frame)
    assert inner is not None
    assert inner.endswith(f"test_worker_lines.py:{frame.f_lineno}")


def test_lines_of_all_workers_are_added_up() -> None:
    """With the share of what they do; code that is nobody's has no line, and what is no count is left out."""
    records, lines = SharedRecords(2, 4), WorkerLines()
    records.write_lines(0, "30 train.py:44\n10 -")
    records.write_lines(1, "25 train.py:44\n15 a folder/data.py:7\nx y")
    lines.add(records)
    assert lines.describe() == [["train.py:44", 55 / 80], ["a folder/data.py:7", 15 / 80]]
    records.write_lines(0, "é" * 4000)
    assert [len(text) for text in records.read_lines()] == [1022, 40]


def test_few_samples_say_nothing() -> None:
    """A single look may be anywhere."""
    records, lines = SharedRecords(1, 4), WorkerLines()
    records.write_lines(0, "1 train.py:44")
    lines.add(records)
    assert lines.describe() == []


@pytest.mark.full
@pytest.mark.parametrize("persistent", [False, True])
def test_the_line_that_a_worker_sleeps_in_is_found(tmp_path: Path, persistent: bool) -> None:
    """In the process that trains, after the workers are gone."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(_Items(), batch_size=8, num_workers=2, persistent_workers=persistent)
    with train.profile(loader, output=tmp_path / "run") as same:
        for _ in range(2):
            for batch in same:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
    (file,) = (tmp_path / "run" / FOLDER).iterdir()
    lines = decode_document(file.read_bytes(), TrainingProcess).details["lines"][WORKERS]
    line, share = lines[0]
    assert line.endswith(f"test_worker_lines.py:{_Items.__getitem__.__code__.co_firstlineno + 1}")
    assert share > 0.5

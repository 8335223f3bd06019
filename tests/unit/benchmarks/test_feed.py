"""The benchmark of the feed: its parts agree with one another, and its texts say what was measured."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.feed import formats, resume
from benchmarks.feed.data import make_files
from headrace.store.formats import FORMATS
from headrace.store.shard_writer import ShardWriter


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, Path]:
    """Return a folder of files and the folder of their shard."""
    files, data = tmp_path / "files", tmp_path / "data"
    make_files(files, 20)
    data.mkdir()
    grown = ShardWriter(data / ".grown.partial")
    for file in sorted(files.rglob("*.jpg")):
        grown.append(file.relative_to(files).as_posix(), file.read_bytes())
    FORMATS["tar"].finish(grown, data / "a.tar")
    grown.close()
    return files, data


def test_every_way_reads_every_item(packed: tuple[Path, Path]) -> None:
    """Or their times could not be compared."""
    files, data = packed
    ways = {**formats.random_ways(files, data), **formats.sequential_ways(data)}
    ways.pop("sequential: WebDataset", None)  # its library leaves files open, and warnings are errors
    assert {name: way() for name, way in ways.items()} == dict.fromkeys(ways, 20)
    assert len(ways) >= 7


def test_a_case_of_resuming_can_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that skips one sample on resuming is found."""
    assert all(resume._is_same(random.Random(seed)) for seed in range(20))

    def skip(state: bytes, order: resume.Order) -> resume.Position:
        found = decode(state, order)
        return resume.Position(found.seed, found.epoch, found.place + 1)

    decode = resume.Position.decode
    monkeypatch.setattr(resume.Position, "decode", skip)
    cases = []
    for seed in range(20):
        try:
            cases.append(resume._is_same(random.Random(seed)))
        except ValueError:  # a place behind the last sample
            cases.append(False)
    assert not all(cases)

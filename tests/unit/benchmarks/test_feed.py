"""The benchmark of the feed: its parts agree with one another, and its texts say what was measured."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.feed import choice, formats, resume
from benchmarks.feed.data import make_files
from headrace.cli.pack_ways import write_ways
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


@pytest.mark.parametrize(
    ("named", "over", "right"),
    [("none", 1.06, 0), ("tar", 1.0, 1), ("parquet", 1.04, 1), ("not measured", float("inf"), 0)],
)
def test_what_is_named_is_compared_with_the_best_of_the_same_round(
    named: str, over: float, right: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine that becomes slower all the time; what is farther from it than a twentieth is wrong."""
    ways = write_ways({"a.bin": b"a"}, tmp_path)
    costs = {"folder": 1.06, "tar": 1.0, "parquet": 1.04, "tfrecord": 1.5, "lmdb": 1.3}
    turns = iter(range(100))
    by_files = {id(way): costs[name] for name, way in ways.items()}
    monkeypatch.setattr(
        choice,
        "_read_epoch",
        lambda situation, way, number, decoder: by_files[id(way)] * 2 ** (next(turns) // len(ways)),
    )
    trial = SimpleNamespace(best={"sequential, warm": named} if named != "not measured" else {})
    monkeypatch.setattr(choice, "try_formats", lambda *args: trial)
    (tmp_path / "files").mkdir()
    found = choice._judge(choice.SITUATIONS[0], tmp_path, ways, None)
    assert found["best"] == "tar"
    assert found["over_best"] == pytest.approx(over)
    assert f"Within 5 % of the best: {right} of 1" in choice.as_text(
        {"situations": [found], "tried": 1, "left_out": 0, "right": int(found["over_best"] <= 1.05)}
    )

"""The benchmark of the feed: its parts agree with one another, and its texts say what was measured."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.feed import choice, formats, loader, loader_ways, resume
from benchmarks.feed.__main__ import PARTS, as_text, list_parts
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
    ("named", "over", "answer"),
    [
        ("none", 1.06, "wrong"),
        ("tar", 1.0, "right"),
        ("parquet", 1.04, "right"),
        ("not measured", float("inf"), "wrong"),
    ],
)
def test_what_is_named_is_compared_with_the_best_of_the_same_round(
    named: str, over: float, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert found["answer"] == answer
    text = choice.as_text(
        {"situations": [found], "tried": 1, "left_out": 0, "right": int(answer == "right"), "unclear": 0}
    )
    assert f"Within 5 % of the best: {int(answer == 'right')} of 1" in text


def test_what_no_round_decides_is_not_counted() -> None:
    """Rounds on both sides of 5 %: neither right nor wrong."""
    assert [choice._judge_ratios(one) for one in ([1.0, 1.05], [1.06, 1.2], [1.04, 1.06])] == [
        "right",
        "wrong",
        "unclear",
    ]
    found = {"situations": [], "tried": 3, "left_out": 0, "right": 1, "unclear": 1}
    assert "Within 5 % of the best: 1 of 2 (goal: 9 of 10). 1 not clear, and not counted." in choice.as_text(found)


def test_each_setting_of_the_loader_reads_all_pixels(tmp_path: Path) -> None:
    """Or what it is compared with would do other work."""
    loader._make_images(tmp_path / "files", 40)
    files = sorted((tmp_path / "files").iterdir())
    (tmp_path / "data").mkdir()
    grown = ShardWriter(tmp_path / "data" / ".grown.partial")
    for file in files:
        grown.append(file.name, file.read_bytes())
    FORMATS["tar"].finish(grown, tmp_path / "data" / "a.tar")
    grown.close()
    found = loader_ways.measure("headrace", tmp_path, 1)
    batch = loader_ways._read_batch([str(file) for file in files])
    assert (loader_ways._read_batch_in_place([str(file) for file in files]) == batch).all()
    settings = [f"{threads} threads, {way}" for threads in (1, 2, 3) for way in ("images", "in place")]
    assert found["sums"] == dict.fromkeys(settings, loader_ways._sum([batch]))
    assert found["rates"].keys() == found["sums"].keys()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo ok; sleep 600", "no answer within 0 s"),
        ("echo ImportError: no shm >&2; exit 3", "ImportError: no shm"),
        ("exit 3", "it ended with 3"),
    ],
)
def test_a_library_that_fails_is_left_out(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says why; one that hangs does not cost the others."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(loader.sys, "executable", str(program))
    patience = 0.2 if "sleep" in script else 60.0
    with pytest.raises(loader.LeftOut, match=reason):
        loader.measure_apart("SPDL", tmp_path, 1, patience)


def test_a_library_is_compared_within_a_round() -> None:
    """At its best setting, on a machine that becomes slower."""
    rounds = [1.0, 0.5, 0.25]
    rates = {"headrace": {"1": 100.0, "2": 190.0}, "SPDL": {"1": 90.0, "2": 152.0}, "litdata": {"1": 95.0}}
    found = loader._compare({
        name: [{"limit": 200.0 * speed, "rates": {one: rate * speed for one, rate in settings.items()}} for speed in rounds]
        for name, settings in rates.items()
    })  # fmt: skip
    assert found["peers"] == pytest.approx({"SPDL": 1.25, "litdata": 2.0})
    assert found["ratio_best_peer"] == pytest.approx(1.25)
    assert found["limit_share"] == pytest.approx(0.95)
    text = loader.as_text({"images": 40, "rounds": 3, **found, "left_out": {"Ray Data": "not installed"}})
    assert "1.25 times the fastest of the others" in text
    assert "Ray Data was left out: not installed." in text


def test_the_quick_way_is_short() -> None:
    """It leaves out what takes most of a minute, unless that is named, and the command that is written down says so."""
    assert set(PARTS) - set(list_parts(quick=True)) == {"cache_prediction"}
    assert list_parts(quick=False) == list(PARTS)
    row = {
        "pipeline": "link", "cache": "load in memory", "predicted": 2.0, "low": 1.5, "high": 2.5, "measured": 1.6,
        "least": 1.5, "most": 1.7, "error": 0.25,
    }  # fmt: skip
    found = {"cache_prediction": {"caches": [row], "mean_error": 0.25, "max_error": 0.25, "inside": 1}}
    text = as_text(found, quick=True)
    assert "--only cache_prediction --quick" in text
    assert "| `link` | load in memory | x2.00 | 1.50 to 2.50 | x1.60 | 1.50 to 1.70 | +25% |" in text

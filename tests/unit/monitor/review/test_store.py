"""The folder of a review: bounded in bytes and days, readable whatever happened to it."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from headrace.base.errors import RunFolderError
from headrace.monitor.review.store import SampleWriter, find_file, make_room, open_folder, read_samples
from headrace.monitor.review.verdicts import read_verdicts
from headrace.runs.formats.review import CellCount, ReviewSample, SampledAnswer


def _write(folder: Path, num: int, *, age_days: float = 0.0, close: bool = True, num_bytes: int = 1000) -> SampleWriter:
    """Write a sample of items of a class, each with a file of its own."""
    began = time.time() - age_days * 86_400
    writer, chance = SampleWriter(folder, began), random.Random(num)
    items = [
        SampledAnswer(
            key=chance.randbytes(16).hex(), job=str(number), name="cat", why=("random",), num_bytes=num_bytes,
            file=writer.put(chance.randbytes(num_bytes), ".jpg"),
        )
        for number in range(num)
    ]  # fmt: skip
    writer.write(
        ReviewSample(
            id=writer.id, began_unix_seconds=began, ended_unix_seconds=began, items=tuple(items),
            cells=(CellCount(name="cat", arm="", num_answers=num * 10),),
        )
    )  # fmt: skip
    if close:
        writer.close()
    for file in (folder / "samples" / writer.id).iterdir():
        os.utime(file, (began, began))
    return writer


def _sizes(folder: Path) -> dict[str, int]:
    return {one.id: len(one.items) for one in read_samples(folder)[0]}


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    """With its pictures; what a process still writes stays."""
    folder = open_folder(tmp_path / "kept")
    _write(folder, 3, age_days=40)
    young = _write(folder, 3, age_days=20)
    written = _write(folder, 3, age_days=50, close=False)
    assert make_room(folder, 1 << 30, 30, time.time()) == 0
    assert set(_sizes(folder)) == {young.id, written.id}
    written.close()


def test_what_is_too_much_is_halved_before_anything_goes(tmp_path: Path) -> None:
    """The largest first, down to a few items; only then the oldest goes. Files go with their items, counts stay."""
    folder = open_folder(tmp_path / "kept")
    large, small = _write(folder, 32, age_days=2), _write(folder, 8, age_days=1)
    assert make_room(folder, 30_000, 30, time.time()) == 0
    assert _sizes(folder) == {large.id: 16, small.id: 8}
    assert len(list((folder / "samples" / large.id).glob("*.jpg"))) == 16
    assert {one.cells[0].num_answers for one in read_samples(folder)[0]} == {320, 80}
    assert make_room(folder, 7_000, 30, time.time()) == 0
    assert set(_sizes(folder).values()) == {2}
    assert make_room(folder, 3_500, 30, time.time()) == 0
    assert set(_sizes(folder)) == {small.id}


def test_what_is_still_too_much_is_told_to_the_writer(tmp_path: Path) -> None:
    """Nobody else may change what it writes."""
    folder = open_folder(tmp_path / "kept")
    writer = _write(folder, 8, close=False)
    assert make_room(folder, 5_000, 30, time.time()) > 3_000
    assert _sizes(folder) == {writer.id: 8}
    writer.close()


def test_a_file_of_two_items_stays_for_the_other(tmp_path: Path) -> None:
    """Files are named by their content."""
    writer = SampleWriter(open_folder(tmp_path / "kept"), time.time())
    name = writer.put(b"same", ".jpg")
    assert writer.put(b"same", ".jpg") == name
    item = SampledAnswer(key="0" * 32, job="", name="", file=name, num_bytes=4)
    writer.drop([item])
    assert find_file(tmp_path / "kept", writer.id, name) is not None
    writer.drop([item])
    assert find_file(tmp_path / "kept", writer.id, name) is None
    assert writer.num_bytes == 0
    writer.close()


def test_damaged_samples_are_left_out_and_said(tmp_path: Path) -> None:
    """Cut at every tenth byte, or overwritten by chance: the others are read, and nothing is raised."""
    folder = open_folder(tmp_path / "kept")
    _write(folder, 2)
    document = folder / "samples" / _write(folder, 3).id / "sample.json"
    whole, chance = document.read_bytes(), random.Random(1)
    damaged = [whole[:length] for length in range(0, len(whole), 10)]
    for _ in range(60):
        place = chance.randrange(len(whole))
        damaged.append(whole[:place] + chance.randbytes(1) + whole[place + 1 :])
    for content in damaged:
        document.write_bytes(content)
        samples, problems = read_samples(folder)
        assert len(samples) + len(problems) == 2
    assert make_room(folder, 1, 30, time.time()) == 0


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "a\0b", "missing"])
def test_only_kept_files_are_found(tmp_path: Path, name: str) -> None:
    """No name leads out of the folder."""
    folder = open_folder(tmp_path / "kept")
    (tmp_path / "x").write_text("secret")
    writer = _write(folder, 1)
    assert find_file(folder, writer.id, name) is None
    assert find_file(folder, name, "sample.json") is None


def test_pipes_in_the_folder_hold_nobody_up(tmp_path: Path) -> None:
    """Neither a run that makes room nor who reviews."""
    folder = open_folder(tmp_path / "kept")
    sample = folder / "samples" / "one"
    sample.mkdir()
    for place in (folder / "lock", sample / "sample.json", sample / "open", folder / "verdicts.jsonl"):
        os.mkfifo(place)
    samples, problems = read_samples(folder)
    assert samples == []
    assert len(problems) == 1
    make_room(folder, 0, 1.0, 0.0)
    with pytest.raises(RunFolderError, match="no regular file"):
        read_verdicts(folder)

"""Resources and thread states: lines while the run goes on, Parquet afterwards, and what is read of damaged ones."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.runs.reader import read_run
from headrace.runs.resource_files import (
    NAMES,
    STATES,
    LineFile,
    ResourceWriter,
    StateWriter,
    read_resources,
    read_states,
    resource_schema,
    seal,
    state_schema,
)
from headrace.runs.run_folder import RunFolder


def write_both(folder: Path) -> None:
    """Write a few samples of both kinds."""
    resources = ResourceWriter(folder, "helper")
    resources.write(1, {"machine": {"runnable": 3.0, "cpu_steal_ratio": 0.25}, "cpu0": {"busy_ratio": 1.0}})
    resources.write(3, {"machine": {"runnable": 4}})
    resources.close()
    gauges = ResourceWriter(folder, "gauges")
    gauges.write(2, {"run": {"in_flight": 7}})
    gauges.close()
    states = StateWriter(folder, "helper")
    states.name_threads([(10, "decode-0"), (11, "decode-0")])
    states.write(100, "rg")
    states.write(200, "-s")
    states.name_threads([(10, "fetch-0")])
    states.write(300, "n")
    states.close()


RESOURCE_ROWS = [
    (1, "machine", "runnable", 3.0),
    (1, "machine", "cpu_steal_ratio", 0.25),
    (1, "cpu0", "busy_ratio", 1.0),
    (2, "run", "in_flight", 7.0),
    (3, "machine", "runnable", 4.0),
]
STATE_ROWS = [
    (100, 10, "decode-0", "running"),
    (100, 11, "decode-0", "gil"),
    (200, 11, "decode-0", "sleep"),
    (300, 10, "fetch-0", "network"),
]


def rows(table: Any) -> list[tuple[Any, ...]]:
    """Return a table's rows, without who had the GIL."""
    return [tuple(value for name, value in row.items() if name != "has_gil") for row in table.to_pylist()]


def test_lines_and_sealed_files_read_alike(folder: RunFolder) -> None:
    """What was written comes back in order of time with its types, before and after it is sealed."""
    write_both(folder.path)
    for _ in range(2):
        run = read_run(folder.path)
        assert sorted(rows(run.resources())) == sorted(RESOURCE_ROWS)
        assert run.resources().column("time").to_pylist() == [1, 1, 1, 2, 3]
        assert rows(run.states()) == STATE_ROWS
        assert run.resources().schema == resource_schema()
        assert run.states().schema == state_schema()
        assert seal(folder.path) == []
    assert {path.name for path in folder.path.iterdir()} == {
        "run.json",
        "spans",
        "resources.parquet",
        "states.parquet",
    }


def test_nothing_written_is_an_empty_table(folder: RunFolder) -> None:
    """A run that nobody watched has empty tables, no problem for it, and no files."""
    assert seal(folder.path) == []
    folder.finish("finished")
    run = read_run(folder.path)
    assert (run.resources().num_rows, run.states().num_rows) == (0, 0)
    assert run.problems == []
    assert not (folder.path / "resources.parquet").exists()


def test_a_torn_last_line_is_left_out_quietly(folder: RunFolder) -> None:
    """A kill in the middle of a line costs that line only, and is no problem of its own."""
    write_both(folder.path)
    for file, text in (("resources", '{"time":9,"values":{"mach'), ("states", '{"time":400,"sta')):
        with (folder.path / file / "helper.jsonl").open("a") as raw:
            raw.write(text)
    resources, problems = read_resources(folder.path)
    assert (resources.num_rows, problems) == (5, [])
    states, problems = read_states(folder.path)
    assert (rows(states), problems) == (STATE_ROWS, [])


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\x00\x00\n",
        b"[]\n",
        b"3\n",
        b'{"time":1}\n',
        b'{"time":"x","values":{},"states":"rr"}\n',
        b'{"time":1,"values":{"a":{"b":"c"}},"states":"r"}\n',
        b'{"time":1,"values":{"a":3},"states":3}\n',
        b'{"time":1,"values":[],"states":["r","r"]}\n',
        b'{"time":1,"values":null,"threads":[[1]]}\n',
        b"\xff\xfe\n",
    ],
)
def test_damaged_lines_are_counted(folder: RunFolder, line: bytes) -> None:
    """A whole line that cannot be read is left out and named, whatever it is; the lines around it stay."""
    write_both(folder.path)
    for kind in ("resources", "states"):
        file = folder.path / kind / "helper.jsonl"
        first, rest = file.read_bytes().split(b"\n", 1)
        file.write_bytes(first + b"\n" + line + rest)
    for table, problems, whole in (
        (*read_resources(folder.path), RESOURCE_ROWS),
        (*read_states(folder.path), STATE_ROWS),
    ):
        assert sorted(rows(table)) == sorted(whole)
        assert len(problems) == 1
        assert "1 lines" in problems[0]


def test_sealing_tells_of_damaged_lines(folder: RunFolder) -> None:
    """What could not be read is told when the lines are removed, because nobody can find out afterwards."""
    write_both(folder.path)
    with (folder.path / "states" / "helper.jsonl").open("a") as raw:
        raw.write("what\n")
    [problem] = seal(folder.path)
    assert "states/helper.jsonl" in problem
    assert rows(read_states(folder.path)[0]) == STATE_ROWS


def test_a_damaged_sealed_file_is_named(folder: RunFolder) -> None:
    """A Parquet file that was cut off is left out and named by Run.problems."""
    write_both(folder.path)
    seal(folder.path)
    for name in ("resources.parquet", "states.parquet"):
        file = folder.path / name
        file.write_bytes(file.read_bytes()[:-10])
    folder.finish("finished")
    run = read_run(folder.path)
    assert run.resources().num_rows == run.states().num_rows == 0
    assert [problem.split()[0] for problem in run.problems] == ["resources.parquet", "states.parquet"]


def test_a_foreign_parquet_file_is_named(folder: RunFolder) -> None:
    """A Parquet file without the columns is a problem, not a crash."""
    pq.write_table(resource_schema().empty_table().select(["time"]), folder.path / "resources.parquet")
    table, problems = read_resources(folder.path)
    assert table.num_rows == 0
    assert "resources.parquet" in problems[0]


def test_lines_stay_if_they_cannot_be_sealed(folder: RunFolder) -> None:
    """If the Parquet file cannot be put into place, that is told and the lines are read on."""
    write_both(folder.path)
    (folder.path / "states.parquet").mkdir()
    (folder.path / "states.parquet" / "x").touch()
    [problem] = seal(folder.path)
    assert problem.startswith("states.parquet cannot be written")
    assert (folder.path / "states" / "helper.jsonl").exists()
    assert not list(folder.path.glob(".*.tmp"))


def test_what_is_not_measured_has_no_row(tmp_path: Path) -> None:
    """None, NaN and infinities are left out, and a sample of nothing else makes no line."""
    writer = ResourceWriter(tmp_path, "a")
    writer.write(1, {"machine": {"runnable": None, "cpu_steal_ratio": float("nan")}, "run": {}})
    writer.write(2, {"machine": {"runnable": 0.0, "power_watts": float("inf")}})
    writer.close()
    assert rows(read_resources(tmp_path)[0]) == [(2, "machine", "runnable", 0.0)]
    assert len((tmp_path / "resources" / "a.jsonl").read_text().splitlines()) == 1


def test_a_full_disk_is_logged_once_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing raises when the disk takes nothing; each lost sample is counted, the first one is logged."""
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources" / "a.jsonl").symlink_to("/dev/full")
    writer = ResourceWriter(tmp_path, "a")
    with caplog.at_level(logging.ERROR):
        for time in range(3):
            writer.write(time, {"run": {"in_flight": 1}})
    writer.close()
    assert writer.lost_ticks == 3
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_a_folder_that_is_gone_does_not_raise(tmp_path: Path) -> None:
    """A run folder that somebody removed costs samples, and they are written again once it is back."""
    folder = tmp_path / "run"
    states = StateWriter(folder, "helper")
    states.name_threads([(1, "a")])
    states.write(1, "r")
    states.flush()
    assert states.lost_lines == 2
    folder.mkdir()
    states.name_threads([(1, "a")])
    states.write(2, "r")
    states.close()
    assert rows(read_states(folder)[0]) == [(2, 1, "a", "running")]


def test_a_cut_line_is_ended_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk takes half of a line, the next one stands on a line of its own."""
    file = LineFile(tmp_path / "a" / "x.jsonl")
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, content: real(descriptor, content[: len(content) // 2]))
        file.append('{"time": 1}\n')
    file.append('{"time": 2}\n')
    file.close()
    lines = (tmp_path / "a" / "x.jsonl").read_text().splitlines()
    assert (len(lines), json.loads(lines[1])) == (2, {"time": 2})
    assert file.lost_lines == 1


def test_force_removes_resources_and_nothing_else(folder: RunFolder) -> None:
    """A run that replaces an earlier one removes its samples, sealed or not; other files stay."""
    write_both(folder.path)
    seal(folder.path)
    write_both(folder.path)
    (folder.path / "states" / "mine.txt").touch()
    folder.finish("finished")
    RunFolder.create(folder.path, force=True)
    left = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*")}
    assert left == {"run.json", "spans", "states", "states/mine.txt"}


def test_many_samples_keep_their_places(tmp_path: Path) -> None:
    """More lines than are turned at once: every state of every thread is at its time (checked against a formula)."""
    letters = "".join(STATES)
    writer = StateWriter(tmp_path, "helper")
    writer.name_threads([(thread, f"w-{thread}") for thread in range(3)])
    for time in range(25_000):
        writer.write(time, "".join(letters[(time + thread) % len(letters)] for thread in range(3)))
    writer.close()
    assert seal(tmp_path) == []
    table, problems = read_states(tmp_path)
    assert (table.num_rows, problems) == (75_000, [])
    names = list(STATES.values())
    expected = [names[(time + thread) % len(names)] for time in range(25_000) for thread in range(3)]
    assert table.column("state").to_pylist() == expected
    assert table.column("process").to_pylist() == [0, 1, 2] * 25_000


def test_names_that_are_no_unicode_are_kept_readable(tmp_path: Path) -> None:
    """A worker named after a file whose name is no Unicode does not cost the table."""
    writer = StateWriter(tmp_path, "helper")
    writer.name_threads([(1, "a\udc80")])
    writer.write(1, "r")
    writer.close()
    assert rows(read_states(tmp_path)[0]) == [(1, 1, "a\\udc80", "running")]


def test_every_name_has_a_unit_that_its_ending_tells() -> None:
    """The table of units agrees with the units in the names."""
    endings = {
        "_ratio": "ratio",
        "_bytes_per_second": "bytes/s",
        "_bytes": "bytes",
        "_hertz": "hertz",
        "_watts": "watts",
        "_celsius": "celsius",
    }
    for name, unit in NAMES.items():
        ending = next((ending for ending in endings if name.endswith(ending)), None)
        assert ending is None or endings[ending] == unit, name
        assert not name.endswith("_per_second") or unit in ("bytes/s", "1/s"), name


def test_who_ran_with_the_gil_has_a_column(tmp_path: Path) -> None:
    """A capital letter is the same state, with the GIL; a file of before there was such a column is read as without."""
    writer = StateWriter(tmp_path, "helper")
    writer.name_threads([(1, "a"), (1, "b")])
    writer.write(1, "Rg")
    writer.close()
    assert seal(tmp_path) == []
    table, problems = read_states(tmp_path)
    assert (table["state"].to_pylist(), table["has_gil"].to_pylist(), problems) == (
        ["running", "gil"],
        [True, False],
        [],
    )
    pq.write_table(table.drop_columns(["has_gil"]), tmp_path / "states.parquet")
    older, problems = read_states(tmp_path)
    assert (older["state"].to_pylist(), older["has_gil"].to_pylist(), problems) == (
        ["running", "gil"],
        [False, False],
        [],
    )

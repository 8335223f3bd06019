"""A run of several processes read as one: clocks, sums, and members that are missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import RunFolderError
from headrace.base.records import Counters, Span
from headrace.runs.member_folders import find_members
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SpanWriter
from headrace.runs.whole_run import WholeRun, read_whole

MakeSpan = Callable[..., Span]


def write_member(path: Path, *spans: Span, **changes: Any) -> None:
    """Write a member, finished unless told otherwise."""
    folder = RunFolder.create(path, pipeline="app:pipeline")
    writer = SpanWriter(folder.spans)
    writer.stage_finished(spans)
    writer.close()
    folder.finish("finished")
    folder.update(**changes)


def test_spans_of_all_members_are_on_one_clock(tmp_path: Path, make_span: MakeSpan) -> None:
    """Two hosts whose monotonic clocks began at other times, and one with spans of a third host."""
    write_member(
        tmp_path / "worker-0-1", make_span(1_000, host="a"),
        host="a", started_unix_seconds=100.0, started_monotonic_ns=500, clock_offsets_ns={"a": 0},
    )  # fmt: skip
    write_member(
        tmp_path / "worker-1-1", make_span(9_000, host="b"), make_span(9_500, host="c"),
        host="b", started_unix_seconds=100.000002, started_monotonic_ns=8_000, clock_offsets_ns={"b": 0, "c": 7},
    )  # fmt: skip
    whole = read_whole(tmp_path)
    assert isinstance(whole, WholeRun)
    table = whole.spans()
    # 2 us after the first member began its own clock showed 2,500; the second one's showed 8,000 then.
    assert table.column("arrived").to_pylist() == [1_000, 3_500, 4_007]
    assert table.column("put").to_pylist() == [1_031, 3_531, 4_038]
    assert whole.info.clock_offsets_ns == {"a": 0, "b": 0, "c": 0}
    assert whole.info.host == "a, b"


def test_counts_are_sums_and_a_member_that_did_not_end_well_is_told(tmp_path: Path) -> None:
    """Exact counters add up; the whole ended when its last member did, or not at all."""
    write_member(tmp_path / "shard-0-of-2", counters=Counters(5, 4, 1, notes={"x": 1}), ended_unix_seconds=10.0)
    write_member(tmp_path / "shard-1-of-2", counters=Counters(3, 3, notes={"x": 2, "y": 1}), ended_unix_seconds=12.0)
    info = read_whole(tmp_path).info
    assert (info.counters.received, info.counters.delivered, info.counters.rejected) == (8, 7, 1)
    assert info.counters.notes == {"x": 3, "y": 1}
    assert (info.status, info.ended_unix_seconds) == ("finished", 12.0)
    write_member(tmp_path / "shard-1-of-3", status="running", ended_unix_seconds=None)
    info = read_whole(tmp_path).info
    assert (info.status, info.ended_unix_seconds) == ("running", None)


def test_a_member_that_cannot_be_read_is_named(tmp_path: Path, make_span: MakeSpan) -> None:
    """It was killed before it wrote its run.json, or that is damaged; the others are read."""
    write_member(tmp_path / "worker-0-1", make_span())
    (tmp_path / "worker-1-1" / "spans").mkdir(parents=True)
    whole = read_whole(tmp_path)
    assert len(whole.spans()) == 1
    assert any("worker-1-1 is left out" in problem for problem in whole.problems)
    (tmp_path / "worker-0-1" / "run.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"no member of the run can be read; worker-0-1 is left out: .* damaged"):
        read_whole(tmp_path)


def test_members_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    """Portions of two divisions, workers beside portions, two pipelines, and portions that are not here."""
    write_member(tmp_path / "shard-0-of-3")
    assert read_whole(tmp_path).problems == ["1 of 3 portions has a folder here"]
    write_member(tmp_path / "shard-1-of-2", pipeline="app:other", headrace_version="0.0.1")
    mixed, pipelines, versions = read_whole(tmp_path).problems
    assert mixed.startswith("portions of 2 and portions of 3 are in one folder: they are of several runs")
    assert pipelines == "the members are of several pipelines: app:other, app:pipeline"
    assert versions.startswith("the members are of several versions of headrace: 0.0.1, ")
    shutil.rmtree(tmp_path / "shard-1-of-2")
    write_member(tmp_path / "worker-0-1")
    assert read_whole(tmp_path).problems[0].startswith("portions of 3 and workers are in one folder")


def test_a_member_that_is_a_link_elsewhere_is_named(tmp_path: Path) -> None:
    """It is not followed, and not left out in silence."""
    write_member(tmp_path / "run" / "worker-0-1")
    write_member(tmp_path / "elsewhere")
    (tmp_path / "run" / "worker-1-1").symlink_to(tmp_path / "elsewhere")
    whole = read_whole(tmp_path / "run")
    assert isinstance(whole, WholeRun)
    assert len(whole.members) == 1
    assert "worker-1-1 is a link that leads out of" in whole.problems[0]


def test_members_are_in_the_order_of_their_numbers_and_nothing_else_is_one(tmp_path: Path) -> None:
    """The tenth comes after the second; other folders, and links that lead elsewhere, are none."""
    for name in ("worker-10-1", "worker-2-1", "worker-2-2", "worker-x-1", "photos", "worker-1"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / "worker-3-1").symlink_to("/")
    assert [member.name for member in find_members(tmp_path / "run")] == ["worker-2-1", "worker-2-2", "worker-10-1"]
    assert find_members(tmp_path / "nothing") == []


def test_a_run_of_one_process_is_what_it_is(tmp_path: Path) -> None:
    """Reading it as a whole is reading it; commands that take one process name the members of another one."""
    write_member(tmp_path / "one")
    assert not isinstance(read_whole(tmp_path / "one"), WholeRun)
    write_member(tmp_path / "many" / "shard-0-of-1")
    with pytest.raises(RunFolderError, match=r"several processes \(1\).* name it: .*many/shard-0-of-1"):
        read_run(tmp_path / "many")
    with pytest.raises(RunFolderError, match="does not exist"):
        read_whole(tmp_path / "none")

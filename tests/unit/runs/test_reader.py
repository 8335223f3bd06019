"""Reading run folders, whole and damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.errors import RunFolderError
from headrace.base.records import Span
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SPAN_SCHEMA, SpanWriter

MakeSpan = Callable[..., Span]


def write(folder: RunFolder, *spans: Span) -> None:
    """Write spans into one file of the folder."""
    writer = SpanWriter(folder.spans)
    writer.stage_finished(spans)
    writer.close()


def test_a_truncated_file_is_left_out_and_named(folder: RunFolder, make_span: MakeSpan) -> None:
    """Half a Parquet file costs its own rows and is named as a problem."""
    write(folder, make_span(0))
    write(folder, make_span(1))
    folder.finish("finished")
    whole, cut = sorted(folder.spans.glob("*.parquet"))
    cut.write_bytes(cut.read_bytes()[:-20])
    run = read_run(folder.path)
    assert run.spans().column("arrived").to_pylist() == [0]
    assert len(run.problems) == 1
    assert cut.name in run.problems[0]
    assert whole.name not in run.problems[0]


def test_a_file_with_damage_inside_is_named(folder: RunFolder, make_span: MakeSpan) -> None:
    """A file whose end is whole but whose pages are not is named as well."""
    write(folder, *[make_span(number) for number in range(1000)])
    folder.finish("finished")
    [file] = folder.spans.glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[4:400] = bytes(396)
    file.write_bytes(content)
    assert any(file.name in problem for problem in read_run(folder.path).problems)


def test_an_empty_file_is_named(folder: RunFolder) -> None:
    """A file of no bytes is a problem, not a crash."""
    (folder.spans / "h-1-000000.parquet").touch()
    assert "h-1-000000.parquet" in read_run(folder.path).problems[-1]


def test_a_table_without_a_column_is_named(folder: RunFolder) -> None:
    """A Parquet file of something else is named, with what it lacks."""
    pq.write_table(pa.table({"unit": ["item"]}), folder.spans / "other.parquet")
    assert "no column unit_id" in read_run(folder.path).problems[-1]


def test_hidden_temporary_files_are_ignored(folder: RunFolder, make_span: MakeSpan) -> None:
    """What a killed writer left half done is not read and not a problem."""
    write(folder, make_span(0))
    folder.finish("finished")
    (folder.spans / ".h-1-000007.parquet.tmp").write_bytes(b"PAR1")
    run = read_run(folder.path)
    assert run.spans().num_rows == 1
    assert run.problems == []


def test_a_run_without_spans_has_an_empty_table(folder: RunFolder) -> None:
    """No span is no error: the table has its columns and no row."""
    run = read_run(folder.path)
    assert run.spans().schema == SPAN_SCHEMA
    assert run.spans().num_rows == 0
    assert run.stage_names() == []


def test_stages_are_in_the_order_of_their_work(folder: RunFolder, make_span: MakeSpan) -> None:
    """Stage names come in the order in which the stages first began, not in that of the alphabet or the file."""
    write(
        folder, make_span(50, stage="a"), make_span(10, stage="z"), make_span(20, stage="m"), make_span(60, stage="z")
    )
    assert read_run(folder.path).stage_names() == ["z", "m", "a"]


def test_a_run_that_never_ended_is_a_problem(folder: RunFolder) -> None:
    """A run.json that still says running is pointed out."""
    assert "running" in read_run(folder.path).problems[0]


def test_lost_spans_are_a_problem(folder: RunFolder) -> None:
    """Spans that the run could not write are pointed out."""
    folder.finish("finished", lost_spans=1234)
    assert read_run(folder.path).problems == ["1,234 spans could not be written during the run"]


def test_missing_spans_folder_is_a_problem(folder: RunFolder) -> None:
    """A run folder without spans says so."""
    folder.spans.rmdir()
    assert any("spans" in problem for problem in read_run(folder.path).problems)


def test_a_run_json_cut_off_is_a_clear_error(folder: RunFolder) -> None:
    """Half a run.json is damaged, and the message names the file."""
    file = folder.path / "run.json"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(RunFolderError, match=r"run\.json is damaged"):
        read_run(folder.path)


def test_a_folder_of_run_folders_names_one(tmp_path: Path) -> None:
    """As that of `headrace train scale`, or `runs` itself."""
    for name in ("ranks-2-1", "ranks-1-1"):
        RunFolder.create(tmp_path / name, pipeline="train.py", unit="step").finish("failed")
    with pytest.raises(
        RunFolderError, match=r"has no run\.json, and holds 2 run folders; name one, such as .*ranks-1-1"
    ):
        read_run(tmp_path)


def test_a_run_json_that_is_not_text_is_a_clear_error(folder: RunFolder) -> None:
    """Bytes that are no JSON are damaged."""
    (folder.path / "run.json").write_bytes(b"\xff\x00\xfe")
    with pytest.raises(RunFolderError, match="is damaged"):
        read_run(folder.path)


@pytest.mark.parametrize("name", ["missing", ""])
def test_not_a_run_folder_is_a_clear_error(tmp_path: Path, name: str) -> None:
    """A folder that is missing or without run.json gives an error that says what was expected."""
    with pytest.raises(RunFolderError, match="expected a run folder"):
        read_run(tmp_path / name)


def test_a_file_is_not_a_run_folder(tmp_path: Path) -> None:
    """A file in the folder's place gives the same kind of error."""
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="is not a folder"):
        read_run(tmp_path / "file")


def test_a_newer_schema_version_says_so(folder: RunFolder) -> None:
    """A run of a newer headrace asks for an upgrade, whatever else its run.json holds."""
    (folder.path / "run.json").write_text(json.dumps({"schema_version": 99, "status": ["unknown form"]}))
    with pytest.raises(RunFolderError, match="newer headrace"):
        read_run(folder.path)


def test_unknown_keys_of_the_same_version_are_ignored(folder: RunFolder) -> None:
    """Keys that a later headrace adds within a version do no harm."""
    table = json.loads((folder.path / "run.json").read_text())
    (folder.path / "run.json").write_text(json.dumps(table | {"new": 1}))
    assert read_run(folder.path).info.pipeline == "app:pipeline"


def test_spans_beyond_the_free_memory_are_left_out(
    folder: RunFolder, make_span: MakeSpan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal rows take no space in files and all of it in memory: files are read as long as they fit, the others are named."""
    for number in range(4):
        write(folder, *[make_span(number)] * 100)
    folder.finish("finished")
    free = psutil.virtual_memory()._replace(available=250 * 2 * 450)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    run = read_run(folder.path)
    assert len(run.spans()) == 200
    assert [problem for problem in run.problems if "the memory that is free takes 50 more" in problem] == run.problems[
        -2:
    ]

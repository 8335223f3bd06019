"""Spans as Parquet files."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.records import Span
from headrace.runs import span_files
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SLICE_SPANS, SPAN_SCHEMA, SpanWriter, spans_to_batch

MakeSpan = Callable[..., Span]

# As the design lists them.
DESIGN_COLUMNS = """
    unit unit_id parent_id stage plan_id host process thread rank attempt outcome arrived dequeued started ended put
    cpu run_delay batch_id batch_size release_reason queue_depth bytes_in bytes_out shape_key weight cached
""".split()  # noqa: SIM905 - a list literal takes a line per column


@pytest.fixture
def writer(folder: RunFolder) -> Iterator[SpanWriter]:
    """A writer that rotates only when told."""
    writer = SpanWriter(folder.spans, rotate_seconds=3600)
    yield writer
    writer.close()


def test_columns_are_those_of_the_design() -> None:
    """The span table has the design's columns, all of them, in its order."""
    assert SPAN_SCHEMA.names == DESIGN_COLUMNS
    assert list(Span.__struct_fields__) == DESIGN_COLUMNS


def test_round_trip(folder: RunFolder, writer: SpanWriter, make_span: MakeSpan) -> None:
    """What is written comes back, value by value and in order."""
    spans = [
        make_span(0),
        make_span(1, stage="process", batch_id=7, batch_size=2, release_reason="idle", run_delay=4, shape_key=None),
        make_span(2, parent_id="job-1", outcome="failed", cpu=None, arrived=2**62),
    ]
    writer.stage_finished(spans[:1])
    writer.stage_finished(spans[1:])
    writer.flush()
    assert read_run(folder.path).spans().to_pylist() == [msgspec.structs.asdict(span) for span in spans]


def test_round_trip_of_a_slice_in_which_nothing_changes(
    folder: RunFolder, writer: SpanWriter, make_span: MakeSpan
) -> None:
    """A full slice whose optional columns are all empty comes back with them empty."""
    spans = [make_span(5)] * SLICE_SPANS
    writer.stage_finished(spans)
    writer.flush()
    table = read_run(folder.path).spans()
    assert table.to_pylist() == [msgspec.structs.asdict(span) for span in spans]
    assert table.column("release_reason").null_count == SLICE_SPANS


def test_a_batch_satisfies_its_schema(make_span: MakeSpan) -> None:
    """The record batch built from spans is valid in Arrow's own eyes."""
    batch = spans_to_batch([make_span(number, stage=f"stage-{number % 3}") for number in range(SLICE_SPANS + 1)])
    batch.validate(full=True)
    assert batch.schema == SPAN_SCHEMA


def test_rotates_by_number_of_spans(folder: RunFolder, make_span: MakeSpan) -> None:
    """A file is closed when it has rotate_spans spans."""
    writer = SpanWriter(folder.spans, rotate_seconds=3600, rotate_spans=SLICE_SPANS)
    for number in range(2 * SLICE_SPANS + 1):
        writer.stage_finished([make_span(number)])
    writer.close()
    assert len(list(folder.spans.glob("*.parquet"))) == 3
    assert writer.written_spans == 2 * SLICE_SPANS + 1


def test_spans_that_were_handed_over_together_are_in_one_file(folder: RunFolder, make_span: MakeSpan) -> None:
    """Those of a step, say: a process that is killed leaves whole ones."""
    writer, each = SpanWriter(folder.spans, rotate_seconds=3600, rotate_spans=SLICE_SPANS), SLICE_SPANS // 4 + 1
    for first in range(0, 40 * each, each):
        writer.stage_finished([make_span(number) for number in range(first, first + each)])
    writer.close()
    sizes = [pq.read_metadata(file).num_rows for file in folder.spans.iterdir()]
    assert len(sizes) > 1
    assert not [size for size in sizes if size % each]


def test_files_are_named_for_host_process_and_number(
    folder: RunFolder, writer: SpanWriter, make_span: MakeSpan
) -> None:
    """Names of files tell who wrote them, and count from zero."""
    for number in range(2):
        writer.stage_finished([make_span(number)])
        writer.flush()
    stem = f"{socket.gethostname()}-{os.getpid()}"
    assert sorted(file.name for file in folder.spans.iterdir()) == [f"{stem}-000000.parquet", f"{stem}-000001.parquet"]


def test_earlier_files_of_the_same_process_id_are_kept(folder: RunFolder, make_span: MakeSpan) -> None:
    """A second writer goes on counting where the first ended."""
    for number in range(2):
        writer = SpanWriter(folder.spans)
        writer.stage_finished([make_span(number)])
        writer.close()
    assert read_run(folder.path).spans().column("arrived").to_pylist() == [0, 1]


def test_flush_without_spans_writes_no_file(folder: RunFolder, writer: SpanWriter) -> None:
    """An idle process leaves no empty files."""
    writer.flush()
    assert list(folder.spans.iterdir()) == []


def test_sigkill_leaves_readable_files(folder: RunFolder) -> None:
    """What was rotated before a SIGKILL is read back, although the process was writing when it died."""
    program = """
import sys
from pathlib import Path
from headrace.base.records import Span
from headrace.runs.span_files import SpanWriter
writer = SpanWriter(Path(sys.argv[1]), rotate_seconds=0.01)
number = 0
while True:
    for _ in range(1000):
        number += 1
        writer.stage_finished([Span("item", str(number), None, "fetch", "p", "h", 1, "t", 0, 1, "ok", number, number,
                                    number, number, number, None, None, None, None, None, 0, 0, 0, None)])
    writer.flush()
    print(number, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(folder.spans)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            for _ in range(5):
                closed = int(process.stdout.readline())
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    run = read_run(folder.path)
    assert run.spans().num_rows >= closed
    assert run.spans().column("arrived").to_pylist() == list(range(1, run.spans().num_rows + 1))
    assert not [problem for problem in run.problems if "parquet" in problem]


def test_full_disk_costs_spans_and_not_the_run(folder: RunFolder) -> None:
    """A disk that takes no more is said once, its spans counted, no half file stays, and later spans are kept."""
    program = """
import logging, resource, sys
from pathlib import Path
from headrace.base.records import Span
from headrace.runs.span_files import SpanWriter
logging.basicConfig(format="%(message)s")
span = Span("item", "1", None, "fetch", "p", "h", 1, "t", 0, 1, "ok", 1, 2, 3, 4, 5, *[None] * 5, 0, 0, 0, None)
writer = SpanWriter(Path(sys.argv[1]), rotate_seconds=3600)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
for _ in range(2):
    writer.stage_finished([span] * 600)
    writer.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.stage_finished([span])
writer.close()
print(writer.lost_spans, writer.written_spans)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder.spans)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["1200", "1"]
    assert done.stderr.count("spans cannot be written") == 1
    assert "free space" in done.stderr
    assert len(list(folder.spans.iterdir())) == 1
    assert read_run(folder.path).spans().num_rows == 1


def test_folder_removed_during_the_run(folder: RunFolder, writer: SpanWriter, make_span: MakeSpan) -> None:
    """A run folder that vanishes costs spans and nothing else."""
    folder.spans.rmdir()
    writer.stage_finished([make_span()])
    writer.flush()
    assert writer.lost_spans == 1


def test_a_span_that_does_not_fit_is_lost_alone(
    folder: RunFolder, writer: SpanWriter, make_span: MakeSpan, caplog: pytest.LogCaptureFixture
) -> None:
    """One impossible value costs one span, not its neighbours."""
    writer.stage_finished([make_span(0), make_span(1, bytes_in=2**70), make_span(2, arrived=None), make_span(3)])
    with caplog.at_level(logging.ERROR):
        writer.flush()
    assert read_run(folder.path).spans().column("arrived").to_pylist() == [0, 3]
    assert writer.lost_spans == 2
    assert len(caplog.records) == 1


def test_names_that_are_not_unicode_are_written_escaped(
    folder: RunFolder, writer: SpanWriter, make_span: MakeSpan
) -> None:
    """A file name with bytes that are not UTF-8 is a valid id of an item."""
    writer.stage_finished([make_span(unit_id=b"caf\xe9.jpg".decode("utf-8", "surrogateescape"))])
    writer.flush()
    assert read_run(folder.path).spans().column("unit_id").to_pylist() == ["caf\\udce9.jpg"]


def test_close_may_be_called_twice(folder: RunFolder, make_span: MakeSpan) -> None:
    """Closing again does nothing."""
    writer = SpanWriter(folder.spans)
    writer.stage_finished([make_span()])
    writer.close()
    writer.close()
    assert writer.written_spans == 1


@pytest.mark.parametrize("wrong", [{"rotate_seconds": 0.0}, {"rotate_spans": 0}])
def test_impossible_rotation_is_refused(tmp_path: Path, wrong: dict[str, float]) -> None:
    """A rotation of nothing is a caller's mistake."""
    with pytest.raises(ValueError, match="rotate_"):
        SpanWriter(tmp_path, **wrong)  # type: ignore[arg-type]


def test_spans_that_are_counted_only_are_not_written(
    folder: RunFolder, writer: SpanWriter, make_span: MakeSpan
) -> None:
    """A span of weight 0 never reaches a file; one that stands for several keeps its weight."""
    writer.stage_finished([make_span(0, weight=0), make_span(1, weight=8)])
    writer.flush()
    assert read_run(folder.path).spans().column("weight").to_pylist() == [8]


def test_files_of_version_1_have_weight_1(folder: RunFolder, make_span: MakeSpan) -> None:
    """A file without the column is read as one in which every span stands for itself."""
    table = pa.Table.from_batches([spans_to_batch([make_span(0), make_span(1)])]).drop_columns(["weight"])
    pq.write_table(table, folder.spans / "old-1-000000.parquet")
    run = read_run(folder.path)
    assert run.spans().column("weight").to_pylist() == [1, 1]
    assert not [problem for problem in run.problems if "parquet" in problem]


def test_spans_that_wait_for_the_disk_are_bounded(
    folder: RunFolder, writer: SpanWriter, make_span: MakeSpan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk does not answer at most so many spans wait; what comes then is lost and counted, the rest is written."""
    monkeypatch.setattr(span_files, "MOST_WAITING", 3)
    with writer._lock:  # as if the thread were held up in a write
        for number in range(5):
            writer.stage_finished([make_span(number)])
    writer.flush()
    assert writer.lost_spans == 2
    assert read_run(folder.path).spans().num_rows == 3


def test_what_fails_beside_the_spans_does_not_end_the_writer(
    folder: RunFolder, make_span: MakeSpan, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again, and said once."""
    tried, again = [], threading.Event()

    def fail() -> None:
        tried.append(1)
        if len(tried) == 3:
            again.set()
        raise RuntimeError("a mistake")

    writer = SpanWriter(folder.spans, rotate_seconds=0.01)
    writer.beside = fail
    assert again.wait(60)
    writer.stage_finished([make_span()])
    writer.close()
    assert writer.written_spans == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("length", [1, 8, 9, SLICE_SPANS, SLICE_SPANS + 1])
def test_columns_are_those_of_pyarrow(length: int, make_span: MakeSpan) -> None:
    """Numbers of all sizes, names in any script, and gaps: each value is the one that was given."""
    spans = [
        msgspec.structs.replace(
            make_span(number),
            unit_id=("", "ä", "long" * number)[number % 3],
            stage=("decode", "預處理")[number % 2],
            cpu=None if number % 3 == 1 else number * 2**40 - 2**62,
            rank=number - 5,
            shape_key=None if number % 2 else "8x8",
        )
        for number in range(length)
    ]
    batch = spans_to_batch(spans)
    batch.validate(full=True)
    rows = [msgspec.structs.asdict(span) for span in spans]
    assert batch.to_pylist() == rows
    assert batch.column("cpu").null_count == sum(row["cpu"] is None for row in rows)


@pytest.mark.full
def test_writing_spans_does_not_import_pandas(make_span: MakeSpan) -> None:
    """Where it is installed it takes a quarter of a second of a core: in the first steps of a training that is recorded."""
    code = (
        "import msgspec, sys; from headrace.base.records import Span; from headrace.runs.span_files import spans_to_batch; "
        "spans_to_batch(msgspec.json.decode(sys.stdin.buffer.read(), type=list[Span])); print('pandas' in sys.modules)"
    )
    spans = [msgspec.structs.replace(make_span(number), shape_key=("a", "b")[number % 2]) for number in range(9)]
    done = subprocess.run(
        [sys.executable, "-c", code], input=msgspec.json.encode(spans), capture_output=True, timeout=60, check=True
    )
    assert done.stdout.split() == [b"False"]

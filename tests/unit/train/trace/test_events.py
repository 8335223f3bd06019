"""Traces are read in pieces; what is damaged costs itself only, and nothing hangs or crashes."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from headrace.base.errors import RunFolderError
from headrace.train.trace import events as events_module
from headrace.train.trace.columns import Columns
from headrace.train.trace.events import TraceFile
from tests.unit.train.trace.made_traces import cuda_trace


def read(path: Path) -> tuple[TraceFile, list[str]]:
    """Return the file as read, and the names of its events."""
    file = TraceFile(path)
    return file, [event.name for events in file.events() for event in events]


def write(path: Path, text: str | bytes) -> Path:
    """Write a file."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a few hundred bytes at a time, so that small files are cut as large ones are."""
    monkeypatch.setattr(events_module, "_PIECE_BYTES", 700)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.usefixtures("small_pieces")
def test_every_event_is_read_whatever_the_layout(tmp_path: Path, indent: int | None) -> None:
    """In pieces that end anywhere: no event is lost, doubled or split."""
    made = cuda_trace(5)
    text = json.dumps(
        {**made.about, "traceEvents": made.events, "traceName": "x", "more": [{"a": 1}, {"b": 2}]}, indent=indent
    )
    file, names = read(write(tmp_path / "t.json", text))
    assert names == [event["name"] for event in made.events]
    assert file.about["traceName"] == "x"
    assert file.about["more"] == [{"a": 1}, {"b": 2}]
    assert not file.problems()


def test_arrays_marks_of_byte_order_and_gzip_are_read(tmp_path: Path) -> None:
    """A bare list of events, a byte order mark, and gzip whatever the name says."""
    made = cuda_trace(1)
    array = json.dumps(made.events).encode()
    for name, data in (("a.json", array), ("b.json", b"\xef\xbb\xbf" + array), ("c.json", gzip.compress(array))):
        assert read(write(tmp_path / name, data))[1] == [event["name"] for event in made.events]


@pytest.mark.usefixtures("small_pieces")
def test_whatever_the_place_of_the_cut_whole_events_are_read(tmp_path: Path) -> None:
    """A file that ends anywhere gives the events before that, and says so."""
    made = cuda_trace(3)
    whole = made.text()
    names = [event["name"] for event in made.events]
    chosen = random.Random(7)
    for _ in range(60):
        length = chosen.randrange(whole.index("traceEvents") + 20, len(whole) - 30)
        file, found = read(write(tmp_path / "t.json", whole[:length]))
        assert found == names[: len(found)]
        missing = whole[length:].count('"ph"') + 1
        assert len(found) >= len(names) - missing
        if len(found) < len(names):
            assert "cut off" in file.problems()[0]


def test_a_compressed_file_that_is_cut_off_or_damaged_is_read_up_to_there(tmp_path: Path) -> None:
    """Gzip without its end, and with wrong bytes inside."""
    made = cuda_trace(200)
    data = gzip.compress(made.text().encode())
    file, names = read(write(tmp_path / "t.json.gz", data[: len(data) // 2]))
    assert 0 < len(names) < len(made.events)
    assert "cut off" in file.problems()[0]
    bad = bytearray(data)
    bad[len(bad) // 2 : len(bad) // 2 + 40] = b"\xff" * 40
    file, names = read(write(tmp_path / "u.json.gz", bytes(bad)))
    assert len(names) < len(made.events)
    assert file.problems()


def test_one_bad_event_costs_that_event(tmp_path: Path) -> None:
    """Wrong types, what is no event, and nesting that no decoder follows."""
    made = cuda_trace(2)
    good = [json.dumps(event) for event in made.events]
    bad = [
        '{"ph": "X", "ts": "soon"}',
        '{"ph": 3}',
        "17",
        '"text"',
        '{"args": ' + "[" * 60_000 + "]" * 60_000 + "}",
        "{]",
    ]
    for one in bad[:5]:
        text = f'{{"traceEvents": [{",".join([*good[:9], one, *good[9:]])}]}}'
        file, names = read(write(tmp_path / "t.json", text))
        assert names == [event["name"] for event in made.events], one[:40]
        assert file.num_bad <= 1


def test_what_kineto_wrote_for_years_is_mended(tmp_path: Path) -> None:
    """`inf`, `nan`, backslashes of Windows and bytes that are no UTF-8 do not cost their events."""
    text = (
        b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2, "args": {"GB/s": inf, "x": -nan}},\n'
        b'{"ph": "X", "name": "C:\\Users\\me.py(3): f", "ts": 1.5, "dur": 2},\n'
        b'{"ph": "X", "name": "b\xff", "ts": 3, "dur": 1}]}'
    )
    file, names = read(write(tmp_path / "t.json", text))
    assert names == ["a", "C:\\Users\\me.py(3): f", "b\N{REPLACEMENT CHARACTER}"]
    assert file.num_bad == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"hello", "it begins with b'hello'"),
        (b'{"spans": []}', "no list `traceEvents`"),
        (gzip.compress(b'{"x": "' + b"x" * 100)[:20], "cut off"),
    ],
    ids=["empty", "text", "object", "cut off"],
)
def test_what_is_no_trace_is_refused_with_what_it_is(tmp_path: Path, content: bytes, says: str) -> None:
    """An error names the file, what was found and what was expected."""
    with pytest.raises(RunFolderError, match=r"is no trace.*expected what `prof\.export_chrome_trace"):
        read(write(tmp_path / "t.json", content))
    with pytest.raises(RunFolderError, match=says.replace("(", r"\(")):
        read(tmp_path / "t.json")


def test_an_event_longer_than_any_is_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded whatever a text in the file says."""
    monkeypatch.setattr(events_module, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(events_module, "_MOST_BYTES", 5000)
    text = '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}, {"name": "' + "x" * 100_000 + '"}]}'
    file, _ = read(write(tmp_path / "t.json", text))
    assert "longer than" in file.problems()[0]
    assert file.num_bytes < 20_000


def test_times_that_cannot_be_are_counted(tmp_path: Path) -> None:
    """Negative durations, times beyond any year, and missing ones."""
    bad = [(1.0, -1.0), (-5.0, 1.0), (1e300, 1.0), (1.0, 1e300), (1.0, None)]
    rows = [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": [2], "ts": 5.0, "dur": 1.0}]
    rows += [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": ts, "dur": dur} for ts, dur in bad]
    columns = Columns(TraceFile(write(tmp_path / "t.json", json.dumps(rows))))
    assert len(columns) == 1
    assert any("4 events with a time or duration" in text for text in columns.problems)
    assert any("1 event could not be read" in text for text in columns.problems)
    assert columns.end[0] - columns.start[0] == 1000


def test_names_and_events_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace with a name for each event, and more events than are kept."""
    from headrace.train.trace import columns as columns_module

    monkeypatch.setattr(columns_module, "_MOST_NAMES", 10)
    monkeypatch.setattr(columns_module, "MOST_EVENTS", 50)
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": f"name {at}" * 100, "pid": 1, "tid": 2, "ts": at, "dur": 1.0}
        for at in range(90)
    ]
    columns = Columns(TraceFile(write(tmp_path / "t.json", json.dumps(rows))))
    assert len(columns) == 50
    assert len(columns.names) <= 11
    assert max(map(len, columns.names)) <= 300
    assert "more than 50 events" in columns.problems[0]

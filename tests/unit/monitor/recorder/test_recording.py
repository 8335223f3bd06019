"""What stands in the blocks, there and back; and the run folders that are made of it."""

import random
import zlib
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import RunFolderError
from headrace.base.records import SCHEMA_VERSION, Span, StreamRecord
from headrace.diagnose.analysis import Analysis
from headrace.monitor.recorder.recording import (
    Event,
    Identity,
    Recording,
    Sample,
    States,
    Threads,
    pack,
    pack_identity,
    pack_spans,
    read_identity,
    read_recording,
    unpack_spans,
)
from headrace.monitor.recorder.ring import BlockKind, RingWriter, read_blocks
from headrace.monitor.recorder.window import find_split, write_window
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunInfo, StageInfo

_SECOND = 1_000_000_000


def _span(unit: str, at: float, service: float, *, stage: str = "deliver", outcome: str = "ok") -> Span:
    start, end = round(at * _SECOND), round((at + service) * _SECOND)
    return Span(
        "item", unit, None, stage, "p1", "host", 7, "deliver-0", 0, 1, outcome,
        start, start, start, end, end, 100, 5, None, None, None, 0, 10, 20, None, 4,
    )  # fmt: skip


def _identity() -> Identity:
    info = RunInfo(
        schema_version=SCHEMA_VERSION, headrace_version="0", status="running", pipeline="m:p", host="host",
        started_unix_seconds=1_000.0, started_monotonic_ns=0, clock_offsets_ns={"host": 0}, plans={"p1": {}},
        stages=[
            StageInfo(
                name="deliver", kind="io", role="deliver", releases_gil=True, executor="thread", station="deliver",
                workers=1, queue_capacity=4,
            )
        ],
    )  # fmt: skip
    return Identity(process=7, process_started=1, boot="b", info=info)


def _record(folder: Path, spans: list[Span]) -> None:
    writer = RingWriter(folder, 2**22)
    writer.identify(pack_identity(_identity()))
    for first in range(0, len(spans), 50):
        writer.append(BlockKind.SPANS, pack_spans(spans[first : first + 50]))
    writer.append(BlockKind.THREADS, pack(Threads([(7, "deliver-0")])))
    writer.append(BlockKind.STATES, pack([States(2 * _SECOND, "n"), States(3 * _SECOND, "too long")]))
    for second in range(40):
        counts = {
            "received": 10.0 * second,
            "delivered": 9.0 * second,
            "failed": 1.0 * second,
            "settled": 10.0 * second,
        }
        writer.append(BlockKind.RESOURCES, pack([Sample(second * _SECOND, {"run": counts})]))
    writer.append(BlockKind.EVENT, pack(Event(5 * _SECOND, "plan", "another one")))
    writer.close(remove=False)


def _steady(seconds: int, slow_from: float) -> list[Span]:
    return [
        _span(f"j{number}", number / 10, 0.3 if number / 10 >= slow_from else 0.02) for number in range(seconds * 10)
    ]


def test_spans_come_back_as_they_were() -> None:
    """Also ids that are no Unicode, which are escaped."""
    spans = [_span("a", 1.0, 0.5), _span("b", 2.0, 0.5, outcome="failed")]
    assert unpack_spans(pack_spans(spans)) == spans
    assert unpack_spans(pack_spans([_span("\udcff", 1.0, 0.5)]))[0].unit_id == "\\udcff"


@pytest.mark.parametrize("content", [b"", b"noise", pack_spans([_span("a", 1, 1)])[:-3]])
def test_what_holds_no_spans_is_refused(content: bytes) -> None:
    """With one kind of error, whatever it is."""
    with pytest.raises(ValueError, match=r".+"):
        unpack_spans(content)


def test_all_kinds_of_blocks_come_back(tmp_path: Path) -> None:
    """A look at other threads than were named is left out."""
    _record(tmp_path / "one", _steady(10, 99))
    found = read_recording(tmp_path / "one")
    assert len(found.spans) == 100
    assert len(found.samples) == 40
    assert [event.says for event in found.events] == ["another one"]
    assert [look.letters for _, look in found.states] == ["n"]
    assert (found.damaged_bytes, found.unreadable_blocks) == (0, 0)


def test_a_damaged_recording_gives_nothing_that_was_not_recorded(tmp_path: Path) -> None:
    """Bytes are changed at random places: what comes back is a part of what was written, or an error that says so."""
    spans = _steady(30, 15)
    _record(tmp_path / "one", spans)
    part = next((tmp_path / "one").iterdir())
    whole, written = part.read_bytes(), {repr(span) for span in spans}
    generator = random.Random(1)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(generator.choice((1, 3, 30))):
            damaged[generator.randrange(len(damaged))] ^= generator.randrange(1, 256)
        part.write_bytes(damaged[: generator.randrange(len(damaged) // 2, len(damaged) + 1)])
        if not read_blocks(tmp_path / "one").blocks or read_identity(tmp_path / "one") is None:
            with pytest.raises(RunFolderError, match="no block says whose"):
                read_recording(tmp_path / "one")
            continue
        found = read_recording(tmp_path / "one")
        assert {repr(span) for span in found.spans} <= written
        assert found.damaged_bytes > 0


def test_a_recording_of_fewer_columns_is_read(tmp_path: Path) -> None:
    """As one of a headrace that did not know the last columns of a span; what it did not know is as usual."""
    spans = _steady(20, 99)
    writer = RingWriter(tmp_path / "old", 2**22)
    info = msgspec.structs.replace(_identity().info, schema_version=2)
    writer.identify(pack_identity(msgspec.structs.replace(_identity(), info=info)))
    columns = list(zip(*map(msgspec.structs.astuple, spans), strict=True))[: Span.__struct_fields__.index("cached")]
    writer.append(BlockKind.SPANS, zlib.compress(msgspec.msgpack.encode(columns)))
    writer.close(remove=False)
    found = read_recording(tmp_path / "old")
    assert (found.spans, found.unreadable_blocks) == (spans, 0)
    write_window(found, tmp_path / "run", 0, 20 * _SECOND)
    assert len(read_run(tmp_path / "run").spans()) == len(spans)
    assert read_run(tmp_path / "run").info.schema_version == SCHEMA_VERSION


def test_spans_of_another_version_are_said_to_be_so(tmp_path: Path) -> None:
    """And no incident is made of the rest, which would say that no job went through."""
    writer = RingWriter(tmp_path / "newer", 2**22)
    writer.identify(pack_identity(_identity()))
    columns = [*zip(*map(msgspec.structs.astuple, _steady(20, 99)), strict=True), ["unknown"] * 200]
    writer.append(BlockKind.SPANS, zlib.compress(msgspec.msgpack.encode(columns)))
    writer.close(remove=False)
    with pytest.raises(RunFolderError, match=r"by headrace 0, in a form that .* does not know; run `headrace snapshot"):
        read_recording(tmp_path / "newer")


def test_the_moment_in_which_it_got_worse_is_found(tmp_path: Path) -> None:
    """To about a second; where nothing changed, that is said."""
    _record(tmp_path / "worse", _steady(40, 25))
    split = find_split(read_recording(tmp_path / "worse"))
    assert split is not None
    assert split.is_found
    assert abs(split.at_ns / _SECOND - 25) <= 1.5
    _record(tmp_path / "same", _steady(40, 99))
    same = find_split(read_recording(tmp_path / "same"))
    assert same is not None
    assert not same.is_found


def test_too_little_is_not_divided(tmp_path: Path) -> None:
    """Five seconds have no before and after."""
    recording = Recording(tmp_path, _identity(), spans=_steady(5, 99))
    assert find_split(recording) is None


def test_a_window_is_a_run_folder(tmp_path: Path) -> None:
    """It holds the jobs that arrived in it, and the checks of whole runs are left out with the reason."""
    _record(tmp_path / "one", _steady(40, 25))
    write_window(read_recording(tmp_path / "one"), tmp_path / "run", 10 * _SECOND, 20 * _SECOND)
    run = read_run(tmp_path / "run")
    assert len(run.spans()) == 100
    assert run.info.counters.received == 90
    assert run.problems == []
    profile = Analysis(run).profile
    assert profile.trust == "NOT CHECKED"
    assert profile.distrust == ()
    assert "some time of a run" in profile.unchecked[0]


def test_live_streams_are_of_the_end_of_a_recording(tmp_path: Path) -> None:
    """They were counted from the beginning of the run: the time before has none."""
    stalled = StreamRecord(
        name="gate", seconds=100.0, counts={"decoded": 10}, ended={"delivered": 10}, connections=1, age_p50_seconds=None,
        age_p99_seconds=None, jitter_p50_seconds=None, jitter_p99_seconds=None, stalls=1, stalled_seconds=90.0,
        longest_stall_seconds=90.0,
    )  # fmt: skip
    identity = msgspec.structs.replace(_identity(), info=msgspec.structs.replace(_identity().info, streams=[stalled]))
    recording = Recording(tmp_path, identity, spans=_steady(40, 99))
    write_window(recording, tmp_path / "before", 0, 20 * _SECOND)
    write_window(recording, tmp_path / "incident", 20 * _SECOND, recording.to_ns + 1)

    assert read_run(tmp_path / "before").info.streams == []
    assert [one.name for one in Analysis(read_run(tmp_path / "incident")).profile.streams] == ["gate"]

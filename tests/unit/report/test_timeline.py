"""Timelines in both formats: what was written is read back, by the rules of its format, and compared with known answers."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.base.errors import MissingExtra, RunFolderError
from headrace.base.records import Span
from headrace.report.chrome_trace import write_chrome_trace
from headrace.report.perfetto_trace import write_perfetto_trace
from headrace.report.trace_file import TraceSummary
from headrace.runs.reader import Run, read_run
from headrace.runs.resource_files import ResourceWriter, seal
from headrace.runs.run_folder import RunFolder, StageInfo
from headrace.runs.span_files import SPAN_SCHEMA, spans_to_batch
from headrace.stages.stage import FunctionStage
from headrace.testing import ListSource

proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

MS = 1_000_000


@dataclass
class Drawn:
    """A slice as the file tells it; ns."""

    process: str
    track: str
    lane: int
    begin: int
    end: int
    name: str
    category: str
    arguments: dict[str, Any]
    arrows: list[int] = field(default_factory=list)


@dataclass
class Picture:
    """A trace file, read back."""

    slices: list[Drawn]
    arrows: dict[int, list[Drawn]]
    """Each arrow's slices, in the order of time."""
    samples: list[tuple[str, int, float]]
    text: str
    """Everything that the file says of itself."""

    def of(self, category: str) -> list[Drawn]:
        """Return the slices of a category, in the order of time."""
        return sorted((one for one in self.slices if one.category == category), key=lambda one: (one.begin, one.track))

    def ways(self) -> list[list[str]]:
        """Return each arrow as the names of its slices."""
        return sorted([one.name for one in way] for way in self.arrows.values())


# --- readers that accept nothing against the rules


def read_chrome(content: bytes) -> Picture:
    """Read Chrome trace JSON."""
    trace = json.loads(content, parse_constant=pytest.fail)
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    names: dict[tuple[str, int, int], str] = {}
    picture = Picture([], defaultdict(list), [], json.dumps(trace["otherData"], ensure_ascii=False))
    waits: dict[tuple[str, str], dict[str, Any]] = {}
    arrows = []
    for event in trace["traceEvents"]:
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        if event["ph"] == "M":
            if event["name"].endswith("_name"):
                names[event["name"], event["pid"], event["tid"]] = event["args"]["name"]
            else:
                assert type(event["args"]["sort_index"]) is int
            continue
        assert isinstance(event["ts"], float)
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0
        process = names["process_name", event["pid"], 0]
        if event["ph"] == "X":
            assert event["dur"] > 0
            track = names["thread_name", event["pid"], event["tid"]]
            picture.slices.append(chrome_slice(event, process, track, event["tid"], event["ts"] + event["dur"]))
        elif event["ph"] == "b":
            key = (event["cat"], event["id"])
            assert key not in waits, "a wait begins on a row where one goes on"
            waits[key] = event
        elif event["ph"] == "e":
            begun = waits.pop((event["cat"], event["id"]))
            assert begun["name"] == event["name"]
            picture.slices.append(chrome_slice(begun, process, event["name"], int(event["id"], 16), event["ts"]))
        elif event["ph"] == "C":
            assert process == "resources"
            picture.samples.append((event["name"], nanoseconds(event["ts"]), event["args"]["value"]))
        else:
            assert event["ph"] in "stf"
            assert (event["ph"] == "f") == (event.get("bp") == "e")
            arrows.append(event)
    assert not waits
    pids = {key[1] for key in names}
    assert 0 not in pids
    threads = [key[2] for key in names if key[0] == "thread_name"]
    assert len(threads) == len(set(threads))
    assert not pids & set(threads)
    bind_arrows(arrows, picture)
    return picture


def chrome_slice(event: dict[str, Any], process: str, track: str, lane: int, end: float) -> Drawn:
    """Return an event as a slice."""
    begin, end = nanoseconds(event["ts"]), nanoseconds(end)
    return Drawn(process, track, lane, begin, end, event["name"], event["cat"], event["args"])


def nanoseconds(microseconds: float) -> int:
    """Return a time of the file in ns; it must be a whole number of them."""
    assert math.isclose(microseconds * 1e3, round(microseconds * 1e3), abs_tol=1e-3)
    return round(microseconds * 1e3)


def bind_arrows(events: list[dict[str, Any]], picture: Picture) -> None:
    """Bind flow events to the slices around them as viewers do, in the order of time."""
    by_lane = defaultdict(list)
    for one in picture.slices:
        by_lane[one.lane].append(one)
    phases = defaultdict(str)
    for event in sorted(events, key=lambda event: event["ts"]):
        at = nanoseconds(event["ts"])
        [around] = [one for one in by_lane[event["tid"]] if one.begin <= at < one.end]
        phases[event["id"]] += event["ph"]
        picture.arrows[event["id"]].append(around)
    for way in phases.values():
        assert way == "s" + "t" * (len(way) - 2) + "f"


def read_perfetto(content: bytes) -> Picture:
    """Read a Perfetto trace."""
    trace = proto.Trace()
    trace.ParseFromString(content)
    assert trace.packet[0].sequence_flags == proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    tracks: dict[int, Any] = {}
    interned: dict[tuple[str, int], str] = {}
    opened: dict[int, Drawn] = {}
    picture = Picture([], defaultdict(list), [], "")
    ended: set[int] = set()
    last = 0
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == trace.packet[0].trusted_packet_sequence_id != 0
        for kind, entries in packet.interned_data.ListFields():
            for entry in entries:
                assert entry.iid > 0
                assert (kind.name, entry.iid) not in interned
                interned[kind.name, entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert descriptor.uuid not in (0, *tracks)
            assert descriptor.parent_uuid in (0, *tracks)
            tracks[descriptor.uuid] = descriptor
            picture.text += descriptor.description
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        descriptor = tracks[event.track_uuid]
        if event.type == proto.TrackEvent.TYPE_COUNTER:
            assert tracks[descriptor.parent_uuid].process.process_name == "resources"
            picture.samples.append((descriptor.name, packet.timestamp, event.double_counter_value))
            continue
        assert packet.timestamp >= last
        last = packet.timestamp
        if event.type == proto.TrackEvent.TYPE_SLICE_END:
            one = opened.pop(event.track_uuid)
            one.end = packet.timestamp
            assert one.end > one.begin
            picture.slices.append(one)
            continue
        assert event.type == proto.TrackEvent.TYPE_SLICE_BEGIN
        assert packet.sequence_flags == proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        assert event.track_uuid not in opened, "slices of one track overlap"
        opened[event.track_uuid] = one = perfetto_slice(packet, tracks, interned)
        for number in (*event.flow_ids, *event.terminating_flow_ids):
            assert number not in ended
            picture.arrows[number].append(one)
        ended.update(event.terminating_flow_ids)
    assert not opened
    assert ended == set(picture.arrows)
    assert all(len(way) >= 2 for way in picture.arrows.values())
    return picture


def perfetto_slice(packet: Any, tracks: dict[int, Any], interned: dict[tuple[str, int], str]) -> Drawn:
    """Return a begin event as a slice that has not ended."""
    event, descriptor = packet.track_event, tracks[packet.track_event.track_uuid]
    top = descriptor
    while top.parent_uuid:
        top = tracks[top.parent_uuid]
    if not top.HasField("process"):
        [top] = [one for one in tracks.values() if one.HasField("process") and one.process.pid == top.thread.pid]
    arguments = {
        interned["debug_annotation_names", annotation.name_iid]: perfetto_value(annotation)
        for annotation in event.debug_annotations
    }
    return Drawn(
        top.process.process_name,
        descriptor.name or descriptor.thread.thread_name,
        descriptor.uuid,
        packet.timestamp,
        -1,
        interned["event_names", event.name_iid],
        ",".join(interned["event_categories", number] for number in event.category_iids),
        arguments,
    )


def perfetto_value(annotation: Any) -> Any:
    """Return an argument's value."""
    if annotation.array_values:
        return [perfetto_value(one) for one in annotation.array_values]
    return getattr(annotation, annotation.WhichOneof("value"))


FORMATS: dict[str, tuple[Callable[..., TraceSummary], Callable[[bytes], Picture], str]] = {
    "chrome": (write_chrome_trace, read_chrome, "trace.json"),
    "perfetto": (write_perfetto_trace, read_perfetto, "trace.pftrace"),
}

# --- runs to draw


def make_span(stage: str, unit_id: str = "job", at: tuple[int, int, int, int, int] = (0,) * 5, **changes: Any) -> Span:
    """Return a span; `at` is arrived, dequeued, started, ended and put in ms."""
    arrived, dequeued, started, ended, put = (round(time * MS) for time in at)
    values: dict[str, Any] = {
        "unit": "item", "unit_id": unit_id, "parent_id": None, "stage": stage, "plan_id": "p", "host": "h", "process": 7,
        "thread": f"{stage}-0", "rank": 0, "attempt": 1, "outcome": "ok", "arrived": arrived, "dequeued": dequeued,
        "started": started, "ended": ended, "put": put, "cpu": None, "run_delay": None, "batch_id": None,
        "batch_size": None, "release_reason": None, "queue_depth": 0, "bytes_in": 1, "bytes_out": 2, "shape_key": None,
    }  # fmt: skip
    return Span(**(values | changes))


class Folder:
    """A run folder whose spans can be replaced."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder.create(path, pipeline="app:pipeline")
        self.folder.finish("finished", clock_offsets_ns={"h": 0})

    def run(self, *spans: Span, **changes: Any) -> Run:
        """Return a run of these spans; `changes` go into run.json."""
        if changes:
            self.folder.update(**changes)
        batches = [spans_to_batch(spans)] if spans else []
        pq.write_table(pa.Table.from_batches(batches, SPAN_SCHEMA), self.folder.spans / "h-7-000000.parquet")
        return read_run(self.folder.path)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty run folder."""
    return Folder(tmp_path / "run")


Draw = Callable[..., tuple[Picture, TraceSummary]]


@pytest.fixture(params=FORMATS)
def draw(request: pytest.FixtureRequest, tmp_path: Path) -> Draw:
    """Writes a run in one format and reads it back."""
    write, read, name = FORMATS[request.param]

    def drawn(run: Run, **options: Any) -> tuple[Picture, TraceSummary]:
        summary = write(run, tmp_path / name, **options)
        picture = read((tmp_path / name).read_bytes())
        assert summary.num_slices == len(picture.slices)
        assert summary.num_flows == len(picture.arrows)
        assert summary.num_samples == len(picture.samples)
        assert summary.num_bytes == (tmp_path / name).stat().st_size
        return picture, summary

    return drawn


# --- known answers


def test_one_item_is_drawn_as_it_was(folder: Folder, draw: Draw) -> None:
    """Waiting, service and blocked time of an item stand where they belong, with what was measured."""
    span = make_span(
        "decode", at=(100, 102, 103, 110, 111), cpu=5 * MS, run_delay=MS, queue_depth=4, bytes_out=99, shape_key="u[1]"
    )
    picture, _ = draw(folder.run(span))
    [service], [wait], [blocked] = picture.of("service"), picture.of("queue"), picture.of("blocked")
    assert (service.begin, service.end, service.name) == (3 * MS, 10 * MS, "decode")
    assert (service.process, service.track) == ("process 7 on h", "decode-0")
    assert service.arguments == {
        "item": "job", "attempt": 1, "outcome": "ok", "bytes_in": 1, "bytes_out": 99, "shape_key": "u[1]", "queue_depth": 4,
        "cpu_ms": 5.0, "run_delay_ms": 1.0, "queue_wait_ms": 2.0, "setup_ms": 1.0, "blocked_ms": 1.0,
    }  # fmt: skip
    assert (wait.begin, wait.end, wait.name, wait.process) == (0, 2 * MS, "decode queue", "queues on h")
    assert wait.arguments == {"item": "job", "items_before": 4}
    assert (blocked.begin, blocked.end, blocked.track) == (10 * MS, 11 * MS, "decode-0")
    assert blocked.arguments == {"item": "job", "after": "decode"}


def test_an_arrow_follows_an_item_through_its_stages(folder: Folder, draw: Draw) -> None:
    """Each item with more than one stage has one arrow, through all of them in order; one stage alone has none."""
    spans = [make_span(name, "a", (at, at, at, at + 3, at + 3)) for at, name in enumerate(["x", "y", "z"])]
    spans += [make_span("x", "b", (5, 5, 5, 6, 6)), make_span("y", "b", (7, 7, 7, 8, 8))]
    spans += [make_span("x", "c", (9, 9, 9, 10, 10))]
    picture, summary = draw(folder.run(*reversed(spans)))
    assert picture.ways() == [["x", "y"], ["x", "y", "z"]]
    assert summary.num_flows == 2


def test_a_batch_is_one_slice_with_its_items(folder: Folder, draw: Draw) -> None:
    """Three rows of one batch are drawn once; the arrow of each item passes it."""
    ids = ["a", "b", "c"]
    batch = {"batch_id": 5, "batch_size": 3, "release_reason": "full"}
    spans = [make_span("process", name, (2, 4, 4, 9, 9), **batch) for name in ids]
    spans += [make_span("process", "d", (2, 9, 9, 12, 12), batch_id=6, batch_size=1, release_reason="drain")]
    spans += [make_span("fetch", name, (0, 0, 0, 1, 1), thread=f"fetch-{name}") for name in [*ids, "d"]]
    picture, _ = draw(folder.run(*spans))
    first, second = [one for one in picture.of("service") if one.name == "process"]
    assert sorted(first.arguments["items"]) == ids
    assert second.arguments["items"] == ["d"]
    assert (first.arguments["batch_size"], first.arguments["release_reason"]) == (3, "full")
    assert (first.begin, first.end) == (4 * MS, 9 * MS)
    assert picture.ways() == [["fetch", "process"]] * 4
    assert sum(first in way for way in picture.arrows.values()) == 3


def test_equal_batch_ids_elsewhere_are_other_batches(folder: Folder, draw: Draw) -> None:
    """Batch ids count within a process: the same id in another process, stage or after a restart is another batch."""
    batch = {"batch_id": 1, "batch_size": 2}
    places: list[dict[str, Any]] = [{}, {"process": 8}, {"stage": "other"}, {"at": (0, 5, 5, 6, 6)}]
    spans = [
        make_span(**({"stage": "process", "unit_id": f"{n}{m}", "at": (0, 1, 1, 2, 2)} | place), **batch)
        for n, place in enumerate(places)
        for m in "ab"
    ]
    picture, _ = draw(folder.run(*spans))
    assert sorted(tuple(sorted(one.arguments["items"])) for one in picture.of("service")) == [
        ("0a", "0b"), ("1a", "1b"), ("2a", "2b"), ("3a", "3b"),
    ]  # fmt: skip


def test_blocked_ends_when_the_worker_begins_again(folder: Folder, draw: Draw) -> None:
    """A device whose results are handed on beside it is blocked no longer than until its next batch."""
    spans = [make_span("process", "a", (0, 0, 0, 10, 18)), make_span("process", "b", (0, 13, 14, 20, 20))]
    picture, _ = draw(folder.run(*spans))
    assert [(one.begin, one.end) for one in picture.of("blocked")] == [(10 * MS, 14 * MS)]
    assert [one.arguments["blocked_ms"] for one in picture.of("service")] == [8.0, 0.0]


def test_items_taken_together_are_handed_on_together(folder: Folder, draw: Draw) -> None:
    """A worker that took two items is blocked once, after the second, however long the first one's result lay there."""
    spans = [
        make_span("decode", "a", (0, 0, 0, 10, 30)),
        make_span("resize", "a", (10, 10, 10, 11, 40), thread="decode-0"),
        make_span("decode", "b", (0, 0, 12, 20, 20)),
        make_span("resize", "b", (20, 20, 20, 25, 35), thread="decode-0"),
        make_span("decode", "c", (0, 41, 50, 60, 60)),
    ]
    picture, _ = draw(folder.run(*spans))
    assert [(one.begin, one.end) for one in picture.of("blocked")] == [(25 * MS, 40 * MS)]


def test_waits_at_once_have_rows_beside_each_other(folder: Folder, draw: Draw) -> None:
    """A queue has as many rows as items waited at once, and rows are used again."""
    waits = [(0, 10), (1, 11), (2, 12), (10, 13), (12, 14)]
    spans = [
        make_span("decode", f"i{n}", (a, d, 20 + n, 21 + n, 21 + n), thread=f"decode-{n}")
        for n, (a, d) in enumerate(waits)
    ]
    picture, _ = draw(folder.run(*spans))
    queue = picture.of("queue")
    assert len(queue) == 5
    assert {one.track for one in queue} == {"decode queue"}
    assert len({one.lane for one in queue}) == 3


def test_waits_too_short_to_see_are_in_the_arguments(folder: Folder, draw: Draw) -> None:
    """Some microseconds in a queue are no slice; the service tells them."""
    picture, _ = draw(folder.run(make_span("decode", at=(0, 0.002, 0.002, 1, 1.003))))
    assert not picture.of("queue")
    assert not picture.of("blocked")
    [service] = picture.of("service")
    assert (service.arguments["queue_wait_ms"], service.arguments["blocked_ms"]) == (0.002, 0.003)


def test_arrows_lead_from_the_parent_through_its_children_to_the_join(folder: Folder, draw: Draw) -> None:
    """A child's arrow starts where it was cut from its parent and ends where its parent goes on."""
    spans = [
        make_span("fetch", "p", (0, 0, 0, 1, 1)),
        make_span("cut", "p", (1, 1, 2, 3, 3)),
        make_span("look", "p/0", (3, 3, 3, 5, 5), parent_id="p", thread="look-0"),
        make_span("look", "p/1", (3, 3, 3, 6, 6), parent_id="p", thread="look-1"),
        make_span("name", "p/0", (5, 5, 5, 7, 7), parent_id="p"),
        make_span("join", "p", (7, 8, 8, 9, 9)),
        make_span("deliver", "p", (9, 9, 9, 10, 10)),
    ]
    picture, _ = draw(folder.run(*spans))
    assert picture.ways() == [
        ["cut", "look", "join"],
        ["cut", "look", "name", "join"],
        ["fetch", "cut", "join", "deliver"],
    ]


@pytest.mark.parametrize(
    ("present", "ways"),
    [(["cut"], [["cut", "look"]]), (["join"], [["look", "join"]]), ([], [])],
    ids=["failed before the join", "cut not recorded", "alone"],
)
def test_a_family_that_is_not_whole(folder: Folder, draw: Draw, present: list[str], ways: list[list[str]]) -> None:
    """Where the parent has no row before or after its child, the child's arrow is that much shorter."""
    parent = {"cut": (0, 0, 0, 1, 1), "join": (5, 5, 5, 6, 6)}
    spans = [make_span(name, "p", parent[name]) for name in present]
    picture, summary = draw(folder.run(*spans, make_span("look", "p/0", (2, 2, 2, 3, 3), parent_id="p")))
    assert picture.ways() == ways
    assert summary.num_items_total == 1


def test_attempts_are_followed_one_by_one(folder: Folder, draw: Draw) -> None:
    """Two deliveries of one job have an arrow each: they may overlap in time."""
    spans = [
        make_span(name, "a", (at, at, at, at + 1, at + 1), attempt=attempt, thread=f"{name}-{attempt}")
        for attempt, at, name in [(1, 0, "x"), (1, 4, "y"), (2, 2, "x"), (2, 6, "y")]
    ]
    picture, summary = draw(folder.run(*spans))
    assert picture.ways() == [["x", "y"]] * 2
    assert {tuple(one.arguments["attempt"] for one in way) for way in picture.arrows.values()} == {(1, 1), (2, 2)}
    assert summary.num_items == 1


def test_clock_offsets_bring_hosts_onto_one_clock(folder: Folder, draw: Draw) -> None:
    """Spans of another host are moved by its offset, and the first arrival after that is time zero."""
    run = folder.run(
        make_span("x", at=(1000, 1000, 1000, 1001, 1001)),
        make_span("y", at=(2, 2, 2, 3, 3), host="g"),
        clock_offsets_ns={"h": 0, "g": 1000 * MS},
    )
    picture, summary = draw(run)
    assert [(one.name, one.begin, one.process) for one in picture.of("service")] == [
        ("x", 0, "process 7 on h"),
        ("y", 2 * MS, "process 7 on g"),
    ]
    assert not any("clock" in note for note in summary.notes)


def test_what_did_not_succeed_stands_out(folder: Folder, draw: Draw) -> None:
    """A failed or rejected service has a category and a name of its own, so that viewers colour it differently."""
    spans = [make_span("x", outcome, (n, n, n, n + 1, n + 1), outcome=outcome)
             for n, outcome in enumerate(["ok", "failed", "rejected"])]  # fmt: skip
    picture, _ = draw(folder.run(*spans))
    assert [(one.name, one.category) for one in sorted(picture.slices, key=lambda one: one.begin)] == [
        ("x", "service"),
        ("x failed", "service,failed"),
        ("x rejected", "service,rejected"),
    ]


def test_tracks_stand_in_the_order_of_the_stages(folder: Folder, tmp_path: Path) -> None:
    """Workers are sorted as an item meets their stages, and 2 before 10."""
    workers = ["zeta-0", "zeta-2", "zeta-10", "alpha-0"]
    stages = [
        StageInfo(
            name=name,
            kind="cpu",
            role="map",
            releases_gil=True,
            executor="thread",
            station=name,
            workers=1,
            queue_capacity=1,
        )
        for name in ("zeta", "alpha")
    ]
    spans = [make_span(name.split("-")[0], name, thread=name) for name in reversed(workers)]
    write_chrome_trace(folder.run(*spans, stages=stages), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_bytes())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    order = {event["tid"]: event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"}
    assert [names[tid] for tid in sorted(order, key=lambda tid: order[tid])] == workers


def test_counters_of_resources(folder: Folder, draw: Draw) -> None:
    """Resources are counters since the first arrival; what was measured before that is left out."""
    writer = ResourceWriter(folder.folder.path, "test")
    for time in (90, 100, 350):
        writer.write(time * MS, {"machine": {"cpu_busy_cores": time / 100}, "stage:decode": {"queue_depth": 3.0}})
    writer.close()
    assert seal(folder.folder.path) == []
    picture, _ = draw(folder.run(make_span("decode", at=(100, 100, 100, 200, 200))))
    assert sorted(picture.samples) == [
        ("machine cpu_busy_cores", 0, 1.0),
        ("machine cpu_busy_cores", 250 * MS, 3.5),
        ("stage:decode queue_depth", 0, 3.0),
        ("stage:decode queue_depth", 250 * MS, 3.0),
    ]


def cut(value: int) -> hr.Fan:
    """Cut an item into two."""
    return hr.Fan([value, value], value)


@pytest.mark.parametrize("executors", [{}, {"add": "inline"}], ids=["threads", "fused"])
def test_a_real_run(tmp_path: Path, draw: Draw, executors: dict[str, str]) -> None:
    """What the runtime writes is drawn whole: every item's way, every batch once, no worker in two places at once."""
    pipeline = hr.Pipeline(
        source=ListSource(list(range(60))),
        stages=[
            hr.stage("add", lambda value: value + 1),
            hr.fan_out("cut", cut),
            hr.stage("look", np.sqrt),
            hr.join("gather", lambda joined: joined),
            hr.stage("array", lambda joined: np.zeros(3)),
            FunctionStage("device", np.abs, kind="device"),
        ],
        delivery=hr.collect(),
    )
    settings = ["device.batch=8", "look.workers=2", *(f"{name}.executor={value}" for name, value in executors.items())]
    hr.run(pipeline, hr.Plan().with_settings(settings), output=tmp_path / "run")
    run = read_run(tmp_path / "run")
    picture, summary = draw(run)
    chain = ["add", "cut", "gather", "array", "device", "deliver"]
    assert Counter(map(tuple, picture.ways())) == {tuple(chain): 60, ("cut", "look", "gather"): 120}
    assert summary.num_items == 60
    batches = [one for one in picture.of("service") if one.name == "device"]
    assert sum(one.arguments["batch_size"] for one in batches) == 60
    assert all(len(one.arguments["items"]) == one.arguments["batch_size"] for one in batches)
    assert len({one.lane for one in picture.of("service")}) == len(
        {(one.process, one.track) for one in picture.of("service")}
    )


# --- what is left out, and what is wrong


def many(num_items: int, children: int = 0) -> Iterator[Span]:
    """Yield spans of items that come one a millisecond."""
    for n in range(num_items):
        yield make_span("x", f"job-{n}", (n, n, n, n + 1, n + 1))
        for child in range(children):
            at = n + 1 + child / 10
            yield make_span("y", f"job-{n}/{child}", (at, at, at, at + 0.1, at + 0.1), parent_id=f"job-{n}")


@pytest.mark.parametrize(("limit", "num_stretches"), [(100, 5), (1, 1), (39, 1), (41, 2), (499, 20), (999, 20)])
def test_a_limit_shows_stretches_of_neighbours(folder: Folder, draw: Draw, limit: int, num_stretches: int) -> None:
    """So many items are shown, in stretches from the first to the last item, and trace and summary say so."""
    picture, summary = draw(folder.run(*many(1000)), max_items=limit)
    shown = [int(one.arguments["item"].removeprefix("job-")) for one in picture.of("service")]
    assert len(shown) == len(set(shown)) == limit == summary.num_items == summary.num_spans
    assert summary.num_items_total == summary.num_spans_total == 1000
    stretches = picture.of("shown")
    assert len(stretches) == num_stretches
    assert sum(after - before > 1 for before, after in itertools.pairwise(shown)) <= num_stretches - 1
    assert shown[0] == 0
    assert num_stretches == 1 or shown[-1] == 999
    assert stretches[0].begin == 0
    [note] = [note for note in summary.notes if "are shown" in note]
    assert note.startswith(f"{limit:,} of 1,000 items")
    assert note in picture.text


def test_the_last_stretch_says_which_items(folder: Folder, draw: Draw) -> None:
    """Stretches are named by their first and last item, counted from 1, and last as long as their items."""
    picture, _ = draw(folder.run(*many(1000)), max_items=40)
    assert [(one.name, one.begin, one.end) for one in picture.of("shown")] == [
        ("items 1 to 20 of 1,000", 0, 20 * MS),
        ("items 981 to 1,000 of 1,000", 980 * MS, 1000 * MS),
    ]


def test_children_are_shown_with_their_parent(folder: Folder, draw: Draw) -> None:
    """A limit counts jobs; what was cut from them comes along."""
    picture, summary = draw(folder.run(*many(100, children=3)), max_items=10)
    assert (summary.num_items, summary.num_items_total, summary.num_spans) == (10, 100, 40)
    assert sum(one.name == "y" for one in picture.of("service")) == 30


def test_everything_is_shown_on_request(folder: Folder, draw: Draw) -> None:
    """With max_items=None nothing is left out, and nothing says so."""
    picture, summary = draw(folder.run(*many(3000)), max_items=None)
    assert summary.num_items == len(picture.of("service")) == 3000
    assert not any("are shown" in note for note in summary.notes)
    _, summary = draw(folder.run(*many(3000)))
    assert summary.num_items == 2000


def test_a_run_without_spans_is_an_empty_trace(folder: Folder, draw: Draw) -> None:
    """Nothing measured is a valid trace of nothing."""
    picture, summary = draw(folder.run())
    assert not picture.slices
    assert (summary.num_items, summary.num_items_total) == (0, 0)


def test_an_unknown_clock_is_told(folder: Folder, draw: Draw) -> None:
    """A host without an offset is named; its spans are drawn as its own clock gave them."""
    picture, summary = draw(folder.run(make_span("x"), make_span("y", host="stranger")))
    assert len(picture.of("service")) == 2
    assert any("stranger" in note for note in summary.notes)


def test_times_that_run_backwards_are_told(folder: Folder, draw: Draw) -> None:
    """A span that ends before it begins is drawn as short as can be, and counted."""
    picture, summary = draw(folder.run(make_span("x", at=(0, 1, 5, 3, 3))))
    [service] = picture.of("service")
    assert (service.begin, service.end) == (5 * MS, 5 * MS + 1)
    assert any(note.startswith("1 spans end before they begin") for note in summary.notes)


def test_overlap_on_one_worker_gets_a_track_of_its_own(folder: Folder, draw: Draw) -> None:
    """Slices that a wrong clock makes overlap are drawn beside each other, under the worker's name."""
    spans = [make_span("x", f"{n}", (n, n, n, n + 5, n + 5)) for n in range(3)]
    picture, _ = draw(folder.run(*spans))
    assert len({one.lane for one in picture.of("service")}) == 3
    assert all(one.track.startswith("x-0") for one in picture.of("service"))


def test_parents_in_a_circle_end(folder: Folder, draw: Draw) -> None:
    """Damaged parents, even their own, neither hang nor fail."""
    spans = [make_span("x", "a", parent_id="b"), make_span("x", "b", parent_id="a"), make_span("x", "c", parent_id="c")]
    picture, _ = draw(folder.run(*spans), max_items=2)
    assert picture.slices


def test_what_was_not_measured_is_left_out_and_said(folder: Folder, draw: Draw) -> None:
    """Without CPU times no argument tells one, and neither is it 0; the notes say why."""
    picture, summary = draw(folder.run(make_span("x")))
    assert not {"cpu_ms", "run_delay_ms"} & set(picture.slices[0].arguments)
    assert any("CPU time and run delay were not measured" in note for note in summary.notes)
    assert any("resources were not measured" in note for note in summary.notes)
    _, summary = draw(folder.run(make_span("x", cpu=0, run_delay=0)))
    assert not any("CPU time" in note for note in summary.notes)


TEXTS = ['"', "\\", "a\nb", "\x00\x1f", "</script>", "é 猫 🐈", "\u2028", "", "x" * 5000]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_any_id_is_written_and_read_back(folder: Folder, draw: Draw, text: str) -> None:
    """Ids and names may hold whatever text can."""
    picture, _ = draw(folder.run(make_span(text, text, thread=text, shape_key=text), make_span("b", batch_id=1)))
    [one] = [one for one in picture.of("service") if one.arguments.get("item") == text]
    assert one.name == text
    assert one.arguments["shape_key"] == text
    assert one.track == text


@pytest.mark.parametrize("form", FORMATS)
def test_compressed_is_the_same(folder: Folder, tmp_path: Path, form: str) -> None:
    """A name that ends in .gz compresses; the same run gives the same file again, and leaves nothing else behind."""
    write, _, name = FORMATS[form]
    run = folder.run(*many(50))
    out = tmp_path / "out"
    out.mkdir()
    for file in ("first.gz", "second.gz", name):
        write(run, out / file)
    first, second, plain = ((out / file).read_bytes() for file in ("first.gz", "second.gz", name))
    assert first == second
    assert gzip.decompress(first) == plain
    assert len(list(out.iterdir())) == 3


@pytest.mark.parametrize("form", FORMATS)
def test_a_place_that_cannot_be_written(folder: Folder, tmp_path: Path, form: str) -> None:
    """A missing folder is a clear error."""
    with pytest.raises(RunFolderError, match="cannot be written"):
        FORMATS[form][0](folder.run(), tmp_path / "missing" / "trace")


def test_without_the_package_the_extra_is_named(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Perfetto's own format needs an extra, and the error says which."""
    monkeypatch.setitem(sys.modules, proto.__name__.rpartition(".")[0], None)
    with pytest.raises(MissingExtra, match=r"pip install 'headrace\[perfetto\]'"):
        write_perfetto_trace(folder.run(), tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_a_limit_of_nothing_is_refused(folder: Folder, tmp_path: Path, form: str) -> None:
    """Zero items is a mistake, and the file that was there is left alone."""
    (tmp_path / "trace").write_text("before")
    with pytest.raises(ValueError, match="max_items is 0"):
        FORMATS[form][0](folder.run(), tmp_path / "trace", max_items=0)
    assert (tmp_path / "trace").read_text() == "before"


# --- whatever the table holds

few = st.integers(0, 2)
ids = st.sampled_from(["a", "b", "c", "a/0", "a/1", "b/0", 'q"\n'])
times = st.lists(st.integers(0, 60), min_size=5, max_size=5)


@st.composite
def random_spans(draw: st.DrawFn) -> Span:
    """Any span, with times in order or not."""
    at = draw(times)
    if draw(st.booleans()):
        at = sorted(at)
    batch = draw(st.none() | st.integers(1, 2))
    return make_span(
        draw(st.sampled_from(["x", "y", "z"])),
        draw(ids),
        tuple(value * draw(st.sampled_from([0.001, 1])) for value in at),  # type: ignore[arg-type]
        parent_id=draw(st.none() | ids),
        host=draw(st.sampled_from("hg")),
        process=draw(few),
        thread=draw(st.sampled_from(["x-0", "y-0"])),
        attempt=draw(st.integers(1, 2)),
        outcome=draw(st.sampled_from(["ok", "failed"])),
        batch_id=batch,
        batch_size=batch and 2,
        weight=draw(st.integers(1, 2)),
        cpu=draw(st.none() | st.integers(0, 5)),
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A run folder that all examples use, one after another."""
    return Folder(tmp_path_factory.mktemp("random") / "run")


@pytest.mark.full
@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans=st.lists(random_spans(), max_size=14), limit=st.none() | st.integers(1, 3))
def test_any_table_makes_a_valid_trace(
    shared: Folder, tmp_path: Path, form: str, spans: list[Span], limit: int | None
) -> None:
    """The rules of the format hold whatever the spans say, and no item that is to be shown is lost."""
    write, read, name = FORMATS[form]
    summary = write(shared.run(*spans), tmp_path / name, max_items=limit)
    picture = read((tmp_path / name).read_bytes())
    by_lane = defaultdict(list)
    for one in picture.slices:
        by_lane[one.lane].append((one.begin, one.end))
    for intervals in by_lane.values():
        intervals.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(intervals))
    services = [one for one in picture.slices if one.category.startswith("service")]
    drawn = [item for one in services for item in one.arguments.get("items", [one.arguments.get("item")])]
    assert len(drawn) == summary.num_spans
    assert summary.num_flows == len(picture.arrows)
    if limit is None:
        assert sorted(drawn) == sorted(span.unit_id for span in spans)
    for way in picture.arrows.values():
        assert all(before.begin < after.begin for before, after in itertools.pairwise(way))

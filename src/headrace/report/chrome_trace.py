"""A run's timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

How this works: events are made from slices a few thousand at a time and written as they come, one a line.

References:
    Trace Event Format, Google, 2016: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.documents import encode_document, plain
from headrace.report.timeline import MAX_ITEMS, Sample, Slice, Timeline
from headrace.report.trace_file import TraceSummary, about, chunks, summary, trace_file
from headrace.runs.reader import Run


def write_chrome_trace(run: Run, path: str | Path, *, max_items: int | None = MAX_ITEMS) -> TraceSummary:
    """Write a run's timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

    Times in the file are microseconds since the first arrival. An existing file is replaced, once the new one is complete.

    Args:
        run: What to draw.
        path: File to write; compressed when its name ends in `.gz`.
        max_items: Jobs to show, in stretches of neighbours spread over the run; None for all.

    Raises:
        RunFolderError: If the file cannot be written.
        ValueError: If max_items is below 1.
    """
    timeline = Timeline(run, max_items)
    num_samples = 0
    with trace_file(Path(path)) as file:
        file.write(b'{"displayTimeUnit":"ms","otherData":' + encode_document(about(run, timeline)))
        file.write(b',"traceEvents":[\n' + _join(_make_naming_events(timeline)))
        for chunk in chunks(timeline.slices()):
            file.write(b",\n" + _join([event for one in chunk for event in _slice_events(timeline, one)]))
        for samples in chunks(timeline.samples()):
            num_samples += len(samples)
            file.write(b",\n" + _join([_sample_event(timeline, sample) for sample in samples]))
        file.write(b"\n]}\n")
    return summary(Path(path), timeline, num_samples)


def _join(events: list[dict[str, Any]]) -> bytes:
    """Return events as JSON, one a line, with commas between."""
    return (
        msgspec.json.Encoder(enc_hook=plain).encode_lines(events).rstrip(b"\n").replace(b"\n", b",\n")
    )  # JSON escapes inner ones


def _make_naming_events(timeline: Timeline) -> list[dict[str, Any]]:
    """Return what gives processes and threads their names and order."""
    events = []
    for order, (number, name) in enumerate(timeline.processes.items()):
        events += _meta(number, 0, "process", name, order)
    for track in timeline.tracks.values():
        if not track.is_queue:  # the waits there are asynchronous events, which bring their names
            name = track.name if not track.lane else f"{track.name} ({track.lane + 1})"
            events += _meta(track.process, track.number, "thread", name, track.order)
    return events


def _meta(process: int, thread: int, what: str, name: str, order: int) -> list[dict[str, Any]]:
    ids = {"ph": "M", "pid": process, "tid": thread}
    return [
        {"name": f"{what}_name", **ids, "args": {"name": name}},
        {"name": f"{what}_sort_index", **ids, "args": {"sort_index": order}},
    ]


#: Colours of the older viewer; Perfetto colours by name, and the names of such slices differ too.
_COLOURS = {"service,failed": "terrible", "service,rejected": "bad", "blocked": "grey"}


def _slice_events(timeline: Timeline, one: Slice) -> Iterator[dict[str, Any]]:
    track = timeline.tracks[one.track]
    common = {"name": one.name, "cat": one.category, "pid": track.process}
    if track.is_queue:
        # One id for each lane: waits of one lane do not overlap, and viewers put each id into a row of its own.
        common["id"] = hex(track.number)
        common["tid"] = 0
        yield {"ph": "b", "ts": one.begin / 1e3, **common, "args": one.arguments}
        yield {"ph": "e", "ts": one.end / 1e3, **common}
        return
    common["tid"] = track.number
    event = {"ph": "X", "ts": one.begin / 1e3, "dur": (one.end - one.begin) / 1e3, **common, "args": one.arguments}
    if one.category in _COLOURS:
        event["cname"] = _COLOURS[one.category]
    yield event
    for flow in one.flows:
        arrow = {"ph": flow.phase, "ts": one.begin / 1e3, "id": flow.number, "name": "item", "cat": "item"}
        if flow.phase == "f":
            arrow["bp"] = "e"  # into the slice around it, not into the next one
        yield {**arrow, "pid": track.process, "tid": track.number}


def _sample_event(timeline: Timeline, sample: Sample) -> dict[str, Any]:
    ids = {"pid": timeline.resources_process, "tid": 0}
    return {"ph": "C", "ts": sample.at / 1e3, "name": sample.counter, **ids, "args": {"value": sample.value}}

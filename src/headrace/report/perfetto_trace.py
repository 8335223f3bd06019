"""A run's timeline in Perfetto's own format: smaller than Chrome's JSON, and faster to open.

How this works: all packets are of one sequence. Its first one clears the state; names and the keys of arguments are interned
when they come up first; every track is described before its first event. Events stand in the order of time, an end before a
beginning of the same nanosecond, so that a track is never entered twice. Packets are serialized a few thousand at a time:
`Trace` is a repeated field, and parts of one written one after another are one trace.

References:
    Perfetto documentation, "Converting arbitrary timestamped data to Perfetto": https://perfetto.dev/docs/getting-started/converting;
    protos/perfetto/trace/track_event/track_event.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import MissingExtra
from headrace.report.timeline import MAX_ITEMS, Sample, Slice, Timeline, Track
from headrace.report.trace_file import TraceSummary, about, chunks, summary, trace_file
from headrace.runs.reader import Run

_SEQUENCE = 1


def write_perfetto_trace(run: Run, path: str | Path, *, max_items: int | None = MAX_ITEMS) -> TraceSummary:
    """Write a run's timeline as a Perfetto trace, which ui.perfetto.dev opens.

    Times in the file are nanoseconds since the first arrival. An existing file is replaced, once the new one is complete.

    Args:
        run: What to draw.
        path: File to write, by custom `*.pftrace`; compressed when its name ends in `.gz`.
        max_items: Jobs to show, in stretches of neighbours spread over the run; None for all.

    Raises:
        MissingExtra: If the package `perfetto` is not installed.
        RunFolderError: If the file cannot be written.
        ValueError: If max_items is below 1.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
    except ImportError as error:
        raise MissingExtra("a trace in Perfetto's own format", "perfetto") from error
    timeline = Timeline(run, max_items)
    writer = _Writer(proto, timeline)
    num_samples = 0
    with trace_file(Path(path)) as file:
        writer.describe(about(run, timeline))
        file.write(writer.serialize())
        for moments in chunks(_moments(timeline)):
            for at, track, begun in moments:
                writer.event(at, track, begun)
            file.write(writer.serialize())
        for samples in chunks(timeline.samples()):
            num_samples += len(samples)
            for sample in samples:
                writer.sample(sample)
            file.write(writer.serialize())
    return summary(Path(path), timeline, num_samples)


def _moments(timeline: Timeline) -> Iterator[tuple[int, int, Slice | None]]:
    """Yield (time, track, slice that begins; None where one ends) in the order of time, ends before beginnings."""
    times = np.concatenate([timeline.end, timeline.begin])
    tracks = np.concatenate([timeline.track, timeline.track])
    num_slices = len(timeline.end)
    begun = timeline.slices()
    # Stable: ends stand first, and beginnings keep the order in which `slices` yields them.
    order = np.argsort(times, kind="stable")
    for first in range(0, len(order), num_at_once := 4096):
        part = order[first : first + num_at_once]
        for index, at, track in zip(part.tolist(), times[part].tolist(), tracks[part].tolist(), strict=True):
            yield at, track, next(begun) if index >= num_slices else None


class _Writer:
    """Makes packets.

    Args:
        proto: Perfetto's generated module.
        timeline: What is written.
    """

    def __init__(self, proto: Any, timeline: Timeline) -> None:
        self._proto = proto
        self._timeline = timeline
        self._trace = proto.Trace()
        self._interned: dict[tuple[str, str], int] = {}
        self._counters: dict[str, int] = {}
        self._begins = proto.TrackEvent.TYPE_SLICE_BEGIN
        self._ends = proto.TrackEvent.TYPE_SLICE_END
        self._needs_state = proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE

    def serialize(self) -> bytes:
        """Return the packets made since the last call."""
        content: bytes = self._trace.SerializeToString()
        self._trace = self._proto.Trace()
        return content

    def describe(self, facts: dict[str, Any]) -> None:
        """Write what the trace is about, its processes and its tracks."""
        packet = self._packet()
        packet.sequence_flags = self._proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.first_packet_on_sequence = True
        for order, (number, name) in enumerate(self._timeline.processes.items()):
            descriptor = self._packet().track_descriptor
            descriptor.uuid = number
            descriptor.process.pid = number
            descriptor.process.process_name = name
            descriptor.process.legacy_sort_index = order
            descriptor.child_ordering = self._proto.TrackDescriptor.EXPLICIT
            if order == 0:
                descriptor.description = "\n".join(f"{key}: {value}" for key, value in facts.items())
        main: dict[tuple[int, str], int] = {}
        for track in self._timeline.tracks.values():
            self._describe_track(track, main.setdefault((track.process, track.name), track.number))

    def event(self, at: int, track: int, begun: Slice | None) -> None:
        """Write that a slice begins, or that the one that is open on the track ends."""
        packet = self._packet(at)
        event = packet.track_event
        event.track_uuid = track
        if begun is None:
            event.type = self._ends
            return
        packet.sequence_flags = self._needs_state
        event.type = self._begins
        event.name_iid = self._intern(packet, "event_names", begun.name)
        for category in begun.category.split(","):
            event.category_iids.append(self._intern(packet, "event_categories", category))
        for flow in begun.flows:
            (event.terminating_flow_ids if flow.phase == "f" else event.flow_ids).append(flow.number)
        for name, value in begun.arguments.items():
            annotation = event.debug_annotations.add()
            annotation.name_iid = self._intern(packet, "debug_annotation_names", name)
            _set_value(annotation, value)

    def sample(self, sample: Sample) -> None:
        """Write one value of a counter."""
        number = self._counters.get(sample.counter)
        if number is None:
            number = self._counters[sample.counter] = self._timeline.new_number()
            descriptor = self._packet().track_descriptor
            descriptor.uuid = number
            descriptor.parent_uuid = self._timeline.resources_process
            descriptor.name = sample.counter
            descriptor.counter.SetInParent()
        event = self._packet(sample.at).track_event
        event.type = self._proto.TrackEvent.TYPE_COUNTER
        event.track_uuid = number
        event.double_counter_value = sample.value

    def _packet(self, at: int | None = None) -> Any:
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        if at is not None:
            packet.timestamp = at
        return packet

    def _describe_track(self, track: Track, main: int) -> None:
        descriptor = self._packet().track_descriptor
        descriptor.uuid = track.number
        descriptor.sibling_order_rank = track.order
        if track.is_queue or track.number != main:
            # Tracks of one name under one parent are drawn as one, as high as it needs to be.
            descriptor.parent_uuid = track.process if track.is_queue else main
            descriptor.name = track.name
        else:
            descriptor.thread.pid = track.process
            descriptor.thread.tid = track.number
            descriptor.thread.thread_name = track.name
            descriptor.thread.legacy_sort_index = track.order

    def _intern(self, packet: Any, kind: str, text: str) -> int:
        number = self._interned.get((kind, text))
        if number is None:
            number = self._interned[kind, text] = len(self._interned) + 1
            entry = getattr(packet.interned_data, kind).add()
            entry.iid = number
            entry.name = text
        return number


def _set_value(annotation: Any, value: Any) -> None:
    if isinstance(value, str):
        annotation.string_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    else:
        for member in value:
            _set_value(annotation.array_values.add(), member)

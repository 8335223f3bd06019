"""The part of a training's page on what its trace of torch.profiler says besides the steps."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.report.markup import Html, note, table
from headrace.report.numbers import digits, ratio, seconds
from headrace.report.section import Section
from headrace.runs.formats.training_trace import DeviceTime, TracedCall, TraceRecord


def trace_section(trace: TraceRecord | None) -> Section | None:
    """Return what the device did, where the host waited for it, and the dearest calls; None where there was no trace."""
    if trace is None:
        return None
    parts: list[Html] = [note(f"From {', '.join(trace.files[:4])}: {trace.num_events:,} events.")]
    parts += [
        table(["the device", "mean", "of step"], _device(device), caption=f"{device.device}, in a step")
        for device in trace.devices
    ]
    if trace.syncs:
        rows: list[Sequence[str | Html | None]] = [
            [
                one.place or one.operator or one.call,
                one.call,
                digits(one.count),
                seconds(one.seconds),
                seconds(one.idle_seconds),
            ]
            for one in trace.syncs
        ]
        head = ["where", "call", "in a step", "the host waits", "the device is then idle"]
        parts.append(table(head, rows, caption="Where the host waits for the device"))
    for caption, calls in (("Kernels", trace.kernels), ("Operators on the host", trace.operators)):
        if calls:
            parts.append(table(["name", "in a step", "of a step"], _calls(calls), caption=caption))
    return Section(anchor="trace", title="In the trace", parts=parts)


def _device(device: DeviceTime) -> list[Sequence[str | Html | None]]:
    idle = sorted(device.idle_seconds.items(), key=lambda pair: -pair[1])
    rows = [
        ("computes", device.compute_seconds),
        ("communicates, computing nothing", device.exposed_communication_seconds),
        ("copies from or to the host, and nothing else", device.exposed_transfer_seconds),
        ("has launched work, which does not run", device.queued_seconds),
        *((f"is idle, the host in {phase}", value) for phase, value in idle),
        ("is idle behind a call that waited for it", device.idle_after_sync_seconds),
    ]
    return [[what, seconds(value), ratio(value / device.step_seconds)] for what, value in rows if value]


def _calls(calls: Sequence[TracedCall]) -> list[Sequence[str | Html | None]]:
    return [[one.name, digits(one.count), seconds(one.seconds)] for one in calls]

"""What a trace says of a training besides its steps, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, pluralize, wrap_lines
from headrace.base.units import format_duration

if TYPE_CHECKING:
    from headrace.runs.formats.training_trace import DeviceTime, TracedCall, TracedSync, TraceRecord

#: Calls of each list.
_SHOWN = 5
_LETTERS = 44


def trace_text(trace: TraceRecord) -> list[list[str]]:
    """Return the paragraphs."""
    return [
        wrap_lines([_head(trace)]),
        *(_device(one) for one in trace.devices),
        _syncs(trace.syncs),
        _calls("kernel", trace.kernels),
        _calls("operator on the host", trace.operators),
    ]


def _head(trace: TraceRecord) -> str:
    return (
        f"Read from {pluralize(len(trace.files), 'trace')}: {trace.num_events:,} events, {trace.num_bytes / 1e6:.1f} MB of JSON"
        + ("" if trace.devices else "; no work of a device is in it")
    )


def _device(device: DeviceTime) -> list[str]:
    rows = [
        ("computes", device.compute_seconds),
        ("communicates, computing nothing", device.exposed_communication_seconds),
        ("copies from or to the host, and nothing else", device.exposed_transfer_seconds),
        ("has launched work, which does not run", device.queued_seconds),
        *((f"is idle, the host in {phase}", value) for phase, value in _largest(device.idle_seconds)),
        ("is idle behind a call that waited for it", device.idle_after_sync_seconds),
    ]
    table = [(what, format_duration(value), f"{value / device.step_seconds:.1%}") for what, value in rows if value]
    says = (
        f"{device.device}: a step lasts {format_duration(device.step_seconds)} there ({pluralize(device.steps, 'step')}); "
        f"{device.kernels:,.0f} kernels of {format_duration(device.kernel_seconds)} on average"
    )
    if device.launch_seconds:
        interval = format_duration(device.launch_seconds)
        says += f", and the host launches one every {interval} ({device.short_share:.0%} are shorter)"
    return [*wrap_lines([says]), *align_columns([("the device", "mean", "of step"), *table])]


def _largest(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda pair: -pair[1])


def _syncs(syncs: Sequence[TracedSync]) -> list[str]:
    if not syncs:
        return []
    rows = [
        (_cut(one.place or one.operator or one.call), f"{one.count:.3g}", format_duration(one.seconds),
         format_duration(one.idle_seconds))
        for one in syncs[:_SHOWN]
    ]  # fmt: skip
    return align_columns([("waits for the device in", "a step", "host waits", "then idle"), *rows])


def _calls(what: str, calls: Sequence[TracedCall]) -> list[str]:
    rows = [(_cut(one.name), f"{one.count:.4g}", format_duration(one.seconds)) for one in calls[:_SHOWN]]
    return align_columns([(what, "a step", "of a step"), *rows]) if rows else []


def _cut(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 3]}..."

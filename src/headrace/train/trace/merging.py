"""Joins the records of several traces of one process: means of all their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.runs.formats.training_trace import DeviceTime, TracedCall, TracedSync, TraceRecord

_MOST = 10


def merge_records(records: Sequence[TraceRecord]) -> TraceRecord:
    """Return one record of several traces of a process."""
    if len(records) == 1:
        return records[0]
    weights = [one.steps for one in records]
    return TraceRecord(
        files=tuple(file for one in records for file in one.files),
        num_events=sum(one.num_events for one in records),
        num_bytes=sum(one.num_bytes for one in records),
        steps=sum(weights),
        devices=_merge([(each.steps, each) for one in records for each in one.devices], _device_key, by=_step_seconds),
        kernels=_calls(records, "kernels"),
        operators=_calls(records, "operators"),
        syncs=_calls(records, "syncs"),
        has_stacks=any(one.has_stacks for one in records),
        problems=tuple(text for one in records for text in one.problems),
    )


def _calls(records: Sequence[TraceRecord], name: str) -> Any:
    rows = [(one.steps, each) for one in records for each in getattr(one, name)]
    total = sum(one.steps for one in records)
    return _merge(rows, _call_key, by=_seconds, total=total)[:_MOST]


def _call_key(one: TracedCall | TracedSync) -> tuple[str, ...]:
    return (one.name,) if isinstance(one, TracedCall) else (one.call, one.operator, one.place)


def _device_key(one: DeviceTime) -> tuple[str, ...]:
    return (one.device,)


def _seconds(one: TracedCall | TracedSync) -> float:
    return one.seconds + (one.idle_seconds if isinstance(one, TracedSync) else 0.0)


def _step_seconds(one: DeviceTime) -> float:
    return one.step_seconds


def _merge(rows: list[tuple[int, Any]], key: Any, *, by: Any, total: int | None = None) -> tuple[Any, ...]:
    """Return rows of one key as one, each figure the mean over their steps, or over those of all rows of every key."""
    groups: dict[tuple[str, ...], list[tuple[int, Any]]] = {}
    for weight, one in rows:
        groups.setdefault(key(one), []).append((weight, one))
    merged = [_mean(group, total) for group in groups.values()]
    return tuple(sorted(merged, key=by, reverse=True))


def _mean(group: list[tuple[int, Any]], total: int | None) -> Any:
    whole = total or sum(weight for weight, _ in group) or 1
    first: Any = group[0][1]
    changes: dict[str, Any] = {}
    for name in first.__struct_fields__:
        values = [(weight, getattr(one, name)) for weight, one in group]
        if name == "steps":
            changes[name] = sum(weight for weight, _ in group)
        elif isinstance(values[0][1], float):
            changes[name] = sum(weight * value for weight, value in values) / whole
        elif isinstance(values[0][1], dict):
            keys = {each for _, value in values for each in value}
            changes[name] = {
                each: sum(weight * value.get(each, 0.0) for weight, value in values) / whole for each in keys
            }
    return msgspec.structs.replace(first, **changes)

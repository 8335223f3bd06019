"""Makes one line, and one window, of what the processes of one run wrote."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.monitor.history.moments import add_windows
from headrace.runs.formats.history import HistoryLine, HistoryWindow, StageWindow


def merge_lines(lines: Sequence[HistoryLine]) -> HistoryLine:
    """Return one line of those of a run's processes: sums of what they did, and what the largest of them says otherwise."""
    if len(lines) == 1:
        return lines[0]
    main = max(lines, key=lambda line: line.delivered)
    ends = [line.ended_unix_seconds for line in lines]
    return msgspec.structs.replace(
        main,
        id=lines[0].id,
        began_unix_seconds=min(line.began_unix_seconds for line in lines),
        ended_unix_seconds=None if None in ends else max(end for end in ends if end is not None),
        delivered=sum(line.delivered for line in lines),
        failed=sum(line.failed for line in lines),
        throughput=_rate(lines),
    )


def _rate(lines: Sequence[HistoryLine]) -> float | None:
    """Return jobs per second of all together: processes side by side add up, and one after the other they do not."""
    known = [line for line in lines if line.throughput is not None]
    if not known:
        return None
    spans = [(line.began_unix_seconds, line.ended_unix_seconds) for line in known]
    lengths = [0.0 if end is None else end - began for began, end in spans]
    whole = max((end for _, end in spans if end is not None), default=0.0) - min(began for began, _ in spans)
    if not all(lengths) or whole <= 0:  # one still goes on, or was killed: side by side
        return sum(line.throughput or 0.0 for line in known)
    return sum((line.throughput or 0.0) * length for line, length in zip(known, lengths, strict=True)) / whole


def merge_windows(windows: Sequence[HistoryWindow]) -> HistoryWindow:
    """Return one window of those of a run's processes at the same time."""
    if len(windows) == 1:
        return windows[0]
    parts: dict[str, list[StageWindow]] = {}
    for window in windows:
        for stage, sums in window.stages.items():
            parts.setdefault(stage, []).append(sums)
    measured = [window.yardstick for window in windows if window.yardstick is not None]
    return HistoryWindow(
        began_unix_seconds=min(window.began_unix_seconds for window in windows),
        seconds=max(window.seconds for window in windows),
        delivered=sum(window.delivered for window in windows),
        stages={stage: add_windows(sums) for stage, sums in parts.items()},
        yardstick=add_windows(measured) if measured else None,
    )

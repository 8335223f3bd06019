"""Live streams in a terminal of 80 columns: what came, what was answered, and how old it was then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns
from headrace.base.units import format_duration

if TYPE_CHECKING:
    from headrace.runs.formats.profile import StreamAccount

_HEAD = ("stream", "came", "wanted", "answered", "dropped", "age p50", "p99", "jitter p99", "stalled")
#: Streams beyond these are in `--json`.
_MOST_STREAMS = 20
_LONGEST_NAME = 20


def streams_text(streams: Sequence[StreamAccount]) -> list[str]:
    """Return a line for each stream, those first of which the smallest share was answered; none where there are none."""
    if not streams:
        return []
    worst_first = sorted(streams, key=lambda one: (one.answered / one.wanted if one.wanted else 0.0, one.name))
    shown, num_more = worst_first[:_MOST_STREAMS], len(streams) - _MOST_STREAMS
    return [
        "Live streams, of the whole run (frames a second; age: from the last packet to",
        "the answer; jitter: of arrivals against the stream's own clock):",
        *align_columns([_HEAD, *map(_row, shown)]),
        *([f"and {num_more:,} more, of which more was answered: --json has all"] if num_more > 0 else []),
    ]


def _row(stream: StreamAccount) -> tuple[str, ...]:
    name = stream.name if len(stream.name) <= _LONGEST_NAME else f"{stream.name[: _LONGEST_NAME - 3]}..."
    return (
        name,
        *(_rate(rate) for rate in (stream.came_per_second, stream.wanted_per_second, stream.answered_per_second)),
        f"{sum(stream.dropped.values()) + sum(stream.failed.values()):,}",
        *(format_duration(age) for age in (stream.age_p50_seconds, stream.age_p99_seconds, stream.jitter_p99_seconds)),
        format_duration(stream.stalled_seconds) if stream.stalls else "no",
    )


def _rate(per_second: float | None) -> str:
    return "-" if per_second is None else f"{per_second:.1f}"

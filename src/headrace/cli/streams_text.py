"""Live streams in a terminal of 80 columns: what came, what was answered, and how old it was then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import COLUMNS, align_columns
from headrace.base.units import format_duration

if TYPE_CHECKING:
    from headrace.runs.formats.profile import StreamAccount

_HEAD = ("stream", "came", "wanted", "answered", "dropped", "age p50", "p99", "jitter", "stalled")
#: Streams beyond these are in `--json`.
_MOST_STREAMS = 20
_SHORTEST_NAME = 8


def streams_text(streams: Sequence[StreamAccount]) -> list[str]:
    """Return a line for each stream, those first of which the smallest share was answered; none where there are none."""
    if not streams:
        return []
    worst_first = sorted(streams, key=lambda one: (one.answered / one.wanted if one.wanted else 0.0, one.name))
    shown, num_more = worst_first[:_MOST_STREAMS], len(streams) - _MOST_STREAMS
    figures = [_figures(one) for one in shown]
    room = max(_SHORTEST_NAME, COLUMNS - 2 - max(map(len, align_columns([_HEAD[1:], *figures], num_left=0))))
    rows = [(_cut(one.name, room), *cells) for one, cells in zip(shown, figures, strict=True)]
    return [
        "Live streams, of the whole run (frames a second; age: from the last packet to",
        "the answer; jitter: p99 of arrivals against the stream's own clock):",
        *align_columns([_HEAD, *rows]),
        *([f"and {num_more:,} more, of which more was answered: --json has all"] if num_more > 0 else []),
    ]


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 3]}..."


def _figures(stream: StreamAccount) -> tuple[str, ...]:
    return (
        *(_rate(rate) for rate in (stream.came_per_second, stream.wanted_per_second, stream.answered_per_second)),
        f"{sum(stream.dropped.values()) + sum(stream.failed.values()):,}",
        *(format_duration(age) for age in (stream.age_p50_seconds, stream.age_p99_seconds, stream.jitter_p99_seconds)),
        format_duration(stream.stalled_seconds) if stream.stalls else "no",
    )


def _rate(per_second: float | None) -> str:
    return "-" if per_second is None else f"{per_second:.1f}"

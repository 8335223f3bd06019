"""Live streams: what came of each, what was answered, and how old it was then."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.report.markup import Html, join, note, side_by_side, table, tag
from headrace.report.numbers import count, rate, seconds
from headrace.report.section import Section
from headrace.runs.formats.profile import ProfileDocument

_FRAMES = ["stream", "came", "wanted", "answered", "dropped", "not answered", "connections"]
_TIMES = ["stream", "age p50", "age p99", "jitter p50", "jitter p99", "stalls", "stalled", "longest stall"]


def streams(document: ProfileDocument) -> Section | None:
    """Return the table of live streams; None where there are none."""
    if not document.streams:
        return None
    names = [f"{one.name} (urgent)" if one.is_urgent else one.name for one in document.streams]
    frames = [
        [
            name,
            *map(rate, (one.came_per_second, one.wanted_per_second, one.answered_per_second)),
            _reasons(one.dropped),
            _reasons(one.failed),
            count(one.connections),
        ]
        for name, one in zip(names, document.streams, strict=True)
    ]
    times = [
        [
            name,
            *map(seconds, (one.age_p50_seconds, one.age_p99_seconds, one.jitter_p50_seconds, one.jitter_p99_seconds)),
            count(one.stalls),
            *map(seconds, (one.stalled_seconds, one.longest_stall_seconds)),
        ]
        for name, one in zip(names, document.streams, strict=True)
    ]
    words = (
        "Frames of the whole run. Wanted: what the source was told to give. Age: from a frame's last packet to its answer. "
        "Returned: in hand when the run ended. "
        "Jitter: by how much the time between two frames differed from what the stream's own clock says. Stall: a pause of 1 s "
        "and more, and of five times what usually lies between two frames."
    )
    # In two tables, because one would be cut off where the page is 1,000 pixels wide.
    tables = side_by_side(
        table(_FRAMES, frames, caption="Frames of live streams"), table(_TIMES, times, caption="Times of live streams")
    )
    return Section(anchor="streams", title="Live streams", parts=[note(words), tables])


def _reasons(counts: Mapping[str, int]) -> Html:
    """Return counts in words, a line for each, the reason first: "220 fps" would be read as a rate."""
    lines = [f"{reason} {number:,}" for reason, number in counts.items()] or ["none"]
    return join([lines[0], *(tag("span", tag("br"), line) for line in lines[1:])])

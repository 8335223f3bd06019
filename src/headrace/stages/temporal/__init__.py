"""What is known of a stream beyond one frame: smoothed labels, events, tracks, windows. `headrace.temporal`.

    per_stream.py    the stage that keeps one state per stream, gets its frames in order, and begins anew after a gap
    smoothing.py     Smooth: labels by scores averaged in time; Average: numbers
    events.py        Events: when something began and ended
    tracking.py      Tracks: which box is which object
    window.py        Window: the last frames together

What is made for each stream is a callable: `(value, seconds) -> value`, with seconds that never go back.
Your own works as well.
"""

from __future__ import annotations

from headrace.stages.temporal.events import Events
from headrace.stages.temporal.per_stream import PerStreamStage, per_stream
from headrace.stages.temporal.smoothing import Average, Smooth
from headrace.stages.temporal.tracking import Tracks
from headrace.stages.temporal.window import Window

__all__ = ["Average", "Events", "PerStreamStage", "Smooth", "Tracks", "Window", "per_stream"]

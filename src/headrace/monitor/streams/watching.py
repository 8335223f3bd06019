"""What is known of each stream of a run that goes on: how old answers are, what was dropped, and a small picture.

How this works: the run's observer notes when frames came and how their jobs ended. Pictures are made small as frames come, one
a second of each stream, and only while somebody looks; so a page that nobody has open costs next to nothing.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.observer import Observer
from headrace.base.protocols import TellsStreams
from headrace.base.records import Job, Outcome
from headrace.base.statistics import percentile, samples_needed
from headrace.base.stream_tally import StreamTally
from headrace.pipeline.definition import Pipeline

#: Streams that are shown.
_MOST_STREAMS = 200
_RATE_SECONDS = 10.0
#: A picture of a stream is made no more often than this, and while somebody looked so long ago at most.
_PICTURE_SECONDS, _LOOKED_SECONDS = 1.0, 5.0
_PICTURE_WIDTH = 320
_JPEG_QUALITY = 70


@dataclass(slots=True)
class _Stream:
    """Of one stream."""

    tally: StreamTally
    """The source's, or one that is kept here where it has none."""
    received: int = 0
    newest: float | None = None
    """When its last frame arrived, Unix seconds."""
    frame: int | None = None
    picture: np.ndarray | None = None
    pictured_at: float = 0.0


class StreamsWatch(Observer):
    """Notes what goes on in the streams of a run; thread-safe.

    Args:
        pipeline: Of the run.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.name = pipeline.name
        self._source = pipeline.source
        self._is_told = isinstance(pipeline.source, TellsStreams)  # asked once: it takes longer than all the rest
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._looked_at = 0.0

    def job_received(self, jobs: Sequence[Job]) -> None:
        """Note frames that came."""
        now = time.monotonic()
        for job in jobs:
            if not job.stream:
                continue
            with self._lock:
                stream = self._find(job.stream)
                if stream is None:
                    continue
                stream.received += 1
                stream.newest, stream.frame = job.sent_at, job.sequence
                is_due = now - self._looked_at < _LOOKED_SECONDS and now - stream.pictured_at >= _PICTURE_SECONDS
                stream.pictured_at = now if is_due else stream.pictured_at
            if is_due:
                picture = _make_small(job.payload)
                with self._lock:
                    stream.picture = picture

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Note how a frame ended, where the source does not."""
        if not job.stream or self._is_told:
            return
        with self._lock:
            stream = self._find(job.stream)
        if stream is not None:
            age = None if job.sent_at is None else max(0.0, time.time() - job.sent_at)
            stream.tally.ended(time.monotonic(), age, outcome)

    def _find(self, name: str) -> _Stream | None:
        stream = self._streams.get(name)
        if stream is None and len(self._streams) < _MOST_STREAMS:
            tally = self._tallies().get(name) or StreamTally(name, time.monotonic())
            stream = self._streams[name] = _Stream(tally)
        return stream

    def state(self) -> dict[str, Any]:
        """Return what is so now, as the page asks for it; from then on pictures are made for a while."""
        now, tallies = time.monotonic(), self._tallies()
        with self._lock:
            self._looked_at = now
            for name in tallies:  # one that brings nothing is there as well
                self._find(name)
            streams = [_describe(name, one, now) for name, one in self._streams.items()]
        return {"pipeline": self.name, "streams": sorted(streams, key=lambda one: str(one["name"]))}

    def _tallies(self) -> dict[str, StreamTally]:
        tallies = self._source.tallies() if isinstance(self._source, TellsStreams) else ()
        return {tally.name: tally for tally in tallies}


def _describe(name: str, stream: _Stream, now: float) -> dict[str, Any]:
    counts = stream.tally.counts()
    rate, ages = stream.tally.recent(now, _RATE_SECONDS)
    return {
        "name": name,
        "frame": stream.frame,
        "silent_seconds": None if stream.newest is None else max(0.0, time.time() - stream.newest),
        "rate": rate,
        "age_p50": percentile(ages, 50).value,
        "age_p99": percentile(ages, 99).value,
        "ages_needed": samples_needed(99),
        "received": stream.received,
        "ended": stream.tally.ends(),
        "decoded": counts.get("decoded", 0),
        "dropped": {key.removeprefix("dropped_"): num for key, num in counts.items() if key.startswith("dropped_")},
        "skipped": {key.removeprefix("skipped_"): num for key, num in counts.items() if key.startswith("skipped_")},
        "problem": stream.tally.problem,
        "picture": None if stream.picture is None else _as_address(stream.picture),
    }


def _make_small(image: object) -> np.ndarray | None:
    """Return a copy of an image, at most so wide; None for what is none."""
    is_image = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    if not is_image or not isinstance(image, np.ndarray) or not image.size:
        return None
    import cv2

    height, width = image.shape[:2]
    if width <= _PICTURE_WIDTH:
        return image.copy()
    size = (_PICTURE_WIDTH, max(1, round(height * _PICTURE_WIDTH / width)))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA))


def _as_address(picture: np.ndarray) -> str | None:
    """Return a picture as `data:` address."""
    import cv2

    quality = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
    is_done, encoded = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), quality)
    return f"data:image/jpeg;base64,{base64.b64encode(encoded.tobytes()).decode()}" if is_done else None

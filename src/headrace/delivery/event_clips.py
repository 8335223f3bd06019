"""Short clips of events, for `headrace.only`: the frames of a stream before and after one, as VP8 in WebM.

How this works: of each stream the last frames are kept as JPEG, so that 720p fits. An event opens a clip with them; the frames
that follow join it; and once its time is over, whoever delivers the next frame of any stream writes it. Another event of the
stream meanwhile is in the same clip. VP8 costs 3 ms a frame at 320 x 180, is read by every browser, and its encoder is no GPL.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from headrace.base.error_origin import text_of
from headrace.base.errors import MissingExtra
from headrace.base.records import Job

logger = logging.getLogger("headrace")

SUFFIX = ".only.webm"
#: Streams of which frames are kept, and frames of each; the one that is away for longest goes first.
_MOST_STREAMS, _MOST_FRAMES = 100, 250
#: Of which the clip is known where their delivery is tried again.
_MOST_EVENTS = 1000
#: A clip whose stream brings no more frames is written so long after its end.
_LATE_SECONDS = 1.0
_QUALITY = (cv2.IMWRITE_JPEG_QUALITY, 90)
_MILLISECONDS = Fraction(1, 1000)
_OPTIONS = {"deadline": "realtime", "cpu-used": "8", "crf": "20", "b": "2M"}


@dataclass(frozen=True, slots=True)
class _Frame:
    job_id: str
    seconds: float
    jpeg: bytes
    result: Any


@dataclass(slots=True)
class _Clip:
    name: str
    until: float
    """Of the stream's time."""
    due: float
    """When it is written at the latest, on a steady clock: a live stream may bring no more frames."""
    frames: list[_Frame]


@dataclass(slots=True)
class _Stream:
    last: deque[_Frame] = field(default_factory=lambda: deque(maxlen=_MOST_FRAMES))
    clip: _Clip | None = None


class EventClips:
    """The clips of a folder; thread-safe.

    Args:
        folder: For the clips; it exists once frames come.
        seconds: Before an event, and after it.
        draw: Called with each frame that is written and its result; draws into the frame.
        failed: Called for each clip that cannot be written.

    Raises:
        MissingExtra: If PyAV is not installed.
    """

    def __init__(
        self,
        folder: Path,
        seconds: float,
        draw: Callable[[np.ndarray, Any], object] | None,
        failed: Callable[[], object],
    ) -> None:
        if importlib.util.find_spec("av") is None:
            raise MissingExtra("writing clips of events", "video")
        self._folder, self._seconds, self._draw, self._failed = folder, seconds, draw, failed
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._clips_of: OrderedDict[str, str] = OrderedDict()
        """{job of an event: name of its clip}, of the last ones."""
        self._lock = threading.Lock()

    def note(self, job: Job, result: Any) -> None:
        """Keep a frame for a while, and write the clips that are over; what is no image is no frame."""
        image, seconds, now = job.payload, _seconds_of(job), time.monotonic()
        if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
            jpeg = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), _QUALITY)[1].tobytes()
            pushed_out = self._keep(job.stream or "", _Frame(job.id, seconds, jpeg, result))
            self._write([pushed_out])
        with self._lock:
            over = [stream for stream in self._streams.values() if stream.clip is not None and stream.clip.due <= now]
            if (
                (own := self._streams.get(job.stream or "")) is not None
                and own.clip is not None
                and seconds > own.clip.until
            ):
                over.append(own)
            clips = [self._take(stream) for stream in over]
        self._write(clips)

    def begin(self, job: Job, name: str) -> str:
        """Return the name of the clip that an event is in; one of this name is begun where there is none."""
        seconds = _seconds_of(job)
        with self._lock:
            if (
                known := self._clips_of.get(job.id)
            ) is not None:  # its delivery is tried again; the clip may be written
                return known
            stream = self._streams.setdefault(job.stream or "", _Stream())
            if stream.clip is None:
                is_live = "arrived" in job.attributes
                due = time.monotonic() + self._seconds + _LATE_SECONDS if is_live else math.inf
                before = [one for one in stream.last if one.seconds >= seconds - self._seconds]
                stream.clip = _Clip(name, seconds + self._seconds, due, before)
            self._clips_of[job.id] = stream.clip.name
            if len(self._clips_of) > _MOST_EVENTS:
                self._clips_of.popitem(last=False)
            return stream.clip.name

    def close(self) -> None:
        """Write the clips that are not over as far as they go."""
        with self._lock:
            clips = [self._take(stream) for stream in self._streams.values()]
            self._streams.clear()
        self._write(clips)

    def _keep(self, name: str, frame: _Frame) -> _Clip | None:
        """Keep a frame; return the clip of the stream that had to make room for it, if that has one."""
        with self._lock:
            stream = self._streams.setdefault(name, _Stream())
            self._streams.move_to_end(name)
            pushed_out = self._streams.popitem(last=False)[1].clip if len(self._streams) > _MOST_STREAMS else None
            clip = stream.clip
            if any(one.job_id == frame.job_id for one in (*stream.last, *(clip.frames if clip else ()))):
                return pushed_out  # its delivery is tried again
            stream.last.append(frame)
            while stream.last[0].seconds < frame.seconds - self._seconds:  # 250 pictures of 100 streams are gigabytes
                stream.last.popleft()
            if clip is not None and frame.seconds <= clip.until and len(clip.frames) < 2 * _MOST_FRAMES:
                clip.frames.append(frame)
            return pushed_out

    @staticmethod
    def _take(stream: _Stream) -> _Clip | None:
        clip, stream.clip = stream.clip, None
        return clip

    def _write(self, clips: Sequence[_Clip | None]) -> None:
        for clip in clips:
            if clip is not None and clip.frames:
                try:
                    self._write_one(clip)
                except Exception as error:  # the event itself was told
                    self._failed()
                    why = text_of(error)
                    logger.warning("only: the clip %s cannot be written: %s; its event is delivered", clip.name, why)

    def _write_one(self, clip: _Clip) -> None:
        av = importlib.import_module("av")
        frames = sorted(clip.frames, key=lambda one: one.seconds)
        images = (self._image(one) for one in frames)
        first = next(images)
        size = (first.shape[1] // 2 * 2, first.shape[0] // 2 * 2)
        unfinished = self._folder / f"{clip.name}.part"
        try:
            with av.open(f"file:{unfinished}", "w", format="webm") as written:
                stream = written.add_stream("libvpx", rate=30, options=_OPTIONS)
                stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
                stream.codec_context.time_base = _MILLISECONDS
                last = -1
                for one, image in zip(frames, (first, *images), strict=True):
                    same = image if image.shape[1::-1] == size else cv2.resize(image, size)
                    picture = av.VideoFrame.from_ndarray(same, format="rgb24")
                    last = max(last + 1, round((one.seconds - frames[0].seconds) * 1000))
                    picture.pts, picture.time_base = last, _MILLISECONDS
                    written.mux(stream.encode(picture))
                written.mux(stream.encode(None))
            unfinished.replace(self._folder / clip.name)
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink()

    def _image(self, frame: _Frame) -> np.ndarray:
        decoded: Any = cv2.imdecode(np.frombuffer(frame.jpeg, np.uint8), cv2.IMREAD_COLOR)
        image = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)
        if self._draw is not None:
            self._draw(image, frame.result)
        return np.asarray(image)


def _seconds_of(job: Job) -> float:
    """Return when a frame was: when it arrived, its time in a clip, or when it was sent; else now."""
    for found in (job.attributes.get("arrived"), job.attributes.get("seconds"), job.sent_at):
        if isinstance(found, int | float):
            return float(found)
    return time.time()

"""Hands on some results alone, and keeps the pictures that they are of: `headrace.only`.

A camera gives a result for each frame, and who waits for an event wants one line for it, and to see what it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from headrace.base.error_origin import text_of
from headrace.base.errors import DeliveryFailed, DeliveryRejected, SettingsError
from headrace.base.named_paths import read_path
from headrace.base.protocols import Addressed, Delivery
from headrace.base.records import Job
from headrace.base.settings import check
from headrace.base.signature import check_takes
from headrace.delivery.event_clips import SUFFIX, EventClips

#: The end of the names of pictures. Files of other names in the folder are left alone.
_SUFFIX = ".only.jpg"
_LONGEST_NAME = 150
#: Before an event, and after it.
_LONGEST_CLIP_SECONDS = 60.0


class Only:
    """Hands the results for which a condition holds to another delivery; the others are delivered to nobody.

    The run's counters say how many were left out, and how many clips could not be written before its end:
    `deliver.left_out`, `deliver.clips_failed`. Results cannot be read back, because those that were left out are nowhere: a run
    that ended early is not resumed.

    Args:
        delivery: Where results go, such as `headrace.jsonl("events.jsonl")` or `headrace.callback()`.
        when: Condition on a result, such as `lambda result: result["event"] is not None`.
        pictures: Folder for the pictures of these results as JPEG; None: none are kept. The payload of the job must be an image
            (uint8, RGB), as that of `headrace.video` and `headrace.live_video` is. A result that is a mapping gets the name of
            the file as `picture`.
        most_pictures: In the folder; the oldest are deleted.
        draw: Called with a copy of the image and the result before the picture is written; draws into the image.
        clip: Seconds before and after an event of a stream that are kept as a clip beside its picture, of frames that were
            delivered; None: none. A result that is a mapping gets its name as `clip`; the file is there when its time is over.
            Takes the extra `video`.

    Attributes:
        delivery: As given.
    """

    def __init__(
        self,
        delivery: Delivery,
        when: Callable[[Any], bool],
        *,
        pictures: str | Path | None = None,
        most_pictures: int = 1000,
        draw: Callable[[np.ndarray, Any], object] | None = None,
        clip: float | None = None,
    ) -> None:
        expected = "a delivery such as headrace.jsonl('events.jsonl')"
        check(
            callable(getattr(delivery, "deliver", None)) and not isinstance(delivery, type),
            "delivery",
            delivery,
            expected,
        )
        check(callable(when), "when", when, "a callable: result -> bool")
        check_takes(when, ("result",), "when of only")
        is_count = isinstance(most_pictures, int) and not isinstance(most_pictures, bool) and most_pictures >= 1
        check(is_count, "most_pictures", most_pictures, "a number >= 1")
        check(draw is None or callable(draw), "draw", draw, "a callable (image, result), or None")
        check(draw is None or pictures is not None, "draw", draw, "None without pictures")
        if draw is not None:
            check_takes(draw, ("image", "result"), "draw of only")
        is_time = isinstance(clip, int | float) and not isinstance(clip, bool) and 0 < clip <= _LONGEST_CLIP_SECONDS
        check(clip is None or is_time, "clip", clip, f"seconds > 0, at most {_LONGEST_CLIP_SECONDS:g}, or None")
        check(clip is None or pictures is not None, "clip", clip, "None without pictures")
        self.flush_items = delivery.flush_items
        self.flush_seconds = delivery.flush_seconds
        self.default_workers = delivery.default_workers
        self.delivery = delivery
        self._when = when
        self._pictures = None if pictures is None else _Pictures(read_path(pictures, "pictures"), most_pictures, draw)
        self._clips: EventClips | None = None
        if clip is not None and pictures is not None:
            self._clips = EventClips(
                read_path(pictures, "pictures"), clip, draw, lambda: self._count("deliver.clips_failed")
            )
        self._lock = threading.Lock()
        self._context: Any = None

    def open(self, context: Any) -> None:
        """Open the delivery, and the folder of pictures."""
        self._context = context
        if self._pictures is not None:
            self._pictures.open()
        self.delivery.open(context)

    def deliver(self, job: Job, result: Any) -> bool:
        """Deliver a result if the condition holds; see `protocols.Delivery.deliver`."""
        if self._clips is not None:
            self._clips.note(job, result)
        if not self._holds(result):
            self._count("deliver.left_out")
            return True
        if self._pictures is not None:
            name = self._pictures.write(job, result)
            more = {"picture": name}
            if self._clips is not None:
                more["clip"] = self._clips.begin(job, _clip_of(name))
            result = {**result, **more} if isinstance(result, Mapping) else result
        return self.delivery.deliver(job, result)

    def flush(self) -> None:
        """Flush the delivery."""
        self.delivery.flush()

    def close(self) -> None:
        """Close it, and write the clips that are not over."""
        if self._clips is not None:
            self._clips.close()
        self.delivery.close()

    def _count(self, name: str) -> None:
        with self._lock:
            if self._context is not None:
                self._context.count(name)

    def _holds(self, result: Any) -> bool:
        try:
            return bool(self._when(result))
        except Exception as error:
            raise DeliveryRejected(f"only.when: the condition failed: {text_of(error)}") from error


class _OnlyAddressed(Only):
    """The same for a delivery with many receivers, of which one that hangs must not delay the others."""

    def goes_to(self, job: Job) -> tuple[str, str]:
        """Return the receiver of a job's result; see `protocols.Addressed`."""
        assert isinstance(self.delivery, Addressed)
        return self.delivery.goes_to(job)


def only(
    delivery: Delivery,
    when: Callable[[Any], bool],
    *,
    pictures: str | Path | None = None,
    most_pictures: int = 1000,
    draw: Callable[[np.ndarray, Any], object] | None = None,
    clip: float | None = None,
) -> Only:
    """Return a delivery of some results alone; see `Only`."""
    kind = _OnlyAddressed if isinstance(delivery, Addressed) else Only
    return kind(delivery, when, pictures=pictures, most_pictures=most_pictures, draw=draw, clip=clip)


class _Pictures:
    """A folder of at most so many pictures."""

    def __init__(self, folder: Path, most: int, draw: Callable[[np.ndarray, Any], object] | None) -> None:
        self._folder = folder
        self._most = most
        self._draw = draw
        self._lock = threading.Lock()
        self._names: dict[str, None] = {}
        """Oldest first."""

    def open(self) -> None:
        """Make the folder, and find the pictures of earlier runs."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            entries = [entry for entry in os.scandir(self._folder) if entry.name.endswith(_SUFFIX)]
        except OSError as error:
            raise SettingsError(f"the folder of pictures {self._folder} cannot be used: {error}") from None
        found = []
        for entry in entries:
            with contextlib.suppress(OSError):  # another run deleted it meanwhile
                found.append((entry.stat().st_mtime_ns, entry.name))
        self._names = {name: None for _, name in sorted(found)}

    def write(self, job: Job, result: Any) -> str:
        """Write the picture of a job; return its name. Writing it again, where its result is tried again, replaces it."""
        data = self._encode(job, result)
        name = _name_of(job)
        unfinished = self._folder / f"{name}.part"
        try:
            unfinished.write_bytes(data)
            unfinished.replace(self._folder / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink()  # on a full disk it would have what room is left
            raise DeliveryFailed(f"{self._folder / name} cannot be written: {error.strerror or error}") from None
        self._note(name)
        return name

    def _encode(self, job: Job, result: Any) -> bytes:
        image: Any = job.payload
        if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3):
            raise DeliveryRejected(
                f"only.picture: the payload of {job.id} is no image, but {type(image).__name__}; expected uint8 "
                "(height, width, 3), RGB, as headrace.video gives; leave out pictures="
            )
        if self._draw is not None:
            image = np.ascontiguousarray(image).copy()  # the payload is the user's and may be read again
            try:
                self._draw(image, result)
            except Exception as error:
                raise DeliveryRejected(f"only.draw: draw failed: {text_of(error)}") from error
        return cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()

    def _note(self, name: str) -> None:
        with self._lock:
            self._names[name] = None
            while len(self._names) > self._most:
                oldest = next(iter(self._names))
                del self._names[oldest]
                for name in (oldest, _clip_of(oldest)):
                    with contextlib.suppress(OSError):
                        (self._folder / name).unlink()


def _clip_of(picture: str) -> str:
    """Return the name of the clip that is called after a picture."""
    return f"{picture.removesuffix(_SUFFIX)}{SUFFIX}"


def _name_of(job: Job) -> str:
    """Return a name for a file that only this job has."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", job.id)[:_LONGEST_NAME].lstrip(".")
    digest = hashlib.sha256(job.id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{readable}.{digest}{_SUFFIX}"

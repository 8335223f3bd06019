"""Gets pictures and answers out of a run, for review, without holding it up.

How this works: an instrument copies what the model is about to see (a small image: some 20 us), and reads the class and the
certainty of the answer when the last stage has made it. Whether the item would be kept is known then, so that the copy of
nearly every item is dropped at once. Of a stage in a child process the copy comes back with the value (`elsewhere`). When the
job is settled as delivered, its answer is counted, once, however often it was tried; what is kept goes through a queue to one
thread, which encodes and writes. The queue and the copies are bounded: what does not fit is counted as missed and is in no
other count. Nothing that happens here reaches the job: errors are counted and said once. Where a model runs beside (a shadow, a
canary) the answer waits for it, some seconds at most. The thread begins with the run and ends with it, after a last write.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from headrace.base.current_job import Returned, Worked, hands
from headrace.base.documents import encode_document
from headrace.base.error_origin import text_of
from headrace.base.formatting import encodable
from headrace.base.log_events import event_fields
from headrace.base.observer import Observer
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.monitor.review.elsewhere import PictureCopies
from headrace.monitor.review.hour_sample import HourSample, Limits, Offer
from headrace.monitor.review.pictures import PictureSettings, copy_value, encode
from headrace.monitor.review.reading import Frame, ResultReader
from headrace.monitor.review.store import HOUR_SECONDS, SampleWriter, make_room
from headrace.runs.formats.review import ReviewSample, SampledAnswer

logger = logging.getLogger("headrace.run")
_decoder = msgspec.json.Decoder()

#: Of copies that wait for an answer, and of answers that wait for the thread.
_MOST_WAITING_BYTES, _MOST_QUEUED = 64 << 20, 512
_LONGEST_ANSWER, _LONGEST_SOURCE = 4_000, 500
_PAUSE_SECONDS, _WRITE_SECONDS = 0.2, 10.0
#: For how long a twin's answer is waited for.
_TWIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewSettings:
    """What is kept, and for how long."""

    folder: Path
    share: float = 1.0
    """Of the jobs, drawn at random, that are looked at."""
    max_bytes: int
    max_days: float
    limits: Limits = field(default_factory=Limits)
    pictures: PictureSettings = field(default_factory=PictureSettings)
    num_workers: int = 1
    """Processes that write to the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where in a pipeline items and answers are caught."""

    pictures: frozenset[str]
    """Stages that make what is kept of an item; with originals, that take it."""
    answers: Mapping[str, ResultReader]
    """{last stage of a route: reads its results}."""
    without_picture: frozenset[str] = frozenset()
    """Of `answers`, those of routes on which no picture is made."""


class _Waiting:
    """An item between its picture and the end of its job."""

    __slots__ = ("boxes", "is_dropped", "key", "offer", "result", "sample", "value")

    def __init__(self, key: str, value: Any = None) -> None:
        self.key = key
        self.value = value
        self.offer: Offer | None = None
        self.result: Any = None
        self.boxes: Any = ()
        self.sample: HourSample | None = None  # in which it was looked at
        self.is_dropped = False


class ReviewCatcher(Observer):
    """The instrument, the observer and the watch of a run; see the module.

    Args:
        settings: What is kept.
        places: Where it is caught.
        clock: Returns Unix seconds.
    """

    def __init__(self, settings: ReviewSettings, places: Places, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._places = places
        self._clock = clock
        self._salt = secrets.randbits(64)
        self._random = random.Random()
        self._waiting: dict[str, _Waiting] = {}
        self._num_bytes = 0
        self._num_missed = self._num_unwritten = 0
        self._sample = HourSample(settings.limits)
        self._queue: deque[tuple[Offer, SampledAnswer, Any]] = deque()
        self._undecided: deque[tuple[Job, _Waiting, float]] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._hour: int | None = None
        self._writer: SampleWriter | None = None
        self._began = self._last = 0.0
        self._written_at = 0.0
        self._room_at, self._bytes_at_room = 0.0, 0
        self._is_changed = False
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="review", daemon=True)

    def __reduce__(self) -> Any:
        """Be a copy in a child process, which has no job at hand."""
        return PictureCopies, (self._places.pictures, self._settings.pictures)

    # --- in the run's threads

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call of a stage, with what it takes or makes noted where that is wanted."""
        if stage in self._places.pictures:
            call = self._catch_pictures(call)
        reader = self._places.answers.get(stage)
        if reader is None:
            return call
        has_picture = stage not in self._places.without_picture
        return self._catch_answers(call, reader, is_batched=kind == "device", has_picture=has_picture)

    def _catch_pictures(self, call: Callable[..., Any]) -> Callable[..., Any]:
        is_original = self._settings.pictures.original

        @functools.wraps(call, updated=())
        def caught(value: Any) -> Any:
            made = call(value)
            try:
                job = hands.items[0].job
                if self._is_chosen(job):
                    self._note_picture(job, copy_value(value if is_original else made, self._settings.pictures))
            except Exception as error:  # as in `_guarded`, which takes longer
                self._say_failed("a picture", error)
            return made

        return caught

    def _catch_answers(
        self, call: Callable[..., Any], reader: ResultReader, *, is_batched: bool, has_picture: bool
    ) -> Callable[..., Any]:
        @functools.wraps(call, updated=())
        def caught(value: Any) -> Any:
            made = call(value)
            items = hands.items
            try:
                for item, result in zip(items, made if is_batched else (made,), strict=True):
                    with self._guarded("an answer"):
                        self._note_answer(item, result, reader, has_picture=has_picture)
            except Exception as error:
                self._say_failed("an answer", error)
            return made

        return caught

    def brief(self, items: Sequence[Worked]) -> Any:
        """Tell a copy in a child process which items are looked at."""
        return [self._is_chosen(item.job) for item in items]

    def learn(self, stages: Sequence[str], items: Sequence[Returned], notes: Any) -> None:
        """Note the pictures that a copy in a child process made, and the answers that came from there."""
        for index, copied in notes or ():
            with self._guarded("a picture"):
                self._note_picture(items[index].job, copied)
        reader = self._places.answers.get(stages[-1])
        if reader is None:
            return
        has_picture = stages[-1] not in self._places.without_picture
        for item in items:
            if item.error is None:
                with self._guarded("an answer"):
                    self._note_answer(item, item.value, reader, has_picture=has_picture)

    def _note_picture(self, job: Job, copied: Any) -> None:
        size = _size(copied)
        with self._lock:
            before = self._waiting.get(job.id)
            if before is not None:  # another try
                self._num_bytes -= _size(self._waiting.pop(job.id).value)
            if self._num_bytes + size > _MOST_WAITING_BYTES:
                self._num_missed += 1
                return
            self._waiting[job.id] = _Waiting(self._make_key(), copied)
            self._num_bytes += size

    def _note_answer(self, item: Worked, result: Any, reader: ResultReader, *, has_picture: bool) -> None:
        job = item.job
        if not self._is_chosen(job):
            return
        waiting = self._waiting.get(job.id)
        if waiting is None:
            if has_picture:  # it did not fit
                return
            waiting = _Waiting(self._make_key())
        frame = Frame(item.placement, self._settings.pictures.original)
        read = reader(result, frame)
        offer = Offer(waiting.key, read.name, _arm_of(item), read.certainty)
        with self._lock:
            self._waiting[job.id] = waiting
            waiting.offer, waiting.sample = offer, self._sample
            if self._sample.reasons(offer) or job.twin is not None:  # a twin's answer may be a reason later
                waiting.result, waiting.boxes = _shorten(result), read.boxes
            else:
                self._num_bytes -= _size(waiting.value)
                waiting.value, waiting.result, waiting.is_dropped = None, None, True

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Count the answer of a delivered job."""
        if job.id not in self._waiting:
            return
        try:
            with self._lock:
                self._count_settled(job, outcome)
        except Exception as error:
            self._say_failed("the end of a job", error)
        if len(self._queue) > _MOST_QUEUED // 2:
            self._wake.set()

    def _count_settled(self, job: Job, outcome: Outcome) -> None:
        waiting = self._waiting.pop(job.id, None)
        if waiting is None:
            return
        if outcome.kind is not OutcomeKind.DELIVERED or waiting.offer is None:
            self._num_bytes -= _size(waiting.value)
            return
        if waiting.is_dropped and waiting.sample is self._sample and self._hour is not None:
            self._sample.count(waiting.offer)
            self._is_changed, self._last = True, self._clock()
        elif waiting.is_dropped and waiting.sample is not self._sample:  # whose value is gone
            self._num_missed += 1  # an hour that has just begun might have kept it
        elif job.twin == [] and len(self._undecided) < _MOST_QUEUED:
            self._undecided.append((job, waiting, self._clock()))
        else:
            self._enqueue(job, waiting)

    def _enqueue(self, job: Job, waiting: _Waiting) -> None:
        if len(self._queue) >= _MOST_QUEUED or waiting.offer is None:
            self._num_missed += 1
            self._num_bytes -= _size(waiting.value)
            return
        waiting.offer = replace(waiting.offer, disagreement=job.twin[0] if job.twin else None)
        self._queue.append((waiting.offer, self._describe(job, waiting), waiting.value))

    def _describe(self, job: Job, waiting: _Waiting) -> SampledAnswer:
        offer = waiting.offer
        assert offer is not None
        return SampledAnswer(
            key=offer.key, job=encodable(job.id[:_LONGEST_SOURCE]), name=offer.name, arm=offer.arm, certainty=offer.certainty,
            disagreement=offer.disagreement, answer=waiting.result, boxes=waiting.boxes,
            task=encodable(job.task), plan_id=job.plan_id,
            source=encodable(_source_of(job)), unix_seconds=self._clock(),
        )  # fmt: skip

    def _make_key(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def _is_chosen(self, job: Job) -> bool:
        work = getattr(job, "work", None)
        if not job.id or getattr(work, "is_own", False):  # a service that tries itself
            return False
        share = self._settings.share
        return share >= 1 or (hash((self._salt, job.id)) & 0xFFFFFFFF) < share * 2**32

    # --- in the thread

    @contextlib.contextmanager
    def watch(self, run: object) -> Iterator[None]:
        """Write beside a run."""
        self._thread.start()
        try:
            yield
        finally:
            self._ended = True
            self._wake.set()
            self._thread.join()

    def _work(self) -> None:
        with self._guarded("what is kept"):
            self._make_room(self._clock())
        while not self._ended:
            self._wake.wait(_PAUSE_SECONDS)
            self._wake.clear()
            with self._guarded("what is kept"):
                self.keep_up()
        with self._guarded("what is kept"):
            self.keep_up()
            self._end_hour()

    def keep_up(self) -> None:
        """Take what waits, and write where it is time to."""
        now = self._clock()
        if self._hour is not None and int(now // HOUR_SECONDS) != self._hour:
            self._end_hour()
        while self._undecided and (
            self._undecided[0][0].twin != [] or self._ended or now - self._undecided[0][2] > _TWIN_SECONDS
        ):
            with self._lock:
                self._enqueue(*self._undecided.popleft()[:2])
        while self._queue:
            with self._lock:
                offer, item, value = self._queue.popleft()
                self._num_bytes -= _size(value)
            try:
                self._take(offer, item, value)
            except Exception as error:  # this one, and none of those behind it
                self._num_missed += 1
                self._say_failed("what is kept", error)
        if self._is_changed and now - self._written_at >= _WRITE_SECONDS:
            self._write(now)
        if now - self._room_at >= HOUR_SECONDS:
            self._make_room(now)

    def _take(self, offer: Offer, item: SampledAnswer, value: Any) -> None:
        hour = int(item.unix_seconds // HOUR_SECONDS)
        if self._hour is None:
            self._hour, self._began = hour, item.unix_seconds
        self._last = item.unix_seconds
        self._is_changed = True
        with self._lock:
            if not self._sample.reasons(offer):
                self._sample.count(offer)
                return
            name, _ = self._sample.cell_of(offer.name, offer.arm)
        encode_document(item, or_text=True)  # raises for what would end the whole sample when it is written
        item = self._put(msgspec.structs.replace(item, name=name), value)
        with self._lock:
            dropped = self._sample.add(offer, item)
        if self._writer is not None:
            self._writer.drop(dropped)

    def _put(self, item: SampledAnswer, value: Any) -> SampledAnswer:
        """Return an item with its file written."""
        try:
            if self._writer is None:
                self._writer = SampleWriter(self._settings.folder, self._began)
            content, suffix = encode(value, self._settings.pictures)
            if not content:
                return item
            file = self._writer.put(content, suffix)
            return msgspec.structs.replace(item, file=file, num_bytes=len(content))
        except OSError as error:
            self._num_unwritten += 1
            self._say_once("disk", f"what is kept for review cannot be written: {error}; the jobs go on")
            return item

    def _write(self, now: float) -> None:
        if self._writer is None:
            return
        self._written_at = now
        with self._lock:
            sample = ReviewSample(
                id=self._writer.id,
                began_unix_seconds=self._began,
                ended_unix_seconds=self._last,
                cells=self._sample.cells(),
                items=tuple(msgspec.structs.replace(item, why=why) for item, why in self._sample.items()),
                share=self._settings.share,
                num_missed=self._num_missed,
                num_unwritten=self._num_unwritten,
                pixels=0 if self._settings.pictures.original else self._settings.pictures.pixels,
                blur=self._settings.pictures.blur,
                class_names=self._class_names(),
            )
        try:
            self._writer.write(sample)
            self._is_changed = False
        except OSError as error:
            self._say_once("disk", f"what is kept for review cannot be written: {error}; the jobs go on")
        if self._writer.num_bytes - self._bytes_at_room > self._settings.max_bytes / 20 / self._settings.num_workers:
            self._make_room(now)

    def _make_room(self, now: float) -> None:
        over = make_room(self._settings.folder, self._settings.max_bytes, self._settings.max_days, now)
        if over and self._writer is not None:
            with self._lock:
                dropped = self._sample.halve()
            self._writer.drop(dropped)
        self._room_at, self._bytes_at_room = now, 0 if self._writer is None else self._writer.num_bytes

    def _end_hour(self) -> None:
        if self._writer is not None:
            self._write(self._clock())
            self._writer.close()
        with self._lock:
            self._sample = HourSample(self._settings.limits)
        self._writer, self._hour, self._is_changed = None, None, False
        self._num_missed = self._num_unwritten = self._bytes_at_room = 0

    def _class_names(self) -> Mapping[str, tuple[str, ...]]:
        return {stage: reader.names for stage, reader in self._places.answers.items() if reader.names}

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Keep errors from the jobs; each kind is said once."""
        try:
            yield
        except Exception as error:  # a monitor must not end the work that it watches
            self._say_failed(what, error)

    def _say_failed(self, what: str, error: Exception) -> None:
        self._say_once(what, f"{what} cannot be noted for review: {text_of(error)}; the jobs go on")

    def _say_once(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            logger.warning("%s", text, extra=event_fields("review"))


def _arm_of(item: Worked) -> str:
    arm = getattr(item, "arm", None)
    return "" if arm is None else "canary" if arm.is_canary else "stable"


def _size(value: Any) -> int:
    return int(getattr(value, "nbytes", 0)) or (len(value) if isinstance(value, bytes | str) else 0)


def _shorten(result: Any) -> Any:
    """Return a result as JSON can hold it, or the beginning of its text if it is long."""
    try:
        encoded = encode_document(result, or_text=True)
    except Exception:  # whatever a user's result may raise when it is written
        return encodable(repr(result)[:_LONGEST_ANSWER])
    if len(encoded) > _LONGEST_ANSWER:
        return encoded[:_LONGEST_ANSWER].decode("utf-8", "replace") + "..."
    return _decoder.decode(encoded) if encoded != b"null" else "null"


def _source_of(job: Job) -> str:
    """Return where an item came from, without user, password, query and fragment: they may be secrets."""
    if not isinstance(job.payload, str | Path):
        return ""
    text = str(job.payload)
    with contextlib.suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme and parts.netloc:
            text = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
        elif parts.scheme == "data":
            return "data:"
    return text[:_LONGEST_SOURCE]

"""A stage with a state for each stream, which gets the frames of a stream in order."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.current_job import current_jobs
from headrace.base.errors import ItemRejected, SettingsError
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.base.settings import check, refuse_options
from headrace.base.signature import check_takes
from headrace.stages.stage import Stage, StageContext

#: Frames that may come again of which the value is kept; more are in flight or wait only where sources are others' queues.
_MOST_KEPT = 1000
#: Bytes of arrays among them, such as windows of images.
_MOST_KEPT_BYTES = 256 << 20
_UNKNOWN = object()
#: Takes a frame's value and its time in seconds, returns its new value.
Update = Callable[[Any, float], Any]


class PerStreamStage(Stage):
    """Calls for each frame what was made for its stream; see `per_stream`."""

    keeps_streams = True
    workers = 1

    def __init__(
        self,
        name: str,
        make: Callable[[], Update],
        *,
        reset_after: float = 5.0,
        most_streams: int = 1000,
        seconds: Callable[[Job], float] | None = None,
        task: str = "",
    ) -> None:
        super().__init__(name, task=task)
        check(callable(make), "make", make, "a callable without arguments that returns one for each stream")
        made = make()
        if not callable(made):
            raise SettingsError(
                f"stage {name}: make() gave {made!r}; expected a callable (value, seconds) -> value, such as "
                "hr.temporal.Smooth(): give the class or a lambda, as in hr.temporal.per_stream('smooth', hr.temporal.Smooth)"
            )
        check_takes(made, ("value", "seconds"), f"what make() of stage {name} gives")
        is_time = isinstance(reset_after, int | float) and not isinstance(reset_after, bool) and reset_after > 0
        check(is_time, "reset_after", reset_after, "seconds > 0")
        is_count = isinstance(most_streams, int) and not isinstance(most_streams, bool) and most_streams >= 1
        check(is_count, "most_streams", most_streams, "a number >= 1")
        check(seconds is None or callable(seconds), "seconds", seconds, "a callable: job -> seconds, or None")
        self._make = make
        self._reset_after = float(reset_after)
        self._most_streams = most_streams
        self._seconds = seconds or _find_seconds

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return what the one worker calls."""
        refuse_options(context.options, self.name)
        streams: OrderedDict[str | None, _Stream] = OrderedDict()
        kept = _Kept()

        def call(value: Any) -> Any:
            job = current_jobs()[0]
            known = kept.find(job)
            return kept.keep(job, update(job, value) if known is _UNKNOWN else known)

        def update(job: Job, value: Any) -> Any:
            now = self._seconds(job)
            if not isinstance(now, int | float) or not math.isfinite(now):
                raise ItemRejected(f"temporal.no_time: the time of {job.id} is {now!r}; expected a number of seconds")
            stream = streams.get(job.stream)
            if stream is None or not -self._reset_after <= now - stream.newest <= self._reset_after:
                made = _Stream(self._make(), float(now))  # first: if it fails, nothing is forgotten
                if stream is not None:
                    context.count(f"{self.name}.begun_anew")
                elif len(streams) >= self._most_streams:
                    streams.popitem(last=False)
                    context.count(f"{self.name}.streams_forgotten")
                stream = streams[job.stream] = made
            streams.move_to_end(job.stream)
            stream.newest = max(stream.newest, float(now))  # a clock that steps back a little stands still
            return stream.update(value, stream.newest)

        return call


class _Kept:
    """Values of frames that are not settled: one that failed later on and comes again would be a second frame to its stream.

    The worker keeps them; whichever thread settles a job forgets its value. Where there is no room for more the oldest goes: it
    is a second frame where it comes again.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def find(self, job: Job) -> Any:
        """Return the value that a frame had; `_UNKNOWN`: it did not come before."""
        with self._lock:
            return self._values.get(job.id, (_UNKNOWN, 0))[0]

    def keep(self, job: Job, value: Any) -> Any:
        """Return a value, which is kept until the job is over, if it may come again."""
        if job.max_attempts == 1 and "arrived" in job.attributes:
            return value  # of a live stream none comes again; elsewhere one does that is given back

        def settle(job: Job, outcome: Outcome) -> None:
            if not _comes_again(job, outcome):
                with self._lock:
                    self._forget(job.id)
            answer(outcome)

        answer = job.intercept_settle(settle)
        size = value.nbytes if isinstance(value, np.ndarray) else 0
        with self._lock:
            self._forget(job.id)
            self._values[job.id] = value, size
            self._num_bytes += size
            while len(self._values) > _MOST_KEPT or self._num_bytes > _MOST_KEPT_BYTES:
                self._forget(next(iter(self._values)))
        return value

    def _forget(self, item: str) -> None:
        self._num_bytes -= self._values.pop(item, (None, 0))[1]


def _comes_again(job: Job, outcome: Outcome) -> bool:
    if outcome.kind is OutcomeKind.RETRY:
        return outcome.spared or job.max_attempts is None or job.attempt < job.max_attempts
    return outcome.kind is OutcomeKind.RETURNED


@dataclass(slots=True)
class _Stream:
    update: Update
    newest: float


def per_stream(
    name: str,
    make: Callable[[], Update],
    *,
    reset_after: float = 5.0,
    most_streams: int = 1000,
    seconds: Callable[[Job], float] | None = None,
) -> Stage:
    """Return a stage that knows more of a stream than one frame.

    The frames of each stream (`job.stream`) come to it in the order of receipt, whatever the stages before it did with them,
    and a stream never waits for another's. It has one worker in a thread, so what it does should take little time. A frame that
    fails in a later stage or at its delivery, and comes again, has the value that it had.

    Args:
        name: Unique in its pipeline.
        make: Called for each stream; what it returns is called with a frame's value and time, `(value, seconds) -> value`.
        reset_after: Seconds without a frame after which a stream begins anew; and if time goes back by more.
        most_streams: Streams that are known at a time; beyond that the one that was silent for longest is forgotten.
        seconds: Gives the time of a job; None: its attribute `arrived` (live streams), else `seconds` (clips), else when it
            was sent (queues).
    """
    return PerStreamStage(name, make, reset_after=reset_after, most_streams=most_streams, seconds=seconds)


def _find_seconds(job: Job) -> float:
    for found in (job.attributes.get("arrived"), job.attributes.get("seconds"), job.sent_at):
        if isinstance(found, int | float) and not isinstance(found, bool):
            return float(found)
    raise ItemRejected(
        f"temporal.no_time: {job.id} has no time: neither an attribute 'arrived' or 'seconds' nor a time of sending; say how "
        "to know it: per_stream(..., seconds=lambda job: ...)"
    )

"""What became of the frames of one live stream: counted once, for the page of a run and for its folder."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import NamedTuple

from headrace.base.records import Outcome, OutcomeKind, StreamRecord
from headrace.base.reservoir import Reservoir
from headrace.base.statistics import percentile

#: Answers from which the page of a run takes ages and rate; p99 needs 662.
_MOST_RECENT = 700
#: Ages and delays of which a run's percentiles are; p99 needs 662.
_SAMPLE_SIZE = 2000
#: Ends that are told apart: the reasons of a user's code may be endless.
_MOST_REASONS, _LONGEST_REASON = 50, 60
#: A pause is a stall if it lasts so long, and so many times as long as usually lies between two frames.
_STALL_SECONDS, _STALL_TIMES = 1.0, 5.0
#: Of a new gap in the running mean of gaps, as in RFC 3550.
_NEW_SHARE = 1 / 16
#: The stream's own clock has jumped, which is no delay.
_JUMP_SECONDS = 10.0


class StreamTally:
    """Counts the frames of one stream as they come and end. Times are seconds of one steady clock; thread-safe.

    Args:
        name: Of the stream.
        began: When the run began to read it.
        is_urgent: Whether it goes before the others.

    Attributes:
        problem: Why nothing comes of it; empty: it comes, or was not tried yet.
    """

    def __init__(self, name: str, began: float, *, is_urgent: bool = False) -> None:
        self.name = name
        self.problem = ""
        self._is_urgent = is_urgent
        self._lock = threading.Lock()
        self._began, self._over = began, False
        self._end = began
        self._counts: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._ages, self._delays = Reservoir(_SAMPLE_SIZE, seed=1), Reservoir(_SAMPLE_SIZE, seed=2)
        self._recent: deque[tuple[float, float | None]] = deque(maxlen=_MOST_RECENT)
        self._first: float | None = None
        self._last = began
        self._own: float | None = None
        """The stream's time of the last frame; None: nothing is compared with it."""
        self._connection = self._num_connections = 0
        self._usual_gap: float | None = None
        self._stalls = _Stalls()

    def count(self, what: str) -> None:
        """Count a frame as `decoded`, `given`, `skipped_*` or `dropped_*`."""
        with self._lock:
            self._counts[what] += 1

    def counts(self) -> dict[str, int]:
        """Return how many frames were counted as what."""
        with self._lock:
            return dict(self._counts)

    def arrived(self, now: float, own: float | None, connection: int = 1) -> None:
        """Note that a frame came.

        Args:
            now: When.
            own: The time that the stream says of it; None: none.
            connection: Number of the connection: with each, the stream's time may begin anew, and the first frame may have
                waited.
        """
        with self._lock:
            is_same = connection == self._connection
            self._num_connections += not is_same
            if self._first is None:
                self._first = now
            else:
                self._note_gap(now - self._last, own if is_same else None)
            self._last, self._connection = now, connection
            self._own = own if is_same else None

    def ended(self, now: float, age: float | None, outcome: Outcome) -> None:
        """Note how a frame that was given ended.

        Args:
            now: When.
            age: Seconds since it came; None: not known.
            outcome: Delivered, or why not.
        """
        with self._lock:
            if outcome.kind is not OutcomeKind.DELIVERED:
                self._ended[self._reason(outcome)] += 1
                return
            self._ended["delivered"] += 1
            self._recent.append((now, age))
            if age is not None:
                self._ages.extend([round(age * 1e9)])

    def close(self, now: float) -> None:
        """Note that no more is read; a second call changes nothing."""
        with self._lock:
            if not self._over:
                self._over, self._end = True, now

    def recent(self, now: float, seconds: float) -> tuple[float, list[float]]:
        """Return the answers per second of the last so many seconds, and how old the last 700 were."""
        with self._lock:
            num = sum(at >= now - seconds for at, _ in self._recent)
            return num / seconds, [age for _, age in self._recent if age is not None]

    def ends(self) -> dict[str, int]:
        """Return how many of the frames that were given ended how: `delivered`, or the code of the reason why not."""
        with self._lock:
            return dict(self._ended)

    def record(self, now: float) -> StreamRecord:
        """Return what a run folder keeps of it."""
        with self._lock:
            end = self._end if self._over else now
            ages, delays = self._ages.sample() / 1e9, self._delays.sample() / 1e9
            stalls = self._stalls
            if self._first is None or self._is_stall(end - self._last):
                stalls = stalls.with_one(end - self._last)
            return StreamRecord(
                name=self.name,
                is_urgent=self._is_urgent,
                seconds=end - (self._began if self._first is None else self._first),
                counts=dict(self._counts),
                ended=dict(self._ended),
                connections=self._num_connections,
                age_p50_seconds=percentile(ages, 50).value,
                age_p99_seconds=percentile(ages, 99).value,
                jitter_p50_seconds=percentile(delays, 50).value,
                jitter_p99_seconds=percentile(delays, 99).value,
                stalls=stalls.num,
                stalled_seconds=stalls.seconds,
                longest_stall_seconds=stalls.longest,
            )

    def _note_gap(self, gap: float, own: float | None) -> None:
        if self._is_stall(gap):
            self._stalls = self._stalls.with_one(gap)
        else:
            before = gap if self._usual_gap is None else self._usual_gap
            self._usual_gap = before + _NEW_SHARE * (gap - before)
        if own is not None and self._own is not None and abs(own - self._own) < _JUMP_SECONDS:
            self._delays.extend([round(abs(gap - (own - self._own)) * 1e9)])

    def _is_stall(self, gap: float) -> bool:
        return self._usual_gap is not None and gap >= max(_STALL_SECONDS, _STALL_TIMES * self._usual_gap)

    def _reason(self, outcome: Outcome) -> str:
        if outcome.kind is OutcomeKind.RETURNED and not outcome.excused:
            return "returned"  # the run ended
        code = str(outcome.reason).partition(":")[0][:_LONGEST_REASON] or outcome.kind.name.lower()
        return code if code in self._ended or len(self._ended) < _MOST_REASONS else "other"


class _Stalls(NamedTuple):
    num: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def with_one(self, seconds: float) -> _Stalls:
        return _Stalls(self.num + 1, self.seconds + seconds, max(self.longest, seconds))

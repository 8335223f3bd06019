"""Which work is let in where somebody waits for the answer: what can be answered in time, by what is inside and was measured.

Work that cannot be answered in time is refused at once, so that its client can turn elsewhere, and the device works only on
what is still wanted. Otherwise every request would wait as long as its deadline, and most answers would come too late.
The rules:

- Expected is the longer of two times: what work takes that meets nobody, and what the slowest stage needs for all that is
  inside. Its pace is that of the cost curve until it was measured: by what ended while enough waited for full batches.
- While the first is the longer one, refusing would make nothing faster, so nothing is refused that could be in time alone. Nor
  is it, while no full batch waits, if it should be in time on an average: a device that runs half empty answers nobody sooner.
- Otherwise each answer is compared with what was expected. How far answers were off, on an average and at most times, is
  added to what is expected, for each priority apart: who comes second waits longer than what is inside says.
- What is not checked for a while is believed less and less: a wrong estimate would refuse everything, and nothing would come
  that could correct it.

A plain object that takes `now`; whoever shares one between threads holds a lock around each call. The simulator uses it too.

References:
    The two times: P. Denning, J. Buzen, "The operational analysis of queueing network models", ACM Computing Surveys 10:3,
    1978, asymptotic bounds. Mean and mean deviation as a safe limit: V. Jacobson, "Congestion avoidance and control", SIGCOMM
    1988.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

#: What the newest observation weighs in an average.
_WEIGHT, _PACE_WEIGHT = 1 / 32, 1 / 4
#: Mean deviations that are added, at the beginning and within bounds: of normal errors one of a hundred is beyond 2.9.
_DEVIATIONS, _LEAST_DEVIATIONS, _MOST_DEVIATIONS = 3.0, 2.0, 12.0
#: How they grow with an answer that came later than that, and the share of such answers at which they stay.
_STEP, _SHARE_BEYOND = 0.05, 0.003
#: Errors deviate by this at least: what went the same way for long may still go another one.
_LEAST_DEVIATION = 0.02
#: What is expected is multiplied by this at most: after a hang answers are off by any number, which means nothing.
_MOST_FACTOR = 8.0
#: A pace is taken over as many full batches, and over as many ends at least.
_PACE_BATCHES, _LEAST_ENDS = 2, 8
#: With less inside the slowest stage would soon have no full batch: beside the one under way, the next.
_FULL_BATCHES = 2
#: What was not observed for so long is doubted.
_DOUBT_SECONDS = 1.0
#: Longest time after which work is asked to come again, and shortest.
_MOST_RETRY_SECONDS, _LEAST_RETRY_SECONDS = 60.0, 0.1


class Reason(StrEnum):
    """Why work is turned away."""

    BUSY = "busy"
    """Too much waits before it; later it may be let in."""
    HOPELESS = "hopeless"
    """Its deadline is closer than an answer takes where nothing waits."""


class Inside(msgspec.Struct, frozen=True, gc=False):
    """What is inside when work comes or ends."""

    before: int
    """Items that were let in and have not ended, of its priority and of higher ones."""
    waiting: int
    """Items of any priority that wait before a stage."""


class LetIn(msgspec.Struct, frozen=True, gc=False):
    """Work that is let in; handed back when it has ended."""

    came: float
    before: int
    """As `Inside.before`."""
    expected_seconds: float
    """Until its answer; 0: nothing was known."""
    most_seconds: float
    """The same at most times."""
    meets_nobody: bool
    priority: int


class TurnedAway(msgspec.Struct, frozen=True, gc=False):
    """Work that could not be answered in time."""

    reason: Reason
    most_seconds: float
    """Until its answer, at most times."""
    retry_after_seconds: float


class _Average:
    """A moving mean and mean deviation; while they are few, all values weigh the same."""

    def __init__(self, value: float = 0.0) -> None:
        self.mean = value
        self.deviation = 0.0
        self._num = 0
        self._seen_at = -math.inf

    def add(self, value: float, now: float) -> None:
        """Take another value in."""
        self._num += 1
        weight = max(_WEIGHT, 1 / self._num)
        error = value - self.mean
        self.mean += weight * error
        if self._num > 1:
            self.deviation += weight * (abs(error) - self.deviation)
        self._seen_at = now

    def is_doubtful(self, now: float) -> bool:
        """Return whether there was no value for a while; that is then taken to begin anew."""
        if now - self._seen_at < _DOUBT_SECONDS:
            return False
        self._seen_at = now
        return True


class _Errors:
    """How far answers of one priority were off, as the logarithm of actual over expected seconds."""

    def __init__(self) -> None:
        self.factor = 1.0
        """Of what is expected: at most times it takes no longer."""
        self.usual_factor = 1.0
        """The same on an average."""
        self._average = _Average()
        self._deviations = _DEVIATIONS

    def add(self, error: float, now: float, *, is_beyond: bool) -> None:
        """Take an answer in.

        Args:
            error: That logarithm.
            now: Seconds.
            is_beyond: It took longer than it was to take at most times.
        """
        self._average.add(error, now)
        step = _STEP * (is_beyond - _SHARE_BEYOND)
        self._deviations = min(_MOST_DEVIATIONS, max(_LEAST_DEVIATIONS, self._deviations + step))
        self._set_factor()

    def doubt(self, now: float) -> None:
        """Believe it half as much if nothing was answered for a while."""
        if self._average.is_doubtful(now):
            self._average.mean /= 2
            self._average.deviation /= 2
            self._set_factor()

    def _set_factor(self) -> None:
        deviation = max(_LEAST_DEVIATION, self._average.deviation)
        self.usual_factor = min(_MOST_FACTOR, math.exp(min(10.0, self._average.mean)))
        self.factor = min(_MOST_FACTOR, math.exp(min(10.0, self._average.mean + self._deviations * deviation)))


class ExpectedWait:
    """Decides on admission.

    Args:
        at_once: Items that the slowest stage works on at a time: its largest batch, for each of its workers.
        item_seconds: What one of them takes of its time in full batches, by the cost curve: 5 ms for 16 are 0.3 ms; None: not
            known, so that everything is let in until it was measured.
        alone_seconds: What an item takes through all stages where it meets nobody; 0: not known.
        since: What came before that time says nothing: it waited until all was loaded.
    """

    def __init__(
        self,
        at_once: int = 1,
        item_seconds: float | None = None,
        alone_seconds: float = 0.0,
        *,
        since: float = -math.inf,
    ) -> None:
        self._at_once = at_once
        self._begun = since
        self._item_seconds = item_seconds
        self._alone = _Average(alone_seconds)
        self._errors: dict[int, _Errors] = {}
        self._since = 0.0
        self._ends = 0
        self._is_crowded = False

    @property
    def item_seconds(self) -> float | None:
        """Seconds between two ends while there is enough to do; None: not known yet."""
        return self._item_seconds

    def decide(self, now: float, deadline: float | None, inside: Inside, priority: int = 1) -> LetIn | TurnedAway:
        """Return whether work is let in.

        Args:
            now: Seconds of any clock that does not jump.
            deadline: When the answer is worthless, by that clock; None: it never is.
            inside: What is there.
            priority: 0 before 1.
        """
        errors, expected = self._errors_of(priority), self._expect(inside.before)
        most = expected * errors.factor
        work = LetIn(now, inside.before, expected, most, not inside.waiting and self._is_light(inside.before), priority)
        if deadline is None:
            return work
        allowed = deadline - now
        if allowed <= 0:  # it waited for as long before anybody read it: so much comes
            return TurnedAway(Reason.BUSY, most, min(_MOST_RETRY_SECONDS, max(_LEAST_RETRY_SECONDS, most)))
        if most <= allowed or self._is_needed(now, allowed, expected * errors.usual_factor, inside.before):
            return work
        errors.doubt(now)
        reason = Reason.HOPELESS if self._alone.mean > allowed else Reason.BUSY
        return TurnedAway(reason, most, min(_MOST_RETRY_SECONDS, max(_LEAST_RETRY_SECONDS, most - allowed)))

    def foresee(self, now: float, deadline: float | None, inside: Inside, priority: int = 1) -> TurnedAway | None:
        """Return that work is turned away, where `decide` would say so now; None: that is to be asked once the work is there.

        What little is inside is left to `decide`, which lets some in by turns: it must be asked once for each.
        """
        is_over = deadline is not None and deadline <= now
        if self._is_light(inside.before) and not is_over:
            return None
        decision = self.decide(now, deadline, inside, priority)
        return decision if isinstance(decision, TurnedAway) else None

    def _is_needed(self, now: float, allowed: float, usual: float, before: int) -> bool:
        """Return whether so little is inside that refusing would make nothing faster, or nothing would be learned.

        Args:
            now: Seconds.
            allowed: Until the deadline.
            usual: Seconds until an answer, on an average.
            before: As `Inside.before`.
        """
        if before < _FULL_BATCHES * self._at_once and usual <= allowed:
            return True
        return self._is_light(before) and (self._alone.mean <= allowed or self._alone.is_doubtful(now))

    def _is_light(self, before: int) -> bool:
        return before * (self._item_seconds or 0.0) <= self._alone.mean

    def note_end(self, now: float, work: LetIn, inside: Inside) -> None:
        """Learn from work that was answered, or given up because its deadline had passed; not from what was cancelled.

        Args:
            now: By the clock of `decide`.
            work: What that returned.
            inside: What is there now.
        """
        if work.came < self._begun:
            return
        self._learn_pace(now, inside.waiting >= self._at_once)
        seconds = now - work.came
        if work.meets_nobody:
            self._alone.add(max(0.0, seconds - self._round(work.before)), now)
        elif work.expected_seconds > 0 and seconds > 0:
            # Where the pace has changed meanwhile, by the one that promised less time: the change itself is no error.
            expected = min(work.expected_seconds, self._expect(work.before))
            errors = self._errors_of(work.priority)
            errors.add(math.log(seconds / expected), now, is_beyond=seconds > work.most_seconds)

    def _errors_of(self, priority: int) -> _Errors:
        errors = self._errors.get(priority)
        if errors is None:
            errors = self._errors[priority] = _Errors()
        return errors

    def _expect(self, before: int) -> float:
        """Return the seconds until an answer; in the first case with those of the batch under way, which it waits for."""
        return max(before * (self._item_seconds or 0.0), self._alone.mean + self._round(before))

    def _round(self, before: int) -> float:
        """Return the seconds of what the slowest stage has in hand."""
        return min(before, self._at_once) * (self._item_seconds or 0.0)

    def _learn_pace(self, now: float, is_crowded: bool) -> None:
        """Count an end; while enough waits for full batches, so many ends in so many seconds are the pace."""
        if not (is_crowded and self._is_crowded):
            self._is_crowded, self._since, self._ends = is_crowded, now, 0
            return
        self._ends += 1
        if self._ends >= max(_LEAST_ENDS, _PACE_BATCHES * self._at_once) and now > self._since:
            pace = (now - self._since) / self._ends
            known = self._item_seconds
            self._item_seconds = pace if known is None else known + _PACE_WEIGHT * (pace - known)
            self._since, self._ends = now, 0

"""Who may have a worker, where workers wait on many others: so that one that hangs does not take them all.

What a stage calls (a host of images, a receiver of results) is a key. Keys have lanes. One of which something is known has a
lane of its own; the others share the lane of their group (a domain, a host), so that a new name for each call buys nothing.
Each lane has a credit: a prompt answer adds to it, a call that takes long takes off several.

There are twice as many places as workers were asked for. A call begins in a prompt place. If it takes long it moves to a slow
place, and another call may begin in its stead: who waits for one that hangs costs the others nothing but a thread. A lane
whose credit is used up begins in slow places only, until it answers promptly again. While one lane alone has come for a
while, nothing of this applies: it has all workers, and they wait as long as it takes.

A plain object that takes `now`. Threads that share one need a lock around each call.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

#: A call takes long if it takes this long at least, ...
SLOW_SECONDS = 1.0
#: ... and so many times what calls usually take, ...
_TIMES_USUAL = 4.0
#: ... and no call is prompt that takes longer than this.
_SLOWEST_SECONDS = 10.0
#: How long ago another lane may have come for a lane not to be alone.
ALONE_SECONDS = 60.0
_MOST_CREDIT = 8
_PENALTY = 4
#: Lanes whose credit is remembered.
MOST_REMEMBERED = 10_000
#: The usual time of a call follows the median: by so much up for each longer one, down for each shorter one.
_STEP = 1.05
_LEAST_USUAL_SECONDS = 1e-6


class Turn(Enum):
    """Whether a lane's next call may begin."""

    NOW = "now"
    LAST = "last"
    """If nobody else can begin: it has its share."""
    NO = "no"


@dataclass(eq=False, slots=True)
class Call:
    """One call, or a few that one worker makes one after another for one key."""

    lane: str
    key: str
    since: float
    ended: float | None = None
    """When it was over; its worker may keep its place for longer, because it cannot hand on. Set by that worker."""
    is_prompt_place: bool = True
    is_answered: bool = False
    """Whether it brought what was asked for. Set by its worker."""
    has_place: bool = True


@dataclass(slots=True)
class _InFlight:
    prompt: dict[Call, None] = field(default_factory=dict)
    """In the order in which they began."""
    num_slow: int = 0
    new: int = 0
    """In prompt places, of lanes of which nothing is known."""
    of_slow_lanes: Counter[str] = field(default_factory=Counter)


class Shares:
    """The places of one stage, and what is known of those it calls.

    Args:
        num_workers: Places for prompt calls, and as many for slow ones.

    Attributes:
        num_slow_places: May be lowered, where fewer items can wait.
        num_moved: Calls that turned out to be slow, so far.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_slow_places = num_workers
        self.num_moved = 0
        self._num_workers = num_workers
        self._in_flight = _InFlight()
        self._credit: dict[str, int] = {}
        self._slow_since: dict[str, float] = {}
        self._usual_seconds = SLOW_SECONDS / _TIMES_USUAL
        self._slow_after = SLOW_SECONDS
        self._latest_lane: str | None = None
        self._changed_at: float | None = None

    @property
    def num_slow(self) -> int:
        """Calls in slow places now."""
        return self._in_flight.num_slow

    def lane(self, key: str, group: str) -> str:
        """Return the lane of a key: its own once something is known of it, until then that of its group."""
        return key if key in self._credit else group

    def note_arrival(self, lane: str, now: float) -> None:
        """Note that something came that is for a lane."""
        if lane != self._latest_lane:
            if self._latest_lane is not None:
                self._changed_at = now
            self._latest_lane = lane

    def is_alone(self, now: float) -> bool:
        """Return whether all that came for a while was for one lane."""
        return self._changed_at is None or now - self._changed_at > ALONE_SECONDS

    def slow_since(self, lane: str) -> float | None:
        """Return since when a lane answers slowly or not at all; None if it does not."""
        return self._slow_since.get(lane)

    def turn(self, lane: str, now: float) -> Turn:
        """Return whether a call of a lane may begin; call `look` first."""
        in_flight = self._in_flight
        if lane in self._slow_since and not self.is_alone(now):
            if in_flight.num_slow >= self.num_slow_places:
                return Turn.NO
            return Turn.NOW if in_flight.of_slow_lanes[lane] < _half(self.num_slow_places) else Turn.LAST
        if len(in_flight.prompt) >= self._num_workers:
            return Turn.NO
        is_known = self._credit.get(lane, 0) > 0
        return Turn.NOW if is_known or in_flight.new < _half(self._num_workers) else Turn.LAST

    def begin(self, lane: str, key: str, now: float) -> Call:
        """Give a call a place; `turn` has let it."""
        call, in_flight = Call(lane, key, now), self._in_flight
        if lane in self._slow_since and not self.is_alone(now):
            call.is_prompt_place = False
            in_flight.num_slow += 1
            in_flight.of_slow_lanes[lane] += 1
        else:
            in_flight.prompt[call] = None
            if self._credit.get(lane, 0) <= 0:
                in_flight.new += 1
        return call

    def end(self, call: Call, now: float) -> None:
        """Take the place of a call back, and learn from it. A second time does nothing: its worker was left behind."""
        if not call.has_place:
            return
        call.has_place = False
        in_flight = self._in_flight
        if call.is_prompt_place:
            del in_flight.prompt[call]
            if not in_flight.prompt:
                in_flight.new = 0
            elif in_flight.new:
                in_flight.new = sum(self._credit.get(other.lane, 0) <= 0 for other in in_flight.prompt)
        else:
            in_flight.num_slow -= 1
            in_flight.of_slow_lanes[call.lane] -= 1
            if not in_flight.of_slow_lanes[call.lane]:
                del in_flight.of_slow_lanes[call.lane]
        key, lane = call.key, call.lane
        seconds = (now if call.ended is None else call.ended) - call.since
        if call.is_answered:
            self._learn_usual(seconds)
        if seconds >= self._slow_after:
            self._blame(call, now)
        elif call.is_answered:
            if self._credit.get(key) != _MOST_CREDIT:  # nearly all that are called have it
                self._add(key)
            if key != lane and self._credit.get(lane) != _MOST_CREDIT:
                self._add(lane)

    def _blame(self, call: Call, now: float) -> None:
        if call.is_prompt_place:
            self._debit(call.lane, now)  # there was no slow place left
        if call.key != call.lane:
            self._debit(call.key, now)

    def _learn_usual(self, seconds: float) -> None:
        usual = self._usual_seconds
        usual = usual * _STEP if seconds > usual else usual / _STEP
        if usual <= SLOW_SECONDS / _TIMES_USUAL:  # of nearly all
            self._slow_after = SLOW_SECONDS
        else:
            self._slow_after = min(_SLOWEST_SECONDS, _TIMES_USUAL * usual)
        self._usual_seconds = usual if usual > _LEAST_USUAL_SECONDS else _LEAST_USUAL_SECONDS  # noqa: FURB136 - in C slower

    def look(self, now: float) -> None:
        """Move calls that turn out to be slow; as late as this is called, as late another may begin in their stead."""
        in_flight = self._in_flight
        slow_after = self._slow_after
        if self.is_alone(now):
            return
        oldest = next(iter(in_flight.prompt), None)
        if oldest is None or now - oldest.since < slow_after:
            return
        for call in list(in_flight.prompt):
            if now - call.since < slow_after or in_flight.num_slow >= self.num_slow_places:
                break
            if call.ended is not None:
                continue
            del in_flight.prompt[call]
            call.is_prompt_place = False
            in_flight.num_slow += 1
            in_flight.of_slow_lanes[call.lane] += 1
            self.num_moved += 1
            self._debit(call.lane, now)
        in_flight.new = sum(self._credit.get(call.lane, 0) <= 0 for call in in_flight.prompt)

    def _add(self, lane: str) -> None:
        self._remember(lane, self._credit.get(lane, 0) + 1)
        self._slow_since.pop(lane, None)

    def _debit(self, lane: str, now: float) -> None:
        credit = max(0, self._credit.get(lane, 0) - _PENALTY)
        self._remember(lane, credit)
        if not credit:
            self._slow_since.setdefault(lane, now)

    def _remember(self, lane: str, credit: int) -> None:
        self._credit[lane] = credit
        if len(self._credit) > MOST_REMEMBERED:
            forgotten = next(iter(self._credit))
            del self._credit[forgotten]
            self._slow_since.pop(forgotten, None)


def _half(number: int) -> int:
    return max(1, number // 2)

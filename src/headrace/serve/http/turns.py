"""Turns of the front's loop: how much is read in one, and when it came.

How this works: all that is ready is looked at in each turn. Of more than 32 connections 32 are read: those that have been ready
for the shortest time, and beside them a few that have been ready for longest; before both those of whose request a part was
read, as its rest is cheap to read and holds up an answer. So answers leave, and jobs go in, after a few milliseconds even where
a thousand connections are ready at once, and a request that waited for its turn is as old as it is, and not as new as the turn
in which it is read.

In order of age alone all would wait equally once more comes than can be read or refused. Then each is read when its deadline is
about to pass, the front is busy with refusals, and the device is idle. Now what has just come is answered in time, and what
came too early for that is refused little by little.
"""

from __future__ import annotations

import contextlib
import math
import select
import selectors
from itertools import islice
from typing import TYPE_CHECKING, Any

from headrace.base.clock import Clock

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

#: Connections that are read in one turn, and how many of them are those that have been ready for longest. With 64 the device is
#: idle while a turn lasts; with 16 turns cost more than they bring. More for the oldest would cost answers, as refusals take
#: time, too; less would let them wait for longer than the seconds that they wait now.
MOST, OLDEST = 32, 4
#: Of what is ready at most so much is asked for at once: room for all of 10,000 connections would be mapped anew in every turn.
_MOST_HEARD = 4096
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_Ready = list[tuple[selectors.SelectorKey, int]]


class Turn:
    """When what is read in this turn came; belongs to the front's thread.

    Attributes:
        begun: Descriptors of connections of whose body a part is here.
        began_ns: What is read came by then.
        is_last: Only one descriptor is ready: what it brings is all.
        since: {descriptor: since when there is something to read} of connections that had to wait for this turn.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begun: set[int] = set()
        self.began_ns = clock.now_ns()
        self.is_last = False
        self.since: dict[int, int] = {}

    def begin(self, num_ready: int, since: dict[int, int] | None = None) -> int:
        """Note that a turn begins, and return when; `since`: see the class."""
        self.began_ns = self._clock.now_ns()
        self.is_last = num_ready == 1
        self.since = since or {}
        return self.began_ns

    def came_ns(self, descriptor: int) -> int:
        """Return when bytes of a connection came that are read now, as far as this loop could see."""
        return self.since.get(descriptor, self.began_ns)


class TurnSelector(selectors.EpollSelector):
    """Gives a loop what is ready, and the turn when it came; see above.

    It asks an epoll of its own: that of the class makes a record of each descriptor in every turn. What has to wait is not
    looked for any more until its turn has come: so a turn costs as much as is new in it, and not as much as waits.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._waiting: dict[int, tuple[int, int]] = {}
        """{descriptor: since when it is ready, and for what}, in that order."""

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        """Look at a descriptor from now on."""
        key = super().register(fileobj, events, data)
        self._keys[key.fd] = key
        self._epoll.register(key.fd, _mask(events))
        return key

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        """Look for other events of a descriptor."""
        key = super().modify(fileobj, events, data)
        self._keys[key.fd] = key
        self._waiting.pop(key.fd, None)
        self._epoll.modify(key.fd, _mask(events))
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """Forget a descriptor; the next connection may have it."""
        key = super().unregister(fileobj)
        self._waiting.pop(key.fd, None)
        if self._keys.pop(key.fd, None) is not None:
            with contextlib.suppress(OSError):  # it was closed before
                self._epoll.unregister(key.fd)
        return key

    def close(self) -> None:
        """Release both epolls."""
        self._epoll.close()
        super().close()

    def select(self, timeout: float | None = None) -> _Ready:
        """Wait until something is there."""
        seconds = -1.0 if timeout is None else max(0.0, math.ceil(timeout * 1e3) * 1e-3)  # as the class rounds it
        events = self._epoll.poll(0.0 if self._waiting else seconds, min(max(1, len(self._keys)), _MOST_HEARD))
        if len(events) > MOST or self._waiting:
            events = self._choose(events)
        else:
            self._turn.begin(len(events))
        keys = self._keys
        return [
            (key := keys[descriptor], _READ if event == select.EPOLLIN else _asked(event, key))
            for descriptor, event in events
            if descriptor in keys
        ]

    def _choose(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        waiting, looked_ns = self._waiting, self._turn.began_ns
        now_ns = self._turn.begin(len(events) + len(waiting))
        # While something waits the loop does not: what is new may have come as soon as it had looked last.
        came_ns = looked_ns if waiting else now_ns
        # Of what waits nothing is heard but that its client has gone: it goes, too, and takes no place.
        gone = {descriptor: (now_ns, event) for descriptor, event in events if waiting.pop(descriptor, None)}
        new = {descriptor: (came_ns, event) for descriptor, event in events if descriptor not in gone}
        waiting.update(new)
        # Half of the turn at most: else some who send a byte now and then would let nobody in.
        begun = list(islice(self._turn.begun & waiting.keys(), MOST // 2))
        taken = {descriptor: waiting.pop(descriptor) for descriptor in begun}
        chosen = list(islice(reversed(waiting), MOST - OLDEST - len(begun)))  # what came last stands last
        chosen += islice(waiting, min(OLDEST, len(waiting) - len(chosen)))
        taken |= {descriptor: waiting.pop(descriptor) for descriptor in chosen}
        for descriptor in new.keys() - taken.keys():
            self._look_for(descriptor, 0)
        for descriptor in taken.keys() - new.keys() | gone.keys():
            self._look_for(descriptor, _mask(self._keys[descriptor].events))
        taken |= gone
        self._turn.begin(len(taken) + len(waiting), {descriptor: at_ns for descriptor, (at_ns, _) in taken.items()})
        return [(descriptor, event) for descriptor, (_, event) in taken.items()]

    def _look_for(self, descriptor: int, mask: int) -> None:
        with contextlib.suppress(OSError):  # it was closed before
            self._epoll.modify(descriptor, mask)


def _mask(events: int) -> int:
    return (select.EPOLLIN if events & _READ else 0) | (select.EPOLLOUT if events & _WRITE else 0)


def _asked(event: int, key: selectors.SelectorKey) -> int:
    """Return which of the events that were asked for have come; errors count as both."""
    found = (_WRITE if event & ~select.EPOLLIN else 0) | (_READ if event & ~select.EPOLLOUT else 0)
    return found & key.events

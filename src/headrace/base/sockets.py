"""The sockets of one carrier's transfers in its epoll.

How this works: libcurl says which events of which descriptor it wants. Between two requests over a kept connection it wants
none, for some microseconds; taking the descriptor out of the epoll and putting it back would be two system calls of each
request. So a descriptor stays in the epoll for reading, and leaves it when something comes that nobody wants, such as the end
of an idle connection. When libcurl closes a descriptor the kernel takes it out, and nobody says so. That its number belongs to
another socket is known by `note_opened`; of those few that libcurl opens by itself, to wake itself up, the epoll is asked.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar


class Owner(Protocol):
    """On whose behalf sockets are watched."""

    def refuse(self, descriptor: int, error: OSError) -> None:
        """Note that a descriptor is not watched, and why: who waits for it would wait in vain."""
        ...


T = TypeVar("T", bound=Owner)


class Sockets(Generic[T]):
    """Which descriptors are watched, and on whose behalf; one thread.

    Attributes:
        owners: On whose behalf descriptors are watched whose events are wanted now.
        has_strays: Whether the epoll may hold a socket that cannot be taken out. A child process that was forked meanwhile
            keeps a socket in there that was closed here; its events would come without end. Another epoll is the way out.

    Args:
        epoll: Of the carrier.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self.has_strays = False
        self._epoll = epoll
        self._watched: dict[int, int] = {}
        self._opened: set[int] = set()
        self.owners: dict[int, T] = {}

    def note_opened(self, descriptor: int) -> None:
        """Note that a number stands for a new socket from now on."""
        self._watched.pop(descriptor, None)
        self._opened.add(descriptor)

    def watcher(self, owner: T, events_of: Mapping[int, int]) -> Callable[[int, int, Any, Any], None]:
        """Return what libcurl calls to say what it wants of a descriptor on behalf of an owner.

        Four times in an item that is downloaded and called back about: so it is one function, without another call.

        Args:
            owner: Who has the descriptors.
            events_of: What libcurl wants -> events; what is not in there means that it wants none any more.
        """
        owners, watched, opened, find_events, only_in = (
            self.owners, self._watched, self._opened, events_of.get, select.EPOLLIN
        )  # fmt: skip

        def watch(what: int, descriptor: int, multi: Any, data: Any) -> None:
            events = find_events(what)
            if events is None:
                owners.pop(descriptor, None)
                if watched.get(descriptor, only_in) != only_in:
                    self.drop(descriptor)
            else:
                owners[descriptor] = owner
                if watched.get(descriptor) != events or descriptor not in opened:
                    self._watch(descriptor, events)

        return watch

    def move(self, epoll: select.epoll) -> None:
        """Watch by another epoll, without strays."""
        self._epoll = epoll
        self.has_strays = False
        before = dict(self._watched)
        self._watched.clear()
        for descriptor, events in before.items():
            if descriptor in self.owners:
                self._watch(descriptor, events)

    def _watch(self, descriptor: int, events: int) -> None:
        try:
            try:
                if descriptor in self._watched:
                    self._epoll.modify(descriptor, events)
                else:
                    self._epoll.register(descriptor, events)
            except FileNotFoundError:  # one that libcurl opened by itself, with a number that it had used before
                self._epoll.register(descriptor, events)
        except OSError as error:
            self._watched.pop(descriptor, None)
            self.owners.pop(descriptor).refuse(descriptor, _as_shortage(error))
        else:
            self._watched[descriptor] = events

    def drop(self, descriptor: int) -> None:
        """Watch a descriptor no more."""
        self._opened.discard(descriptor)
        self._watched.pop(descriptor, None)
        try:
            self._epoll.unregister(descriptor)
        except OSError:
            self.has_strays = True


def _as_shortage(error: OSError) -> OSError:
    """Return an error that does not stand for a full disk, as it does elsewhere."""
    if error.errno == errno.ENOSPC:
        return OSError(errno.ENFILE, "no more sockets may be watched; see /proc/sys/fs/epoll/max_user_watches")
    return OSError(error.errno, f"a socket cannot be watched: {error.strerror}")

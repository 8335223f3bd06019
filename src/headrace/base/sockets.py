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
from typing import Generic, Protocol, TypeVar


class Owner(Protocol):
    """On whose behalf sockets are watched."""

    def refuse(self, descriptor: int, error: OSError) -> None:
        """Note that a descriptor is not watched, and why: who waits for it would wait in vain."""
        ...


T = TypeVar("T", bound=Owner)


class Sockets(Generic[T]):
    """Which descriptors are watched, and on whose behalf; one thread.

    Attributes:
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
        self._owners: dict[int, T] = {}

    def note_opened(self, descriptor: int) -> None:
        """Note that a number stands for a new socket from now on."""
        self._watched.pop(descriptor, None)
        self._opened.add(descriptor)

    def want(self, descriptor: int, events: int, owner: T) -> None:
        """Watch for events on behalf of an owner."""
        self._owners[descriptor] = owner
        if self._watched.get(descriptor) != events or descriptor not in self._opened:
            self._watch(descriptor, events)

    def want_no_more(self, descriptor: int) -> None:
        """Note that nobody wants events of a descriptor now."""
        self._owners.pop(descriptor, None)
        if self._watched.get(descriptor, select.EPOLLIN) != select.EPOLLIN:
            self._drop(descriptor)

    def find_owner(self, descriptor: int) -> T | None:
        """Return on whose behalf a descriptor with an event is watched; None if nobody wants it, and it is dropped."""
        owner = self._owners.get(descriptor)
        if owner is None:
            self._drop(descriptor)
        return owner

    def move(self, epoll: select.epoll) -> None:
        """Watch by another epoll, without strays."""
        self._epoll = epoll
        self.has_strays = False
        before, self._watched = self._watched, {}
        for descriptor, events in before.items():
            if descriptor in self._owners:
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
            self._owners.pop(descriptor).refuse(descriptor, _as_shortage(error))
        else:
            self._watched[descriptor] = events

    def _drop(self, descriptor: int) -> None:
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

"""What is known of the servers that a run calls: who does not answer, who refuses, who wants nothing more.

How this works. Many tenants may share one host (gateways, webhook services), and one host may fail for all of them. What is
known therefore has levels: the host (scheme, name, port), the first parts of the path, the whole path, the address with its
query. Each level that has ever failed has a circuit breaker; a call goes through if all levels above it let it.

- A host that cannot be reached at all (name, connection, TLS) fails as a whole.
- An address that answers an error, or not in time, fails itself. A level above it fails with it the first time only, until
  something below that level succeeds: it opens when several *different* parts fail in a row, and one tenant that fails all
  day leaves its neighbours alone.

The retry budget is the host's; an address that fails has a part of its own in it, and cannot use up the others'. Callers may
name any number of addresses, so only the latest are remembered: forgetting one costs a few calls.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from headrace.base.http_error import strip_secrets
from headrace.base.log_events import event_fields
from headrace.base.policies.breaker import Breaker, BreakerPolicy, BreakerState, RetryBudget

logger = logging.getLogger("headrace")

T = TypeVar("T")

#: Places, hosts' budgets, and addresses that are gone, that are remembered.
MOST_REMEMBERED = 10_000
#: Parts of a path that are levels of their own, above the whole address.
_MOST_PARTS = 3


class _Place:
    """One level: a host, the beginning of a path, or an address."""

    def __init__(self, policy: BreakerPolicy, retry_ratio: float) -> None:
        self.breaker = Breaker(policy)
        self.budget = RetryBudget(retry_ratio)
        self.how = ""
        self._failing: set[str] = set()

    def note_failure(self, now: float, how: str, part: str = "") -> bool:
        """Note a failure of the place, or of a part of it; return whether that opened its breaker."""
        self.how = how
        if part and part in self._failing and self.breaker.state(now) is BreakerState.CLOSED:
            return False  # it is known to fail, which says nothing of the others
        self._failing.add(part)
        before = self.breaker.num_opened
        self.breaker.note_failure(now)
        if self.breaker.num_opened > before:
            self._failing.clear()
        return self.breaker.num_opened > before

    def note_success(self) -> bool:
        """Note that something below it answered as one does that works; return whether that closed its breaker."""
        self._failing.clear()
        return self.breaker.note_success()


class Destination:
    """One address, with the levels above it. Thread-safe.

    Attributes:
        last_failure: What happened last where a call was not let through, without the address that was called: that of
            another job.
    """

    __slots__ = ("_known", "_levels_found", "_url", "last_failure")

    def __init__(self, known: Destinations, url: str) -> None:
        self.last_failure = ""
        self._known = known
        self._url = url
        self._levels_found: Sequence[str] | None = None

    def admit(self, now: float) -> float | None:
        """Return None if it may be called, or else seconds for which it is to be left alone; see `Breaker.admit`."""
        known = self._known
        with known.lock:
            wait = self._admit_places(now) if known.has_places else None
            if wait is None:
                known.budget(host_of(self._url)).deposit()
            return wait

    def _admit_places(self, now: float) -> float | None:
        admitted: list[_Place] = []
        for place in self._places():
            wait = place.breaker.admit(now)
            if wait is not None:
                self.last_failure = place.how
                for other in admitted:
                    other.breaker.withdraw()
                return wait
            admitted.append(place)
        if admitted and (address := self._known.place(self._levels[-1])) is not None:
            address.budget.deposit()
        return None

    def note_answer(self) -> None:
        """Note that it answered as one does that works."""
        if not self._known.has_places:
            return  # nearly always: nothing has ever failed, and nobody need know the levels
        with self._known.lock:
            closed = [place.note_success() for place in self._places()]
        if any(closed):
            event = event_fields("breaker_closed")
            logger.info("%s answers again and is called as usual", strip_secrets(self._url), extra=event)

    def was_not_called(self) -> None:
        """Note that a call that was admitted did not take place."""
        with self._known.lock:
            for place in self._places():
                place.breaker.withdraw()

    def note_failure(self, now: float, how: str, *, whole_host: bool = False) -> bool:
        """Note that it did not answer, or could not do what it was asked to; return whether that opened a breaker.

        Args:
            now: Seconds of any clock that does not jump.
            how: What happened, for those that are not let through.
            whole_host: The host could not be reached at all.
        """
        with self._known.lock:
            if whole_host:
                opened = self._known.make(self._levels[0]).note_failure(now, how)
            else:
                opened = self._known.make(self._levels[-1]).note_failure(now, how)
                for above, part in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
                    opened |= self._known.make(above).note_failure(now, how, part)
        if opened:
            event = event_fields("breaker_open")
            logger.info(
                "%s failed too often (%s) and is left alone for a while", strip_secrets(self._url), how, extra=event
            )
        return opened

    def retry_in(self, now: float) -> float | None:
        """Return None if a retry may follow at once, which takes a token, or else seconds for which it is left alone."""
        with self._known.lock:
            wait = max((place.breaker.seconds_open(now) for place in self._places()), default=0.0)
            if wait > 0:
                return wait
            own = self._known.make(self._levels[-1]).budget.withdraw()
            return None if own and self._known.budget(self._levels[0]).withdraw() else 0.0

    @property
    def _levels(self) -> Sequence[str]:
        if self._levels_found is None:
            self._levels_found = _levels(self._url)
        return self._levels_found

    def _places(self) -> list[_Place]:
        places = (self._known.place(level) for level in self._levels)
        return [place for place in places if place is not None]


class Destinations:
    """Those of one run. Thread-safe.

    Args:
        policy: Of every breaker.
        retry_ratio: Of every retry budget.

    Attributes:
        has_places: Whether anything has ever failed.
    """

    def __init__(self, policy: BreakerPolicy, retry_ratio: float = 0.1) -> None:
        self.lock = threading.Lock()
        self._policy = policy
        self._retry_ratio = retry_ratio
        self.has_places = False
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._budgets: OrderedDict[str, RetryBudget] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()

    def find(self, url: str) -> Destination:
        """Return the destination of an address."""
        return Destination(self, url)

    def count_open(self, now: float) -> int:
        """Return how many places are not called, because they failed several times in a row."""
        with self.lock:
            return sum(place.breaker.state(now) is not BreakerState.CLOSED for place in self._places.values())

    def place(self, level: str) -> _Place | None:
        """Return what is known of a level; None if it never failed. The lock is the caller's, here and below."""
        return self._places.get(level)

    def make(self, level: str) -> _Place:
        """Return what is known of a level, from now on if nothing was."""
        found = self._places.pop(level, None) or _Place(self._policy, self._retry_ratio)
        _remember(self._places, level, found)
        self.has_places = True
        return found

    def budget(self, host: str) -> RetryBudget:
        """Return the retry budget of a host."""
        found = self._budgets.get(host)
        if found is None:
            found = RetryBudget(self._retry_ratio)
            _remember(self._budgets, host, found)
        elif len(self._budgets) > MOST_REMEMBERED // 2:  # before that none is forgotten soon
            self._budgets.move_to_end(host)
        return found

    def disable(self, url: str) -> None:
        """Note that an address wants nothing more."""
        with self.lock:
            _remember(self._gone, url, None)

    def is_disabled(self, url: str) -> bool:
        """Return whether an address said that it wants nothing more."""
        return url in self._gone


def _remember(known: OrderedDict[str, T], key: str, value: T) -> None:
    known[key] = value
    if len(known) > MOST_REMEMBERED:
        known.popitem(last=False)


def _levels(url: str) -> list[str]:
    """Return the host of an address, the beginnings of its path, its path, and with its query if it has one."""
    parts = url.split("/", 3)
    level = _host("/".join(parts[:3]))
    path, _, query = (parts[3] if len(parts) > 3 else "").partition("?")
    levels = [level]
    for part in path.split("/", _MOST_PARTS):
        level = f"{level}/{part}"
        levels.append(level)
    return [*levels, f"{level}?{query}"] if query else levels


@functools.lru_cache(maxsize=4096)
def _host(beginning: str) -> str:
    try:
        parts = urlsplit(beginning)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        return f"{parts.scheme}://{parts.hostname}:{port}"
    except ValueError:
        return ""  # no address: the call will say so


def host_of(url: str) -> str:
    """Return scheme, host and port of an address in one spelling; empty if it is none."""
    end = url.find("/", 8)  # behind those of `https://`
    return _host(url[:end] if end > 0 else url)


def place_of(url: str) -> tuple[str, str]:
    """Return the host of an address, as `host_of`, and its domain, as `domain_of`."""
    end = url.find("/", 8)
    return _place(url[:end] if end > 0 else url)


@functools.lru_cache(maxsize=4096)
def _place(beginning: str) -> tuple[str, str]:
    host = _host(beginning)
    return host, domain_of(host)


@functools.lru_cache(maxsize=4096)
def domain_of(host: str) -> str:
    """Return the last two labels of what `host_of` returned, with a dot in front; an address in numbers as it is."""
    name = host.partition("://")[2].rpartition(":")[0]
    labels = name.split(".")
    return host if labels[-1].isdigit() or ":" in name else "." + ".".join(labels[-2:])

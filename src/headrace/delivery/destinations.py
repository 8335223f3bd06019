"""What is known of the receivers that a run calls: who does not answer, who wants nothing more.

By destination (scheme, host and port) a circuit breaker and a retry budget; by address whether it answered 410 Gone. Jobs
may name any number of them, so only the latest are remembered: forgetting one costs a few calls.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TypeVar
from urllib.parse import urlsplit

from headrace.base.policies.breaker import Breaker, BreakerPolicy, RetryBudget

T = TypeVar("T")

#: Destinations, and addresses that are gone, that are remembered.
MOST_REMEMBERED = 10_000


class Destination:
    """One host and port. Thread-safe.

    Attributes:
        last_failure: What happened last, without the address that was called: that of another job.
    """

    def __init__(self, policy: BreakerPolicy, retry_ratio: float) -> None:
        self.last_failure = ""
        self._lock = threading.Lock()
        self._breaker = Breaker(policy)
        self._budget = RetryBudget(retry_ratio)

    def admit(self, now: float) -> float | None:
        """Return None if it may be called, or else seconds for which it is to be left alone; see `Breaker.admit`."""
        with self._lock:
            wait = self._breaker.admit(now)
            if wait is None:
                self._budget.deposit()
            return wait

    def answered(self) -> None:
        """Note that it answered as one does that works."""
        with self._lock:
            self._breaker.succeeded()

    def was_not_called(self) -> None:
        """Note that a call that was admitted did not take place."""
        with self._lock:
            self._breaker.withdrawn()

    def failed(self, now: float, how: str) -> bool:
        """Note that it did not answer, or could not do what it was asked to; return whether that opened its breaker."""
        with self._lock:
            self.last_failure = how
            before = self._breaker.num_opened
            self._breaker.failed(now)
            return self._breaker.num_opened > before

    def retry_in(self, now: float) -> float | None:
        """Return None if a retry may follow at once, which takes a token, or else seconds for which it is left alone."""
        with self._lock:
            wait = self._breaker.seconds_open(now)
            if wait > 0:
                return wait
            return None if self._budget.withdraw() else 0.0


class Destinations:
    """Those of one run. Thread-safe.

    Args:
        policy: Of every breaker.
        retry_ratio: Of every retry budget.
    """

    def __init__(self, policy: BreakerPolicy, retry_ratio: float) -> None:
        self._policy = policy
        self._retry_ratio = retry_ratio
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Destination] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()

    def of(self, url: str) -> Destination:
        """Return the destination of an address."""
        key = _destination(url)
        with self._lock:
            found = self._known.pop(key, None) or Destination(self._policy, self._retry_ratio)
            _remember(self._known, key, found)
        return found

    def disable(self, url: str) -> None:
        """Note that an address wants nothing more."""
        with self._lock:
            _remember(self._gone, url, None)

    def is_disabled(self, url: str) -> bool:
        """Return whether an address said that it wants nothing more."""
        return url in self._gone


def _remember(known: OrderedDict[str, T], key: str, value: T) -> None:
    known[key] = value
    if len(known) > MOST_REMEMBERED:
        known.popitem(last=False)


def _destination(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        return f"{parts.scheme}://{parts.hostname}:{port}"
    except ValueError:
        return ""  # no address: the call will say so

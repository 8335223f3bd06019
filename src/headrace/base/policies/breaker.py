"""Whether a destination is called at all, and whether it is called again at once: circuit breaker and retry budget.

A destination that does not answer costs its callers a timeout each. After a few failures in a row the breaker opens: nobody
calls for a while, then one caller probes, and its luck decides. The retry budget keeps a destination that fails now and
then from getting a multiple of its traffic when it can bear it least.

Both are plain objects that take `now`. Threads that share one need a lock around each call.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """Which calls a breaker allows."""

    CLOSED = "closed"
    """Everything."""
    OPEN = "open"
    """Nothing."""
    HALF_OPEN = "half_open"
    """One probe at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a breaker opens, and for how long."""

    failures: int = 5
    """Failures in a row that open it."""
    open_seconds: float = 5.0
    """First time it stays open; doubles with each probe that fails."""
    max_open_seconds: float = 60.0
    """Longest time it stays open: how late a receiver that is back is noticed at most."""
    probe_seconds: float = 60.0
    """A probe without an answer after this long counts as failed: its caller is gone."""


class Breaker:
    """One destination's breaker.

    Args:
        policy: When it opens, and for how long.

    Attributes:
        num_opened: How often it opened, failed probes not counted.

    References:
        Nygard, "Release It!", 2007: circuit breaker, half-open state.
    """

    def __init__(self, policy: BreakerPolicy | None = None) -> None:
        self.num_opened = 0
        self._policy = policy or BreakerPolicy()
        self._num_failures = 0
        self._num_openings = 0  # in a row
        self._open_until: float | None = None
        self._probe_since: float | None = None

    def state(self, now: float) -> BreakerState:
        """Return which calls it allows at a time (seconds of any clock that does not jump)."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def admit(self, now: float) -> float | None:
        """Return None if the caller may call, or else seconds after which to ask again.

        Who was admitted tells how it went: `note_success` or `note_failure`.
        """
        if self._open_until is None:
            return None
        if now < self._open_until:
            return self._open_until - now
        if self._probe_since is not None and now < self._probe_since + self._policy.probe_seconds:
            return self._policy.open_seconds
        self._probe_since = now
        return None

    def note_success(self) -> bool:
        """Note that the destination answered: it is closed from now on; return whether it was not."""
        was_open = self._open_until is not None
        self._num_failures = self._num_openings = 0
        self._open_until = self._probe_since = None
        return was_open

    def note_failure(self, now: float) -> None:
        """Note that the destination did not answer, or could not do what it was asked to."""
        self._num_failures += 1
        if self._open_until is None and self._num_failures >= self._policy.failures:
            self.num_opened += 1
            self._open(now)
        elif self._probe_since is not None:
            self._open(now)

    def withdraw(self) -> None:
        """Note that a call that was admitted did not take place: the next caller may probe."""
        self._probe_since = None

    def seconds_open(self, now: float) -> float:
        """Return for how long no call is allowed; 0 if calls are."""
        return max(0.0, (self._open_until or now) - now)

    def _open(self, now: float) -> None:
        doublings = min(self._num_openings, 60)  # by then any time has met its limit
        self._open_until = now + min(self._policy.max_open_seconds, self._policy.open_seconds * 2**doublings)
        self._num_openings += 1
        self._probe_since = None


class RetryBudget:
    """A token bucket: each call pays in a part of a token, each retry takes a whole one.

    Args:
        ratio: Retries per call in the long run.
        reserve: Tokens at the start and at most: retries that a destination with little traffic may have.

    References:
        gRPC proposal A6, retry throttling; "Timeouts, retries and backoff with jitter", Amazon Builders' Library.
    """

    def __init__(self, ratio: float = 0.1, reserve: float = 10.0) -> None:
        self._ratio = ratio
        self._reserve = reserve
        self._tokens = reserve

    def deposit(self) -> None:
        """Note a call."""
        tokens = self._tokens + self._ratio
        self._tokens = tokens if tokens < self._reserve else self._reserve  # noqa: FURB136 - min() costs three times as much

    def withdraw(self) -> bool:
        """Take a token for a retry; return False if there is none, and no retry should be made."""
        if self._tokens < 1.0 - 1e-9:  # ten tenths make one
            return False
        self._tokens -= 1.0
        return True

"""Whether and when a failed try is repeated: exponential backoff with full jitter, within a budget of tries and time.

`RetryPolicy` is for tries in quick succession, by the worker that holds the item; `PostponePolicy` for a result that the
source keeps meanwhile, because its receiver is away for minutes or hours.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Tries that the longest pause a destination may ask for leaves before a result is given up.
_FURTHER_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Decides after each failure.

    References:
        "Exponential backoff and jitter", AWS Architecture Blog, 2015: full jitter spreads retries best.
    """

    max_attempts: int = 3
    """Tries in all, the first included."""
    base_seconds: float = 0.1
    """Upper limit of the first pause."""
    max_seconds: float = 5.0
    """Upper limit of any pause."""
    budget_seconds: float = 30.0
    """Time from the first try within which the last may begin."""

    def next_delay(
        self, attempt: int, elapsed_seconds: float, jitter: float, at_least_seconds: float = 0.0
    ) -> float | None:
        """Return seconds to pause before the next try, or None when the budget is used up.

        Args:
            attempt: Tries made so far, >= 1.
            elapsed_seconds: Since the first try began.
            jitter: Uniform random number, 0 <= jitter < 1.
            at_least_seconds: What the other side asked for (`Retry-After`); the jitter comes on top.
        """
        if attempt >= self.max_attempts:
            return None
        doublings = min(attempt - 1, 60)  # by then any pause has met its limit; 2**1024 is no float
        delay = at_least_seconds + jitter * min(self.max_seconds, self.base_seconds * 2**doublings)
        return delay if elapsed_seconds + delay <= self.budget_seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostponePolicy:
    """Decides for a result that could not be delivered: hold it back, or give up.

    It is time that ends it, not the number of tries: a receiver that is down for ten minutes costs no job, however often the
    job comes by in that time.
    """

    give_up_seconds: float = 86_400.0
    """Time from the first failure after which a further one is final."""
    base_seconds: float = 2.0
    """Upper limit of the first pause."""
    max_seconds: float = 300.0
    """Upper limit of any pause: how long after its receiver is back a result is delivered at the latest."""

    def next_delay(
        self, now: float, since: float | None, tries: int, jitter: float, at_least_seconds: float = 0.0
    ) -> float | None:
        """Return seconds to hold the result back, or None to give up.

        Args:
            now: Unix seconds: it is another machine, perhaps, that decides the next time.
            since: When it could not be delivered for the first time; None: now. A time in the future counts as now.
            tries: How often it was held back, >= 0.
            jitter: Uniform random number, 0 <= jitter < 1.
            at_least_seconds: Until the destination may be called again; the jitter comes on top. However long it asks for, a
                few tries fit into the time.
        """
        if since is not None and now - since >= self.give_up_seconds:
            return None
        doublings = min(tries, 60)  # by then any pause has met its limit
        pause: float = jitter * min(self.max_seconds, self.base_seconds * 2**doublings)
        return min(at_least_seconds, self.give_up_seconds / _FURTHER_TRIES) + pause

"""Whether and when a failed try is repeated: exponential backoff with full jitter, within a budget of tries and time."""

from __future__ import annotations

from dataclasses import dataclass


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

    def next_delay(self, attempt: int, elapsed_seconds: float, jitter: float) -> float | None:
        """Return seconds to pause before the next try, or None when the budget is used up.

        Args:
            attempt: Tries made so far, >= 1.
            elapsed_seconds: Since the first try began.
            jitter: Uniform random number, 0 <= jitter < 1.
        """
        if attempt >= self.max_attempts:
            return None
        doublings = min(attempt - 1, 60)  # by then any pause has met its limit; 2**1024 is no float
        delay = jitter * min(self.max_seconds, self.base_seconds * 2**doublings)
        return delay if elapsed_seconds + delay <= self.budget_seconds else None

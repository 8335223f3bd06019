"""How many lines of one kind a log gets: the first few of each window pass, the others are counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitPolicy:
    """How many pass."""

    lines: int = 20
    """Of one kind in one window."""
    window_seconds: float = 10.0
    most_kinds: int = 500
    """That are counted apart; others share a count."""


@dataclass(slots=True)
class _Window(Generic[T]):
    since: float
    num_passed: int = 0
    num_held: int = 0
    sample: T | None = None
    """Of those that were held back, the first."""


class RateLimit(Generic[T]):
    """Decides which lines pass. Not thread-safe; `now` is of any clock that does not jump.

    Args:
        policy: How many.
    """

    def __init__(self, policy: RateLimitPolicy | None = None) -> None:
        self._policy = policy or RateLimitPolicy()
        self._windows: dict[Hashable, _Window[T]] = {}

    def admit(self, kind: Hashable, sample: T, now: float, *, times: int = 1) -> bool:
        """Return whether a line passes; one that does not is counted.

        Args:
            kind: What it has in common with others.
            sample: By which `list_held` describes the kind.
            now: Seconds.
            times: As many as the policy says, times this, pass.
        """
        if kind not in self._windows and len(self._windows) >= self._policy.most_kinds:
            kind = None
        window = self._windows.get(kind)
        if window is None:
            window = self._windows[kind] = _Window(now)
        if window.num_passed < self._policy.lines * times:
            window.num_passed += 1
            return True
        window.num_held += 1
        if window.sample is None:
            window.sample = sample
        return False

    def list_held(self, now: float, *, is_over: bool = False) -> Iterator[tuple[T, int, float]]:
        """Close the windows that have passed, and give sample, number and seconds of those in which lines were held back.

        Args:
            now: Seconds.
            is_over: Close all.
        """
        for kind, window in list(self._windows.items()):
            seconds = now - window.since
            if not is_over and seconds < self._policy.window_seconds:
                continue
            del self._windows[kind]
            if window.sample is not None:
                yield window.sample, window.num_held, seconds

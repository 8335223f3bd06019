"""Whether and when a worker that died is started again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """The settings of `Restarts`.

    References:
        Full jitter as in `policies.retry`. The storm limit is what service managers use to tell a crash from a service that
        cannot run (systemd's StartLimitBurst is 5 within 10 s).
    """

    base_seconds: float = 0.1
    """Upper limit of the pause after a first death."""
    max_seconds: float = 30.0
    """Upper limit of any pause."""
    healthy_seconds: float = 10.0
    """A life of this length, or one that delivered a job, makes the next pause a first one again."""
    storm_deaths: int = 5
    """Deaths per worker ..."""
    storm_seconds: float = 60.0
    """... within this time, and no job delivered by anybody meanwhile: another start would not help."""


class Restarts:
    """Decides after each end of a worker. Not thread-safe.

    Args:
        policy: The settings.
        num_workers: Workers side by side; a fault that all of them meet kills all of them.
    """

    def __init__(self, policy: RestartPolicy, num_workers: int = 1) -> None:
        self._policy = policy
        self._in_vain = [0] * num_workers
        self._deaths: deque[float] = deque(maxlen=policy.storm_deaths * num_workers)

    def note_delivery(self) -> None:
        """Note that some worker delivered a job: the service works."""
        self._deaths.clear()

    def is_storm(self, now: float) -> bool:
        """Note a death at `now`, seconds on any steady clock, and return whether it is one too many."""
        self._deaths.append(now)
        return len(self._deaths) == self._deaths.maxlen and now - self._deaths[0] <= self._policy.storm_seconds

    def pause(self, worker: int, lived_seconds: float, delivered: bool, jitter: float) -> float:
        """Return seconds to wait before a worker that ended is started again.

        Args:
            worker: Which, from 0.
            lived_seconds: From its start to its end.
            delivered: Whether it delivered a job in this life.
            jitter: Uniform random number, 0 <= jitter < 1.
        """
        policy = self._policy
        healthy = delivered or lived_seconds >= policy.healthy_seconds
        self._in_vain[worker] = 1 if healthy else self._in_vain[worker] + 1
        doublings = min(self._in_vain[worker] - 1, 60)  # by then any pause has met its limit; 2**1024 is no float
        return jitter * min(policy.max_seconds, policy.base_seconds * 2.0**doublings)

    @property
    def storm(self) -> str:
        """What a storm is, for people."""
        return f"workers died {self._deaths.maxlen} times within {self._policy.storm_seconds:g} s"

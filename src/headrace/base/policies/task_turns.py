"""Which task's job is let in, where several share receivers and workers: so that a slow one does not hold up the others.

Each task has a level: how full its own part is, 1 and more where no further job of it should come in. As long as no other task
lacks work, whoever receives waits, as with one task alone. Where another one lacks work, a job of the full one is turned away
instead: its source offers it again later. So that a backlog of a slow task is not carried round and round for the sake of one
that rarely has work, only so many are turned away for each job of the others that was let in.

A plain object that takes `now`. Threads that share one need a lock around each call.
"""

from __future__ import annotations

from collections.abc import Mapping

#: A task lacks work below this level, ...
_LACKING = 0.25
#: ... if a job of it came this recently.
_RECENT_SECONDS = 60.0
#: A task that was full is as it was before below this level.
_RELIEVED = 0.5
#: Jobs turned away for each job of another task that is let in; for each second; and at once at most.
_AWAY_PER_JOB, _AWAY_PER_SECOND, _MOST_AWAY = 10.0, 10.0, 200.0
#: Least and most that a job which is turned away waits; in between, as long as its task has been full.
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 300.0


class TaskTurns:
    """The tasks of one run."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._full_since: dict[str, float] = {}
        self._may_turn_away = _MOST_AWAY
        self._counted_at: float | None = None

    def came(self, task: str, now: float) -> None:
        """Note that a job of a task was received."""
        self._seen[task] = now

    def num_active(self, now: float) -> int:
        """Return how many tasks jobs came for lately."""
        return sum(now - seen < _RECENT_SECONDS for seen in self._seen.values())

    def seconds_away(self, task: str, levels: Mapping[str, float], now: float) -> float | None:
        """Return for how long a job is turned away; 0 if it is let in; None if it is to wait here.

        Args:
            task: Its task.
            levels: How full each task's part is now.
            now: Seconds of any clock that does not jump.
        """
        if levels[task] < _RELIEVED:
            self._full_since.pop(task, None)
        if levels[task] < 1:
            self._may_turn_away = min(_MOST_AWAY, self._may_turn_away + _AWAY_PER_JOB)
            return 0.0
        since = self._full_since.setdefault(task, now)
        if not any(self._lacks_work(other, level, now) for other, level in levels.items() if other != task):
            return None
        if self._counted_at is not None:
            earned = (now - self._counted_at) * _AWAY_PER_SECOND
            self._may_turn_away = min(_MOST_AWAY, self._may_turn_away + earned)
        self._counted_at = now
        if self._may_turn_away < 1:
            return None
        self._may_turn_away -= 1
        return min(_MOST_SECONDS, max(_LEAST_SECONDS, now - since))

    def _lacks_work(self, task: str, level: float, now: float) -> bool:
        return level < _LACKING and now - self._seen.get(task, -_RECENT_SECONDS) < _RECENT_SECONDS

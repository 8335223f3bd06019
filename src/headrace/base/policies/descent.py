"""When a run goes down a rung of its ladder, and when up again; see `budget`.

Down at once where a budget is exceeded, then not again before the step could show. Up only after it was clear for a while. A
step up that was regretted makes that while twice as long, so that a run between two rungs does not go up and down for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: What is measured is to have followed a step by then.
_SETTLE_SECONDS = 1.0
#: How long it has to be clear before a step up: at first, and at most.
_HOLD_SECONDS, _LONGEST_HOLD_SECONDS = 5.0, 300.0


@dataclass(slots=True)
class Descent:
    """Where on the ladder a run is; used by one thread.

    Attributes:
        rung: 0 is the Plan as it is, `num_rungs` the lowest.
    """

    num_rungs: int
    rung: int = 0
    _stepped_at: float | None = None
    _went_up_at: float | None = None
    _clear_since: float | None = None
    _hold_seconds: float = field(default_factory=lambda: _HOLD_SECONDS)

    def look(self, now: float, *, is_over: bool, is_clear: bool) -> int:
        """Return the steps to take: 1 is down, -1 up.

        Args:
            now: Seconds of a steady clock.
            is_over: Whether a budget is exceeded.
            is_clear: Whether all that is measured is well below.
        """
        if is_over or not is_clear:
            self._clear_since = None
        elif self._clear_since is None:
            self._clear_since = now
        if is_over:
            return self._go_down(now)
        is_due = self._clear_since is not None and now - self._clear_since >= self._hold_seconds
        if self.rung == 0 or not is_due:
            return 0
        self.rung, self._stepped_at, self._went_up_at, self._clear_since = self.rung - 1, now, now, now
        return -1

    def _go_down(self, now: float) -> int:
        has_settled = self._stepped_at is None or now - self._stepped_at >= _SETTLE_SECONDS
        if self.rung == self.num_rungs or not has_settled:
            return 0
        if self._went_up_at is not None:
            was_regretted = now - self._went_up_at < 2 * self._hold_seconds
            longer = min(2 * self._hold_seconds, _LONGEST_HOLD_SECONDS)
            self._hold_seconds = longer if was_regretted else _HOLD_SECONDS
        self.rung, self._stepped_at, self._went_up_at = self.rung + 1, now, None
        return 1

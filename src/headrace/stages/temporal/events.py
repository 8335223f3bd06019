"""When something began and when it ended, told once each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.base.settings import check
from headrace.base.signature import check_takes


class Events:
    """Notes in each frame whether something goes on, and in one frame each that it began and that it ended.

    It begins once the condition has held for `on_after` seconds without a break, and ends once it has not for `off_after`.

    The new value is a mapping: what was there (a value that is no mapping: under `value`), and `on`; `event`: `began`, `ended`
    or None; `since`: the time at which the condition first held (or no longer held) that brought the present state, or None
    before the first event.

    Args:
        is_on: Condition on a value, such as `lambda result: result["label"] == "crossing"`.
        on_after: Seconds.
        off_after: Seconds.
    """

    def __init__(self, is_on: Callable[[Any], bool], *, on_after: float = 0.5, off_after: float = 0.5) -> None:
        check(callable(is_on), "is_on", is_on, "a callable: value -> bool")
        check_takes(is_on, ("value",), "is_on of Events")
        for name, seconds in (("on_after", on_after), ("off_after", off_after)):
            is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0
            check(is_time, name, seconds, "seconds >= 0")
        self._is_on = is_on
        self._after = {True: on_after, False: off_after}
        self._on = False
        self._since: float | None = None
        self._other_since: float | None = None

    def __call__(self, value: Any, seconds: float) -> dict[str, Any]:
        """Return the value with what goes on."""
        holds, event = bool(self._is_on(value)), None
        if holds == self._on:
            self._other_since = None
        else:
            self._other_since = seconds if self._other_since is None else self._other_since
            if seconds - self._other_since >= self._after[holds]:
                self._on, self._since, self._other_since = holds, self._other_since, None
                event = "began" if holds else "ended"
        kept = value if isinstance(value, Mapping) else {"value": value}
        return {**kept, "on": self._on, "event": event, "since": self._since}

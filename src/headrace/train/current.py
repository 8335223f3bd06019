"""Which session records this process already: a loop is recorded once, whatever the script holds.

`arming` says here how the session of `headrace train` is got; `profile` and the callbacks of frameworks ask before they
begin one of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Returns a `Session`, or None; that module imports this one.
_ways: list[Callable[[], Any]] = []


def set_armed(start: Callable[[], Any]) -> None:
    """Let `start` return the session of `headrace train`, making it if needed."""
    _ways[:] = [start]


def armed_session() -> Any:
    """Return the `Session` by which `headrace train` records this process; None if it does not."""
    return _ways[0]() if _ways else None

"""Which session records this process already: a loop is recorded once, whatever the script holds.

`arming` says here how the session of `headrace train` is got; `profile` and the callbacks of frameworks ask before they
begin one of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

#: Returns a `Session`, or None; that module imports this one.
_ways: list[Callable[[], Any]] = []
#: Variables of headrace as they were when this process began: a script may clear its environment before it trains.
_asked: dict[str, str] = {}


def set_armed(start: Callable[[], Any]) -> None:
    """Let `start` return the session of `headrace train`, making it if needed."""
    _ways[:] = [start]


def armed_session() -> Any:
    """Return the `Session` by which `headrace train` records this process; None if it does not."""
    return _ways[0]() if _ways else None


def set_asked(variables: Mapping[str, str]) -> None:
    """Note what the environment asked of this process when it began; `armed/sitecustomize.py` does."""
    _asked.update(variables)


def read_asked(variable: str) -> str:
    """Return what `headrace train`, or the environment, asks of this process by a variable; empty: nothing."""
    return _asked.get(variable) or os.environ.get(variable, "")

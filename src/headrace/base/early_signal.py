"""SIGUSR2 that comes while a command still imports its modules: noted, because its default is to end the process.

`headrace run` and `serve` may be told to write an incident at any time, by people who do not know that it has only just begun.
A handler and not SIG_IGN: programs that are started would inherit that.
"""

from __future__ import annotations

import signal
from types import FrameType

_came: list[int] = []


def note_sigusr2() -> None:
    """Note the signal from now on, unless somebody takes it already."""
    if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR2, _note)


def is_taken() -> bool:
    """Return whether somebody but this module takes it, or ignores it."""
    return signal.getsignal(signal.SIGUSR2) not in (signal.SIG_DFL, _note)


def take_noted() -> bool:
    """Return whether it came since this was last asked."""
    came = bool(_came)
    _came.clear()
    return came


def _note(number: int, frame: FrameType | None) -> None:
    _came[:] = [number]

"""What a process that runs a stage does before anything else: it is spawned, and knows nothing of what its parent set up."""

from __future__ import annotations

from collections.abc import Callable

#: Sent to the child by pickle: functions of modules, or partials of such.
Setup = Callable[[], object]

_setups: list[Setup] = []


def add_setup(setup: Setup) -> None:
    """Let processes that are started from now on call this first."""
    _setups.append(setup)


def remove_setup(setup: Setup) -> None:
    """Let them call it no more."""
    if setup in _setups:
        _setups.remove(setup)


def list_setups() -> tuple[Setup, ...]:
    """Return what they call, in order."""
    return tuple(_setups)

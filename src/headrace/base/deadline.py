"""Until when the job is wanted that a thread works on: waits on the outside are cut to it, and what is late is not begun.

How this works: the worker notes the deadline of the job in its hands for as long as its stages run (`limit_to_deadline`), and
whoever waits on their behalf asks how much is left (`seconds_left`). A job without a deadline, which most are, is not noted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator

from headrace.base.errors import DeadlinePassed
from headrace.base.records import Outcome, OutcomeKind


class _CurrentDeadline(threading.local):
    deadline_ns: int | None = None


_current = _CurrentDeadline()


@contextlib.contextmanager
def limit_to_deadline(deadline_ns: int) -> Iterator[None]:
    """Note the deadline (ns of the host's monotonic clock) of what this thread works on, for the length of a block."""
    note_deadline(deadline_ns)
    try:
        yield
    finally:
        note_deadline(None)


def note_deadline(deadline_ns: int | None) -> None:
    """Note until when what this thread works on is wanted, until something else is noted; None: without limit."""
    _current.deadline_ns = deadline_ns


def seconds_left() -> float | None:
    """Return the seconds to the deadline of this thread's job, perhaps below 0; None if it has no deadline."""
    deadline_ns = _current.deadline_ns
    return None if deadline_ns is None else (deadline_ns - time.monotonic_ns()) / 1e9


def late(deadline_ns: int, now_ns: int) -> DeadlinePassed:
    """Return the end of a job whose deadline has passed."""
    return DeadlinePassed(f"deadline.passed: the job's deadline passed {(now_ns - deadline_ns) / 1e9:.3f} s ago")


def refuse_late(deadline_ns: int, now_ns: int) -> None:
    """Raise DeadlinePassed if a deadline has passed."""
    if now_ns > deadline_ns:
        raise late(deadline_ns, now_ns)


def drop_late_tries(outcome: Outcome, deadline_ns: int | None, now_ns: int) -> Outcome:
    """Return an outcome, or the end of a job whose next try would come after its deadline."""
    if (
        deadline_ns is None
        or not (outcome.kind is OutcomeKind.RETRY or outcome.is_put_aside)
        or now_ns + outcome.delay_seconds * 1e9 <= deadline_ns
    ):
        return outcome
    left = (deadline_ns - now_ns) / 1e9
    reason = f"deadline.passed: the next try would come {outcome.delay_seconds - left:.1f} s after the job's deadline"
    return dataclasses.replace(
        outcome,
        kind=OutcomeKind.REJECTED,
        reason=f"{reason}; the last one ended with: {outcome.reason}",
        delay_seconds=0.0,
    )

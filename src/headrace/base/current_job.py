"""The jobs that the calling thread works on, for user code that needs more of a job than its value.

How this works: a worker notes the items that it hands to a stage, and drops them when it is through with them. A note is one
attribute of the thread; whoever asks pays for the list.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from headrace.base.errors import ItemError, SettingsError
from headrace.base.records import Job


class Worked(Protocol):
    """What is noted: an item, as far as it is asked for here."""

    placement: Any
    """Of its image in what the model takes; None where nothing was decoded."""

    @property
    def id(self) -> str:
        """The job's, or that of a part that was cut from it."""
        ...

    @property
    def job(self) -> Job:
        """The job that it belongs to."""
        ...


class Returned(Worked, Protocol):
    """An item that came back from a child process."""

    value: Any
    """What the next stage takes; after an error what this one took."""
    error: ItemError | None
    """Why the stage failed; None while all is well."""


class _Hands(threading.local):
    items: Sequence[Worked] = ()


#: Of each thread; workers alone write it.
hands = _Hands()


def current_jobs() -> list[Job]:
    """Return the jobs that this thread works on.

    In `preprocess`, `postprocess` and stages of your own it is one, in `process` one for each input of the batch, in its order.
    Children of a fan-out have their parent's job.

    Raises:
        SettingsError: If there is none: outside of a pipeline's worker, or in a child process (`executor = "process"`), which
            gets values alone.
    """
    jobs = [item.job for item in hands.items]
    if not jobs or not jobs[0].id:
        raise SettingsError(
            "current_jobs() was called where no job is at hand: call it within preprocess, process, postprocess or a stage of "
            "your own, with executor thread or inline; a child process (executor = 'process') gets values alone"
        )
    return jobs

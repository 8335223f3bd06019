"""A worker: the opened stages of a station that run one after the other, and the name by which spans know them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.base.policies.batching import ReleaseReason
from headrace.base.policies.shares import Call
from headrace.pipeline.group import Unpack
from headrace.pipeline.item import Item
from headrace.pipeline.remote import RemoteGroup
from headrace.pipeline.resources import Claim
from headrace.pipeline.warm_up import CostCurve

#: Names the threads that take jobs from the source, and with them the workers that run in those threads.
RECEIVER = "receiver"


class RunsItems(Protocol):
    """A `Group`, here or in another process."""

    process_id: int
    """Where it runs; changes when a process is replaced."""

    def run(self, items: Sequence[Item], reason: ReleaseReason | None) -> Unpack | None:
        """Run items through the stages; see `Group.run`."""
        ...

    def warm_up(self, item: Item) -> CostCurve | None:
        """Measure the batch sizes."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerThread:
    """The thread in which a worker's stages run."""

    process: int
    thread_id: int
    """The kernel's."""
    name: str
    """As in the spans."""


class Worker:
    """One worker's opened group and its name for spans."""

    def __init__(self, group: RunsItems, name: str, number: int = 0, claim: Claim | None = None) -> None:
        self.group = group
        self.claim = claim
        """To what its stages need of the run's resources; None: nothing."""
        self.name = name
        self.number = number
        self.busy_since = 0
        self.hand: tuple[int, list[Item]] | None = None
        """Since when (ns) and what is in the stages now, where nobody else watches how long; replaced as one."""
        self.is_left_behind = False
        self.call: Call | None = None
        """What it asks of others, where its station's workers are shared out among those."""
        self._thread_id: int | None = None

    def begin(self) -> None:
        """Note that the thread that calls this is the worker's."""
        self._thread_id = threading.get_native_id()

    def place(self) -> WorkerThread | None:
        """Return where the worker's stages run; None before it has begun."""
        if self._thread_id is None:
            return None
        if isinstance(self.group, RemoteGroup):
            return WorkerThread(self.group.process_id, self.group.process_id, self.name)
        return WorkerThread(self.group.process_id, self._thread_id, self.name)

    def close(self) -> None:
        """Let a process of its own end; called by the worker's thread, which alone talks to it."""
        if isinstance(self.group, RemoteGroup):
            self.group.close()

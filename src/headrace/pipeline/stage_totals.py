"""What went through one stage of a run, in numbers: exact counts and sums, and samples of its times in bounded memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.base.reservoir import Reservoir

#: Takes a stage's name, service times and queue waits of its latest passages, ns. Called under a lock: it must be quick.
TakeTimes = Callable[[str, Sequence[int], Sequence[int]], object]


@dataclass(frozen=True, slots=True)
class Window:
    """What a stage did between the first and the last start of its work, so that filling and draining do not count."""

    items: int
    """Items whose work began before the last start."""
    seconds: float

    @property
    def throughput(self) -> float:
        """Items per second."""
        return self.items / self.seconds


@dataclass(slots=True)
class StageTotals:
    """One stage of a run in numbers; used under a lock of its owner.

    Whoever counts a passage appends to `starts`, `ends` and `waits`, and adds to `failed`: a call for each would cost as much
    as all the rest.
    """

    name: str
    service: Reservoir
    queue_wait: Reservoir
    items: int = 0
    failed: int = 0
    busy_ns: float = 0.0
    blocked_ns: int = 0
    handing_on: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By worker: when its last work ended and was put, until its next tells how much of that it was blocked."""
    first_start_ns: int | None = None
    last_start_ns: int = 0
    num_last_started: int = 0
    num_batches: int = 0
    num_batched: int = 0
    release_reasons: dict[str, int] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    """Of the latest passages, which are not in `items`, `busy_ns` and the samples yet; as are the two below."""
    ends: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    tell: TakeTimes | None = None
    """Takes the times of the latest passages when they are counted; None: nobody asked."""

    def count_share(self, service_ns: int, batch_size: int) -> None:
        """Count one item of a batch, which has the batch's times, with its share, so that together they count once."""
        self.busy_ns -= service_ns - service_ns / batch_size

    def count_blocked(self, worker: str, started: int, ended: int, put: int) -> None:
        """Count how long a worker was blocked before this work, and note when this ended and when all of it was put.

        A worker is blocked from the end of all that it took until that is put, or until it starts on the next, whichever is
        first: of a batch it may start on the next before.
        """
        ended_before, put_before = self.handing_on.get(worker, (0, 0))
        until = put_before if put_before < started else started  # noqa: FURB136 - min() costs three times as much
        if until > ended_before:
            self.blocked_ns += until - ended_before
        self.handing_on[worker] = (ended, put)

    def sort_in(self) -> None:
        """Count the latest passages, and offer them to the samples."""
        starts = self.starts
        if not starts:
            return
        services = list(map(operator.sub, self.ends, starts))
        self.items += len(starts)
        self.busy_ns += sum(services)
        self.service.extend(services)
        self.queue_wait.extend(self.waits)
        if self.tell is not None:
            self.tell(self.name, services, self.waits)
        first, last = min(starts), max(starts)
        self.first_start_ns = first if self.first_start_ns is None else min(first, self.first_start_ns)
        if last > self.last_start_ns:
            self.last_start_ns, self.num_last_started = last, 0
        self.num_last_started += starts.count(self.last_start_ns)
        self.starts, self.ends, self.waits = [], [], []

    def blocked_seconds(self) -> float:
        """Return the time in which workers, their work done, waited for room in the next queue."""
        return (self.blocked_ns + sum(put - ended for ended, put in self.handing_on.values())) / 1e9

    def window(self) -> Window | None:
        """Return what was done between the first and the last start; None with a single one or none."""
        self.sort_in()
        if self.first_start_ns is None or self.last_start_ns <= self.first_start_ns:
            return None
        return Window(self.items - self.num_last_started, (self.last_start_ns - self.first_start_ns) / 1e9)

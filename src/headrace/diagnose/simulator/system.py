"""What is simulated: stations with their workers and queues, what each unit of work needs there, cores, the GIL, and arrivals.

A plain description, made from a recorded run by `diagnose.replay`, or by hand. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.base.policies.batching import BatchingPolicy
from headrace.base.policies.expected_wait import ExpectedWait

#: What a phase of work uses. Plain numbers: the loop compares them some hundred thousand times.
WAIT = 0  # nothing: it waits on the outside
CPU = 1  # a core, without the GIL
GIL = 2  # a core and the GIL
TAKE = 3  # an exclusive resource, which it waits for and keeps; the amount is its number
GIVE = 4  # gives that resource back
SPREAD = 5  # as many cores as the station has threads, each for that long

#: (kind, amount): seconds of a core or of waiting, or the number of a resource.
Phase: TypeAlias = tuple[int, float]
#: What one unit needs in one station, in order; phases of no length are left out.
Program: TypeAlias = tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """A try that fails: what it costs, and how long until the unit is in the queue again."""

    program: Program
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """One queue and its workers."""

    name: str
    workers: int
    capacity: int
    """Bound of the queue, in units."""
    programs: Sequence[Program] = ()
    """What each unit needs; of a station that takes batches: what one unit alone needs beyond its batch, often nothing."""
    batching: BatchingPolicy | None = None
    """The runtime's own policy; None: units one by one."""
    batch_program: Callable[[int, int], Program] | None = None
    """Of a batch, from its size and its first unit."""
    shapes: Sequence[int] | None = None
    """Code of each unit's shape; only units of one shape share a batch. None: all are alike."""
    chunk: int = 1
    """Cheap units a worker takes at a time, at most."""
    units_per_wake: int = 1
    """Units that are worth waking one more worker for, where waking costs something."""
    hands_on_aside: bool = False
    """A thread of its own hands results on, so that a full queue after it stops a worker one batch later."""
    children: Sequence[int] | None = None
    """A fan-out: how many children each unit has. They go to the next station, and are its units, numbered in order."""
    joins: bool = False
    """The units are those of the last fan-out before it; each arrives when the last of its children does."""
    ordered: bool = False
    """Units enter the queue in the order in which they were received."""
    threads: float = 1.0
    """Cores that a SPREAD phase keeps busy, on an average."""
    claims: Sequence[tuple[int, int]] = ()
    """(number of an exclusive resource, how much of it) that a worker has while it is busy, and waits for before it takes a
    batch."""
    retries: Mapping[int, Sequence[Retry]] = field(default_factory=dict)
    """{unit: tries that fail before the one that succeeds}."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The source's own thread, which makes one job after another ready for the receivers."""

    program: Program
    """What it does for a job."""
    depth: int
    """The most jobs that are ready for one call; the thread has one more in hand then, and waits."""
    threads: float = 1.0
    """As of a station."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receivers:
    """Who takes jobs from the source and puts them into the first station's queue."""

    num: int = 1
    call_seconds: float = 0.0
    """What a call of the source takes; it waits on the outside."""
    jobs_per_call: int = 10
    """Most jobs that one call brings."""
    programs: Sequence[Program] | None = None
    """What each job needs within the receiver (inline stages); None: nothing."""
    batch: int = 1
    """Jobs that the receiver runs at once."""
    batch_program: Callable[[int, int], Program] | None = None
    threads: float = 1.0
    """As of a station."""
    reader: Reader | None = None
    """None: every job is ready when it has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A pipeline, as the simulator sees it."""

    stations: Sequence[Station]
    """In the order in which a unit meets them."""
    num_jobs: int
    receivers: Receivers = Receivers()
    routes: Sequence[Sequence[int]] | None = None
    """The numbers of the stations on each route that a job may take; None: one route, through all of them."""
    route_of: Sequence[int] = ()
    """For each job the number of its route; empty with one route."""
    cores: float = 1.0
    others: float = 0.0
    """Threads of other programs that want a core all the time."""
    taken: float = 0.0
    """Cores that other programs are given whatever happens, less than `cores`."""
    slowdown: float = 1.0
    """Seconds of a core that a second of CPU phases takes while all cores are wanted: switching, shared caches and memory."""
    slice_seconds: float = 0.0
    """How long a thread keeps its core while another is ready: threads take turns on whole cores then, and whoever is there
    first takes the GIL. 0: at any moment all share the cores evenly, and the GIL goes from hand to hand."""
    gil_wake_seconds: float = 20e-6
    """Where they take turns: what a thread has to do on its core, once it is woken, before it can ask for the GIL. Measured on
    two cores (AMD EPYC) with threads that computed with and without it: the rates of both came out best with this."""
    wake_seconds: float = 0.0
    """What a thread that waited for the GIL takes to go on when it is given it."""
    handoff_seconds: float = 0.0
    """CPU time of waking a worker that sleeps, of the waker and of the worker together; 0: it costs nothing."""
    waker_phase: int = CPU
    """What the waker's half of it uses: a core, or a core and the GIL."""
    switch_seconds: float = 0.005
    """How long a thread may keep the GIL once another waits for it (`sys.getswitchinterval`)."""
    resources: Sequence[int] = ()
    """Capacity of each exclusive resource: devices, locks."""
    resource_names: Sequence[str] = ()
    """Of each: `lock:STAGE`, or with all the stages that it serves `device:STAGE,STAGE`, and `uses NAME:STAGE,STAGE` for one of
    the Plan's."""
    max_in_flight: int | None = None
    """Jobs received and not yet done."""
    arrivals: Sequence[float] | None = None
    """When each job comes; None: all are there from the start."""
    deadline_seconds: float | None = None
    """So long after it came a job is worthless, and no station begins to work on it; None: it never is."""
    admission: ExpectedWait | None = None
    """The runtime's own policy, which learns: a new one for each simulation. None: every job is let in."""

"""What travels through a running pipeline: a job, or one of the children that a fan-out cut from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from headrace.base.errors import ItemError
from headrace.base.parking import Bell
from headrace.base.records import Job, Kept
from headrace.pipeline.arms import Arm
from headrace.pipeline.sizes import measure
from headrace.stages.stage import Stage


class Intake(Protocol):
    """A station's queue, as those who put items into it see it."""

    def put(self, items: Sequence[Item], *, force: bool = False, has_room: bool = False) -> list[int]:
        """Add items, and return when each was taken in (ns); see `BoundedQueue.put`."""
        ...

    def wait_for_room(self) -> None:
        """Wait while the queue is full."""
        ...

    def find_room(self, items: Sequence[Item], bell: Bell) -> int:
        """Return how many of the items, from the first, find room; the bell is rung once there is room for more."""
        ...


class Orders(Protocol):
    """What puts items in order; see `ordering.Reorderer`."""

    def expect(self, item: Item) -> None:
        """Note an item that will come."""
        ...

    def push(self, items: list[Item]) -> None:
        """Take items, and send on what is next in order."""
        ...

    def skip(self, item: Item) -> None:
        """Note that an item has ended."""
        ...


class Stop(Protocol):
    """A station, as those who send items there see it."""

    @property
    def name(self) -> str:
        """That of its first stage."""
        ...

    @property
    def stages(self) -> Sequence[Stage]:
        """What it runs, in order."""
        ...

    @property
    def last_role(self) -> str:
        """Role of its last stage."""
        ...

    @property
    def only_delivers(self) -> bool:
        """Whether whoever comes here has a result already."""
        ...

    @property
    def has_queue(self) -> bool:
        """Whether it has workers of its own."""
        ...

    @property
    def runs_in_place(self) -> bool:
        """Whether whoever brings items runs them."""
        ...

    def run_in_place(self, items: list[Item]) -> list[int]:
        """Run items in the thread that brings them, and return when each came (ns)."""
        ...

    @property
    def queue(self) -> Intake:
        """Where items wait for it."""
        ...

    @property
    def reorderer(self) -> Orders | None:
        """What puts those that come in order; None: they come as they may."""
        ...


class StageTiming(msgspec.Struct, gc=False, array_like=True):
    """One passage of one item through one stage, as the worker saw it; see `work_notes.WorkNote` for what becomes of it."""

    stage: int
    """Index in the worker's group."""
    started: int
    ended: int
    bytes_in: int
    bytes_out: int
    shape_key: str | None
    outcome: str = "ok"
    batch_id: int | None = None
    batch_size: int | None = None
    reason: str | None = None
    cpu: int | None = None
    """CPU time of the service, ns; None where it was not read."""
    run_delay: int | None = None


class Item:
    """One unit of work inside the pipeline.

    Attributes:
        id: The job's id; for a child the parent's id and its number.
        value: What the next stage gets.
        num_bytes: Size of the value, for the bound of the queue that holds it.
        shape_key: Shape and type of the value where it is an array; items of one batch share it.
        route: The stations still to come and those passed, in order.
        position: Index in the route.
        sequence: Order of receipt.
        arrived, queue_depth: Set by the queue that holds it.
        tries, first_try_ns: In the present station, for its retry policy.
        entry: Value, size, shape key and flight with which it entered the present station; a retry starts from there.
        kept: The result that an earlier delivery of the job left; None for none.
        error: Why the last stage failed; None while all is well.
        timings: Passages through the stages of the present station.
        settled: The source was told how the job ended.
        inside: It still counts against the items in flight; results that wait to become durable do not.
        weight: How many jobs this one stands for in the spans; see `base.metering`.
        arm: Whose model answers it; None: there is no canary.
        has_run: Of a root: whether a model has answered it while there was one.
        parent, child_index: For a child.
        flight: What the Plan's caches have to do with it, a `caching.Flight`; None: nothing was looked up.
        placement: Where the pixels of its image are in what the model takes, a `Placement`; None where none was decoded.
        pending, gathered, keep: For a parent: children still out, their results, what the fan-out kept.
    """

    __slots__ = (
        "arm",
        "arrived",
        "child_index",
        "entry",
        "error",
        "first_try_ns",
        "flight",
        "gathered",
        "has_run",
        "id",
        "inside",
        "job",
        "keep",
        "kept",
        "num_bytes",
        "parent",
        "pending",
        "placement",
        "position",
        "queue_depth",
        "received",
        "route",
        "sequence",
        "settled",
        "shape_key",
        "timings",
        "tries",
        "value",
        "weight",
    )

    def __init__(
        self,
        job: Job,
        value: Any,
        route: tuple[Stop, ...],
        *,
        sequence: int = 0,
        received: int = 0,
        parent: Item | None = None,
        child_index: int = 0,
        weight: int = 1,
    ) -> None:
        self.job = job
        self.id: str = job.id if parent is None else f"{parent.id}/{child_index}"
        self.value = value
        self.num_bytes, self.shape_key = measure(value)
        self.route = route
        self.position: int = 0 if parent is None else parent.position
        self.sequence = sequence
        self.received = received
        self.arrived = received
        self.queue_depth = 0
        self.tries = 0
        self.first_try_ns = 0
        self.entry: tuple[Any, int, str | None, Any] | None = None
        self.kept: Kept | None = None
        self.error: ItemError | None = None
        self.timings: list[StageTiming] = []
        self.settled = False
        self.inside = True
        self.parent = parent
        self.child_index = child_index
        self.weight: int = weight if parent is None else parent.weight
        self.placement: Any = None if parent is None else parent.placement
        self.flight: Any = None
        self.arm: Arm | None = None if parent is None else parent.arm
        self.has_run = False
        self.pending = 0
        self.gathered: list[Any] = []
        self.keep: Any = None

    @property
    def root(self) -> Item:
        """The item that stands for the whole job."""
        item = self
        while item.parent is not None:
            item = item.parent
        return item

    def step_to(self, position: int) -> None:
        """Come to a station, where tries are counted from none."""
        self.entry = None
        self.tries = 0
        self.position = position

    def child(self, value: Any, index: int) -> Item:
        """Return what a fan-out cut from this item, at the station where it was cut."""
        return Item(
            self.job, value, self.route, sequence=self.sequence, received=self.received, parent=self, child_index=index
        )

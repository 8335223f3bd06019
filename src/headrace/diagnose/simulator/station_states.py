"""The moving parts of a simulation: workers, and stations at work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from headrace.diagnose.simulator.system import GIL, Program, Reader, Station, System


class Worker:
    """One worker, receiver, or thread that hands on for a device."""

    __slots__ = (
        "aside", "at", "came_on_core", "claimed", "contends", "debt", "ended", "ends", "handed_on", "index", "is_on_core",
        "is_stuck", "is_within", "left", "master", "needs_gil", "parked", "program", "since", "state", "threads", "to_do",
        "token", "units", "used",
    )  # fmt: skip

    def __init__(self, state: StationState, master: Worker | None = None) -> None:
        self.state = state
        self.program: Program = ()
        self.at = 0
        """Phases of the program that have begun."""
        self.units: list[int] = []
        self.index = 0
        """How many of `units` have been handed on."""
        self.claimed: list[int] = []
        """Of a receiver: jobs received, to be run or handed on after `units`."""
        self.debt = 0.0
        """CPU seconds of waking others that it has still to spend."""
        self.token = 0
        """Of its entry among the work on cores; an entry with another one is void."""
        self.threads = 1.0
        """Of the work on cores that it does now."""
        self.ends = 0.0
        """Where the virtual clock stands when that work ends."""
        self.left = 0.0
        """What is left of a phase with the GIL, seconds."""
        self.since = 0.0
        """Since when it is idle or blocked."""
        self.is_on_core = False
        """It has its turn on a core; where threads take turns."""
        self.came_on_core = 0.0
        """When that began."""
        self.used = 0.0
        """Seconds of a core that it has had, which decide whose turn is next."""
        self.to_do = 0.0
        """Seconds of its work that are left, while it is ready and waits for a core."""
        self.contends = False
        """It is waking up to ask for the GIL."""
        self.needs_gil = 0.0
        """Seconds that it has to do with the GIL then."""
        self.ended: Callable[[Worker], None] = _not_wired
        """What to do when the program has ended."""
        self.handed_on: Callable[[Worker], None] = _not_wired
        """What to do when all units have been handed on."""
        self.master = master
        """Whose units it hands on."""
        self.aside: Worker | None = None
        """Hands on in its stead."""
        self.parked: list[int] | None = None
        """Units that wait for `aside`."""
        self.is_within = False
        """It waits for the GIL in the middle of its program."""
        self.is_stuck = False
        """There are units parked already, and more are done."""


def _not_wired(worker: Worker) -> None:
    raise RuntimeError("a worker was not told what to do next")


class StationState:
    """A station at work."""

    __slots__ = (
        "_followers", "_held", "_next_in_order", "_route_of", "_tries", "batches", "blocked", "capacity", "due",
        "first_child", "full", "full_since", "gil_wait", "holds_jobs", "idle", "idle_time", "join", "joined", "parent",
        "pending", "producers", "queue", "station", "taken", "threads", "wait", "waking", "workers",
    )  # fmt: skip

    def __init__(self, station: Station) -> None:
        self.station = station
        self.threads = station.threads
        self.capacity = max(1, station.capacity)
        self.queue: deque[tuple[int, float]] = deque()
        """(unit, when it came)."""
        self.workers = [Worker(self) for _ in range(station.workers)]
        if station.hands_on_aside:
            for worker in self.workers:
                worker.aside = Worker(self, worker)
        self.idle: list[Worker] = []
        self.waking = 0
        """Workers that were woken and are on their way to the queue."""
        self.producers: deque[Worker] = deque()
        """Who waits for room in the queue."""
        self.due = -1.0
        """When the batch that is waited for is looked at again."""
        self.holds_jobs = True
        """The units are jobs, and not children of them."""
        self.joined: StationState | None = None
        """Of a join: the fan-out whose units come together here."""
        self.join: StationState | None = None
        """Of a fan-out: where its units come together."""
        self.first_child: list[int] | None = None
        """Of a fan-out: the first child of each unit, and one more for the end."""
        self.parent: list[int] = []
        """Of a fan-out: the unit of each child."""
        self.pending: list[int] = []
        self._held: set[int] = set()
        self._next_in_order = 0
        self._tries: dict[int, int] = {}
        self._followers: list[StationState | None] = [None]
        self._route_of: Sequence[int] = ()
        self.wait = 0.0
        self.taken = 0
        self.batches = 0
        self.idle_time = 0.0
        self.blocked = 0.0
        self.gil_wait = 0.0
        self.full = 0.0
        self.full_since = -1.0

    def follow(self, followers: list[StationState | None], route_of: Sequence[int]) -> None:
        """Say which station comes after this one on each route."""
        self._followers, self._route_of = followers, route_of

    def after(self, unit: int) -> StationState | None:
        """Return where a unit goes from here; None: it is done."""
        return self._followers[self._route_of[unit]] if self._route_of else self._followers[0]

    def alike(self, limit: int) -> tuple[int, bool]:
        """Return how many units at the head of the queue have one shape, up to limit, and whether another shape follows."""
        shapes, queue = self.station.shapes, self.queue
        count = min(len(queue), limit)
        if shapes is None:
            return count, False
        first = shapes[queue[0][0]]
        for number in range(1, count):
            if shapes[queue[number][0]] != first:
                return number, True
        return count, False

    def program(self, unit: int) -> Program:
        """Return what a unit needs at its next try."""
        retries = self.station.retries.get(unit)
        if retries:
            tried = self._tries.get(unit, 0)
            if tried < len(retries):
                return retries[tried].program
        return self.station.programs[unit]

    def merge(self, units: Sequence[int]) -> Program:
        """Return what several cheap units need one after the other, in as few phases as that takes."""
        seconds = [0.0, 0.0, 0.0]
        programs = [self.program(unit) for unit in units]
        for program in programs:
            for kind, amount in program:
                if kind > GIL:
                    return tuple(phase for program in programs for phase in program)
                seconds[kind] += amount
        return tuple((kind, amount) for kind, amount in enumerate(seconds) if amount > 0.0)

    def fails(self, unit: int) -> bool:
        """Return whether the try that has just ended fails."""
        return self._tries.get(unit, 0) < len(self.station.retries.get(unit, ()))

    def note_failure(self, unit: int) -> float:
        """Count a failed try and return seconds until the next."""
        tried = self._tries.get(unit, 0)
        self._tries[unit] = tried + 1
        return self.station.retries[unit][tried].delay_seconds

    def in_order(self, unit: int) -> list[int]:
        """Return the units that may go on in order, now that this one has come."""
        self._held.add(unit)
        ready = []
        while self._next_in_order in self._held:
            self._held.discard(self._next_in_order)
            ready.append(self._next_in_order)
            self._next_in_order += 1
        return ready

    def children(self, unit: int) -> tuple[int, int]:
        """Return the first child of a unit and the one after its last."""
        assert self.first_child is not None
        return self.first_child[unit], self.first_child[unit + 1]

    def cut(self, num_children: Sequence[int]) -> None:
        """Number the children of a fan-out."""
        self.first_child = [0]
        for unit, number in enumerate(num_children):
            self.first_child.append(self.first_child[-1] + number)
            self.parent.extend([unit] * number)
        self.pending = list(num_children)

    def gathers(self, child: int) -> bool:
        """Return whether this was the last child of its unit; called for a join."""
        fan_out = self.joined
        assert fan_out is not None
        unit = fan_out.parent[child]
        fan_out.pending[unit] -= 1
        return fan_out.pending[unit] == 0

    def close(self, elapsed: float) -> None:
        """Count what is still going on at the end."""
        for worker in self.idle:
            self.idle_time += elapsed - worker.since
        for worker in self.producers:
            if worker.master is None:
                worker.state.blocked += elapsed - worker.since
            elif worker.master.is_stuck:
                worker.state.blocked += elapsed - worker.master.since
        if self.full_since >= 0.0:
            self.full += elapsed - self.full_since


def connect(system: System) -> tuple[StationState, list[StationState]]:
    """Return the state of the receivers, and those of the stations, each knowing what comes after it."""
    states = [StationState(station) for station in system.stations]
    _pair_fan_outs(states)
    routes = [list(range(len(states)))] if system.routes is None else [list(route) for route in system.routes]
    receivers = system.receivers
    receiving = StationState(Station(name="receiving", workers=receivers.num, capacity=1, threads=receivers.threads))
    # By the runtime's rules the route of a job is known from its task when it is received.
    receiving.follow([states[route[0]] if route else None for route in routes], system.route_of)
    outer: list[Sequence[int]] = []
    route_of = system.route_of
    for number, state in enumerate(states):
        if state.joined is not None:
            route_of = outer.pop()
        state.holds_jobs = not outer
        if (
            state.first_child is not None
        ):  # what goes on from here are children, on the route of what they were cut from
            outer.append(route_of)
            route_of = [route_of[unit] for unit in state.parent] if route_of else route_of
        followers: list[StationState | None] = []
        for route in routes:
            at = route.index(number) + 1 if number in route else len(route)
            followers.append(states[route[at]] if at < len(route) else None)
        state.follow(followers, route_of)
    return receiving, states


def make_reader(reader: Reader) -> Worker:
    """Return the source's own thread."""
    return StationState(Station(name="source", workers=1, capacity=1, threads=reader.threads)).workers[0]


def _pair_fan_outs(states: Sequence[StationState]) -> None:
    open_ones: list[StationState] = []
    for state in states:
        if state.station.joins:
            state.joined = open_ones.pop()
            state.joined.join = state
        if state.station.children is not None:
            state.cut(state.station.children)
            open_ones.append(state)

"""Reads the heartbeats of a fleet, and says which workers are silent, failed or stuck, and whether all do the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from headrace.base.documents import decode_document
from headrace.base.formatting import pluralize
from headrace.base.units import format_duration, format_rate
from headrace.monitor.fleet.place import KEPT_SECONDS, Left, Place
from headrace.runs.formats.fleet import FleetDocument, FleetWorker, WorkerState
from headrace.runs.formats.heartbeat import MOST_DRIFTING, SCHEMA, Heartbeat

#: Heartbeats that may be missing before a worker is silent, and the least time: a place may take seconds.
_MISSED, _LEAST_SILENT_SECONDS = 3, 15.0
#: A worker with jobs that delivers nothing for so long, or whose call lasts so long, is stuck unless the user knows better.
STUCK_SECONDS = 60.0
#: A worker's clock that is further off the place's is said: leaving a heartbeat takes some seconds at most.
_CLOCK_OFF_SECONDS = 10.0
#: What no worker reaches: a count, Unix seconds, jobs a second; and characters of a name.
_MOST, _MOST_CHARACTERS = 1e15, 1000
_ORDER: tuple[WorkerState, ...] = ("silent", "failed", "stuck", "works", "idle", "replaced", "ended")
#: Those of workers that are there.
THERE: frozenset[WorkerState] = frozenset({"stuck", "works", "idle"})


def read_fleet(place: Place, *, stuck_seconds: float = STUCK_SECONDS) -> FleetDocument:
    """Return all workers of the last day, those that need a look first; by the place's clock.

    Args:
        place: Where the heartbeats are.
        stuck_seconds: A worker is stuck that has jobs and delivers none for so long.

    Raises:
        PlaceUnavailable: If it cannot be read.
    """
    now = place.now()
    workers, unreadable = [], 0
    for left in place.read_all():
        beat = _decode(left.content)
        if beat is None:
            unreadable += 1
        elif left.age_seconds <= KEPT_SECONDS:
            workers.append(_judge(left, beat, now, stuck_seconds))
    workers = _note_replaced(workers, now)
    workers.sort(key=lambda worker: (_ORDER.index(worker.state), worker.name))
    return _sum_up(workers, now, unreadable)


def _note_replaced(workers: list[FleetWorker], now: float) -> list[FleetWorker]:
    """Return the workers; lost ones in whose place, a slot of a pipeline on a host, another began since are replaced."""
    began: dict[tuple[str, str, int], float] = {}
    for worker in workers:
        if worker.state in THERE:
            began[_place(worker)] = max(began_unix_seconds(worker), began.get(_place(worker), 0.0))

    def is_replaced(worker: FleetWorker) -> bool:
        return worker.state in ("silent", "failed") and began.get(_place(worker), 0.0) > now - worker.age_seconds

    return [msgspec.structs.replace(one, state="replaced") if is_replaced(one) else one for one in workers]


def began_unix_seconds(worker: FleetWorker) -> float:
    """Return when a worker began, by the place's clock: its own may have been set since."""
    return worker.beat.at_unix_seconds - worker.clock_ahead_seconds - lasted_seconds(worker.beat)


def lasted_seconds(beat: Heartbeat) -> float:
    """Return for how long a worker had run at its heartbeat."""
    if beat.lasted_seconds is not None:
        return beat.lasted_seconds
    return max(0.0, beat.at_unix_seconds - beat.started_unix_seconds)


def _place(worker: FleetWorker) -> tuple[str, str, int]:
    return worker.beat.host, worker.beat.pipeline, worker.beat.slot


def _decode(content: bytes) -> Heartbeat | None:
    try:
        beat = decode_document(content, Heartbeat)
    except ValueError:
        return None
    return beat if beat.schema == SCHEMA and beat.every_seconds > 0 and _is_plausible(beat) else None


def _is_plausible(beat: Heartbeat) -> bool:
    """Return whether a worker can have said so: one file of a stranger shall not spoil the sums of all, nor the table."""
    fields = msgspec.structs.asdict(beat).values()
    texts = [*beat.drifting, *(value for value in fields if isinstance(value, str))]
    if len(beat.drifting) > MOST_DRIFTING or any(len(text) > _MOST_CHARACTERS for text in texts):
        return False
    # A steady clock and a worker's own clock are two: what lasts may be a little less than nothing.
    return all(-1 <= value < _MOST for value in fields if isinstance(value, int | float))


def _judge(left: Left, beat: Heartbeat, now: float, stuck_seconds: float) -> FleetWorker:
    age = max(0.0, left.age_seconds)
    state, says = _state(beat, age, stuck_seconds)
    ahead = beat.at_unix_seconds - (now - age)
    if not beat.has_ended and abs(ahead) > _CLOCK_OFF_SECONDS:
        clock = f"its clock is {format_duration(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"
        says = f"{says}; {clock}" if says else clock
    return FleetWorker(name=left.name, state=state, says=says, age_seconds=age, clock_ahead_seconds=ahead, beat=beat)


def _state(beat: Heartbeat, age: float, stuck_seconds: float) -> tuple[WorkerState, str]:
    if beat.has_ended:
        return ("failed", f"it ended by an error: {beat.error}") if beat.error else ("ended", "")
    if age > max(_MISSED * beat.every_seconds, _LEAST_SILENT_SECONDS):
        had = f", {pluralize(beat.in_flight, 'job')} in it" if beat.in_flight else ""
        return (
            "silent",
            f"no heartbeat for {format_duration(age)}{had}: it was killed, or its machine is gone or cut off",
        )
    if beat.longest_call_seconds > stuck_seconds:
        return "stuck", f"a call of a stage lasts {format_duration(beat.longest_call_seconds)} by now"
    if beat.in_flight and beat.idle_seconds > stuck_seconds:
        return (
            "stuck",
            f"{pluralize(beat.in_flight, 'job')} in it, and none ended for {format_duration(beat.idle_seconds)}",
        )
    notes = []
    if beat.is_braked:
        notes.append("nothing succeeds: it tries only a few jobs")
    if beat.open_breakers:
        notes.append(f"{pluralize(beat.open_breakers, 'server')} not called now")
    if beat.drifting:
        notes.append(f"not as usual: {', '.join(beat.drifting)}")
    return ("works" if beat.in_flight or beat.rate else "idle"), "; ".join(notes)


def _sum_up(workers: list[FleetWorker], now: float, unreadable: int) -> FleetDocument:
    there = [worker.beat for worker in workers if worker.state in THERE]
    states = Counter(worker.state for worker in workers)
    plans, versions = _count(beat.plan_id for beat in there), _count(beat.headrace_version for beat in there)
    rate = sum(beat.rate for beat in there)
    in_flight, slots = sum(beat.in_flight for beat in there), sum(beat.slots for beat in there)
    hosts = len({beat.host for beat in there})
    says = [
        f"{pluralize(len(there), 'worker')} on {pluralize(hosts, 'machine')}: {format_rate(rate)}, {in_flight:,} jobs in "
        f"flight of {slots:,} that they may have."
        if there
        else "No worker is there.",
        *(f"{pluralize(states[state], 'worker')} {state}." for state in ("silent", "failed", "stuck") if states[state]),
        *(
            [f"{pluralize(states['replaced'], 'worker')} lost within a day, and begun again."]
            if states["replaced"]
            else []
        ),
        *_differ("Plans", plans),
        *_differ("versions of headrace", versions),
    ]
    drifting = Counter(name for beat in there for name in beat.drifting)
    if drifting:
        listed = ", ".join(f"{name[:40]} on {number}" for name, number in drifting.most_common(5))
        says.append(f"Not as usual: {listed}.")
    off = sum(abs(worker.clock_ahead_seconds) > _CLOCK_OFF_SECONDS for worker in workers if not worker.beat.has_ended)
    if off:
        says.append(f"The clock of {pluralize(off, 'worker')} is wrong: what they write down is dated by it.")
    if unreadable:
        what = "file or key" if unreadable == 1 else "files or keys"
        says.append(f"{unreadable:,} {what} could not be read as a heartbeat.")
    return FleetDocument(
        at_unix_seconds=now,
        workers=tuple(workers),
        rate=rate,
        in_flight=in_flight,
        slots=slots,
        plans=plans,
        versions=versions,
        pipelines=_count(beat.pipeline for beat in there),
        unreadable=unreadable,
        says=tuple(says),
    )


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _differ(what: str, counted: Mapping[str, int]) -> list[str]:
    if len(counted) < 2:
        return []
    listed = ", ".join(f"{name[:40] or 'none'} on {number}" for name, number in list(counted.items())[:5])
    return [f"They run {len(counted)} {what}: {listed}."]

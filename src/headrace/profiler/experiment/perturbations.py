"""What an experiment changes: each perturbation takes a little of one resource away, or gives a little more of it.

With the throughput X of the run and c units of a resource (workers, cores, one GIL), an item can have c / X of it at most. A
perturbation that makes each item take the share `amount` of that more (or that takes the same away) lowers the throughput to
X / (1 + amount) if the resource is the limit, and not at all if it has as much room. This is what makes them comparable.

References:
    C. Curtsinger and E. D. Berger, "Coz: finding code that counts with causal profiling", SOSP 2015: there all other threads
    are slowed so that one looks faster; here the resource itself is made scarcer, which tells of what cannot be slowed, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from headrace.pipeline.levers import Adjustable, Lever, Levers
from headrace.profiler.experiment import burners
from headrace.profiler.experiment.native_threads import find_libraries, one_thread
from headrace.runs.formats.experiment import Kind

#: How much more of a resource an item takes.
AMOUNT = 0.5
#: Stations whose workers are less busy cannot be the limit: with `AMOUNT` more they would still have room.
WORTH_DELAYING = 0.5
#: From this on somebody's workers are busy all the time, so that the source cannot be the limit.
ALWAYS_BUSY = 0.85
_MOST_STATIONS = 3
#: CPU time per second in threads that are not Python's below which BLAS does not use its own.
_WORTH_LIMITING = 0.02
#: Spare workers, as a share of the Plan's, and how many at most.
_MORE, _MOST_SPARE = 0.5, 8


#: `first`: in any case; `if_limit`: once its station is known to be the limit; `if_none`: once nothing that comes first costs
#: anything; `last`: once nothing that was tried costs anything.
Turn = Literal["first", "if_limit", "if_none", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A perturbation that can be made; see `runs.formats.experiment.Perturbation`."""

    name: str
    kind: Kind
    station: str | None
    says: str
    amount: float | None
    worst_loss: float
    """Share of the throughput that it is expected to cost at most."""
    turn: Turn
    """When it is worth making."""
    enter: Callable[[], AbstractContextManager[object]]
    """Makes the change, until the context is left."""


def plan_perturbations(
    stations: Sequence[Adjustable],
    levers: Levers,
    utilization: dict[str, float],
    throughput: float,
    *,
    num_receivers: int,
    num_cores: int,
    native_seconds: float,
) -> list[Planned]:
    """Return what can be changed and may tell something, the most telling first.

    Args:
        stations: Of the run.
        levers: Of the run.
        utilization: {station: share of its workers' time in the stages}, with nothing changed.
        throughput: Items per second, with nothing changed.
        num_receivers: Threads that take jobs from the source.
        num_cores: That this process may use.
        native_seconds: CPU time per second of threads that are not Python's, with nothing changed.
    """
    busiest = sorted(
        (one for one in stations if one.has_workers), key=lambda one: -utilization.get(one.lever.name, 0.0)
    )
    worth = [one for one in busiest if utilization.get(one.lever.name, 0.0) >= WORTH_DELAYING][:_MOST_STATIONS]
    found: list[Planned] = []
    for station in worth:
        found += [_delay(station, throughput)] if station.may_delay else []
        found += [_fewer(station)] if station.num_workers > 1 else []
        found += [_more(station)] if station.add_spares is not None else []
        found += [_batch(station)] if station.max_batch > 1 else []
    if native_seconds > _WORTH_LIMITING:
        found += _native_threads()
    found += [_gil(), _cores(num_cores)]
    if any(share >= ALWAYS_BUSY for share in utilization.values()):
        return found
    # Where all workers rest half of the time, it is the source that is most likely to hold them up.
    turn: Turn = "last" if worth else "first"
    return [*found, _receiving(levers, throughput, num_receivers, turn)]


def is_its_turn(planned: Planned, answers: Mapping[str, bool | None]) -> bool | None:
    """Return whether a perturbation is worth making; None: that is not known yet.

    Args:
        planned: The perturbation.
        answers: {name of a perturbation: whether it costs as much as it would if its resource was the limit; None: not known
            yet} of those that were made.
    """
    if planned.turn == "first":
        return True
    if planned.turn == "if_limit":
        return _first_known(answers.get(f"{kind}:{planned.station}") for kind in ("delay", "fewer"))
    asked = [answer for name, answer in answers.items() if name.startswith("delay:") or _is_first(name, answers)]
    if planned.kind != "receiving" and "receiving" in answers:
        asked.append(answers["receiving"])
    if planned.turn == "last":
        asked += [answer for name, answer in answers.items() if name in ("gil", "cores")]
    if any(asked):
        return False
    return None if None in asked else True


def _is_first(name: str, answers: Mapping[str, bool | None]) -> bool:
    """Return whether this is how it is found out of its station first: its workers cannot be delayed."""
    kind, _, station = name.partition(":")
    return kind == "fewer" and f"delay:{station}" not in answers


def _first_known(answers: Iterable[bool | None]) -> bool | None:
    return next((answer for answer in answers if answer is not None), None)


@contextlib.contextmanager
def _delayed(lever: Lever, seconds: float) -> Iterator[None]:
    lever.delay_seconds = seconds
    try:
        yield
    finally:
        lever.delay_seconds = 0.0


def _delay(station: Adjustable, throughput: float) -> Planned:
    lever, seconds = station.lever, AMOUNT * station.num_workers / throughput

    return Planned(
        name=f"delay:{lever.name}", kind="delay", turn="first", station=lever.name, amount=AMOUNT,
        worst_loss=_loss(AMOUNT), enter=lambda: _delayed(lever, seconds),
        says=f"each worker of {lever.name} sleeps {seconds * 1000:.3g} ms after an item",
    )  # fmt: skip


def _fewer(station: Adjustable) -> Planned:
    lever, workers = station.lever, station.num_workers
    fewer = max(1, min(workers - 1, round(workers / (1 + AMOUNT))))
    amount = workers / fewer - 1
    return Planned(
        name=f"fewer:{lever.name}", kind="fewer", turn="if_none" if station.may_delay else "first",
        station=lever.name,
        amount=amount, worst_loss=_loss(amount),
        enter=lambda: _working(station, fewer), says=f"{fewer} of the {workers} workers of {lever.name} work",
    )  # fmt: skip


def _more(station: Adjustable) -> Planned:
    lever, workers = station.lever, station.num_workers
    spare = min(_MOST_SPARE, max(1, round(workers * _MORE)))

    @contextlib.contextmanager
    def enter() -> Iterator[None]:
        if not lever.num_spare and station.add_spares is not None:
            station.add_spares(spare)
        with _working(station, workers + spare):
            yield

    return Planned(
        name=f"more:{lever.name}", kind="more", turn="if_limit", station=lever.name,
        amount=workers / (workers + spare) - 1, worst_loss=0.0,
        enter=enter, says=f"{workers + spare} workers of {lever.name} work instead of {workers}",
    )  # fmt: skip


@contextlib.contextmanager
def _working(station: Adjustable, count: int) -> Iterator[None]:
    station.lever.let_work(count)
    try:
        yield
    finally:
        station.lever.let_work(None)


def _batch(station: Adjustable) -> Planned:
    lever, half = station.lever, station.max_batch // 2

    @contextlib.contextmanager
    def enter() -> Iterator[None]:
        lever.most_items = half
        try:
            yield
        finally:
            lever.most_items = None

    return Planned(
        name=f"batch:{lever.name}", kind="batch", turn="if_limit", station=lever.name, amount=None, worst_loss=0.3, enter=enter,
        says=f"batches of {lever.name} hold at most {half} items instead of {station.max_batch}",
    )  # fmt: skip


def _receiving(levers: Levers, throughput: float, num_receivers: int, turn: Turn) -> Planned:
    lever, seconds = levers.receiving, AMOUNT * num_receivers / throughput

    return Planned(
        name="receiving", kind="receiving", turn=turn, station=None, amount=AMOUNT, worst_loss=_loss(AMOUNT),
        enter=lambda: _delayed(lever, seconds),
        says=f"each receiver sleeps {seconds * 1000:.3g} ms after a job",
    )  # fmt: skip


def _gil() -> Planned:
    # Burning the share b of one GIL leaves 1 - b of it.
    share = AMOUNT / (1 + AMOUNT)
    return Planned(
        name="gil", kind="gil", turn="if_none", station=None, amount=AMOUNT, worst_loss=share,
        enter=lambda: burners.Burners(burners.hold_gil, 1, share),
        says=f"a thread holds the GIL {share:.0%} of the time, half a millisecond at once",
    )  # fmt: skip


def _cores(num_cores: int) -> Planned:
    share = AMOUNT / (1 + AMOUNT)
    return Planned(
        name="cores", kind="cores", turn="if_none", station=None, amount=AMOUNT, worst_loss=share,
        enter=lambda: burners.Burners(burners.hold_core, num_cores, share),
        says=f"{num_cores} threads compute without the GIL {share:.0%} of the time",
    )  # fmt: skip


def _native_threads() -> list[Planned]:
    libraries = find_libraries()
    if not libraries:
        return []
    count = max(library.get() for library in libraries)
    return [
        Planned(
            name="native_threads", kind="native_threads", turn="first", station=None, amount=None, worst_loss=0.3,
            enter=lambda: one_thread(libraries), says=f"BLAS computes with 1 thread in each call instead of {count}",
        )
    ]  # fmt: skip


def _loss(amount: float) -> float:
    return 1 - 1 / (1 + amount)

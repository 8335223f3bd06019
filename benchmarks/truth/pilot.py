"""Finds a dose at which what is wrong with a case makes a difference, by short trials before anything is recorded.

How this works: one block of the pipeline as it is, and one without each fault. Where no cure gains enough, the doses are
doubled and tried again, up to the greatest dose that is drawn; to a healthy pipeline half as many jobs come. Trials choose the
dose and nothing else: the truth is measured by other blocks, after verdict and predictions are frozen, so a lucky trial does
not count as a gain. A case that never gains enough runs with its last doses, and is counted by what is measured then; one whose
last trial shows nothing worth finding ends there.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.truth.blocks import throughput
from benchmarks.truth.grammar import Case
from benchmarks.truth.rows import HAS_ROOM, WORTH_FINDING, Pilot
from benchmarks.truth.spec import Spec

#: A gain of which two blocks leave little doubt that it is worth finding (`WORTH_FINDING`).
CLEAR, CLEAR_ROOM = 1.35, 1.6
_MOST_TRIALS = 4
_STRONGER, _FEWER_JOBS = 2.0, 0.6

Measure = Callable[[Spec], float | None]


def find_dose(case: Case, seconds: float, measure: Measure | None = None) -> tuple[Case, tuple[Pilot, ...]]:
    """Return a case with doses that make a difference, and the trials that found them.

    Args:
        case: As it was drawn.
        seconds: Of a block.
        measure: Returns the rate of a pipeline; None: by running it.
    """
    measure = _once_each(measure or (lambda spec: throughput(spec, seconds)))
    pilots: list[Pilot] = []
    while True:
        pilots.append(_try(case, measure))
        stronger = _strengthen(case)
        if is_clear(case, pilots[-1]) or len(pilots) == _MOST_TRIALS or stronger == case:
            return case, tuple(pilots)
        case = stronger


def is_clear(case: Case, pilot: Pilot) -> bool:
    """Return whether one of the faults makes a difference, or a healthy pipeline has room."""
    least = CLEAR if case.planted else CLEAR_ROOM
    return any(gain is not None and gain >= least for gain in pilot.gains)


def is_hopeless(case: Case, pilot: Pilot) -> bool:
    """Return whether a trial shows nothing worth finding: what is measured closely would hardly count."""
    least = WORTH_FINDING if case.planted else HAS_ROOM
    return not any(gain is not None and gain >= least for gain in pilot.gains)


def _once_each(measure: Measure) -> Measure:
    """Return a measure that runs no pipeline twice: without its only fault a case is the same whatever the dose."""
    known: dict[str, float | None] = {}

    def measured(spec: Spec) -> float | None:
        key = str(spec)
        if key not in known:
            known[key] = measure(spec)
        return known[key]

    return measured


def _try(case: Case, measure: Measure) -> Pilot:
    now = measure(case.spec)
    others = [case.without((number,)) for number in range(len(case.planted))]
    others = others or [case.spec.with_arrivals(per_second=None)]
    rates = [measure(other) for other in others]
    doses = [one.dose for one in case.planted] or [case.spec.arrivals["per_second"]]
    gains = [rate / now if rate is not None and now is not None else None for rate in rates]
    return Pilot(doses=tuple(doses), gains=tuple(gains))


def _strengthen(case: Case) -> Case:
    if not case.planted:
        return case.with_fewer_jobs(_FEWER_JOBS)
    return case.with_doses([_STRONGER] * len(case.planted))

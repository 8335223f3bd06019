"""The policy of admission as a service has it when it begins: it knows the cost of each station, and no answer yet."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.policies.expected_wait import ExpectedWait
from headrace.diagnose.simulator.system import CPU, GIL, GIVE, SPREAD, TAKE, WAIT, Program, Station

#: Units whose programs a station's pace is taken from.
_SAMPLED = 100


def expect_by_costs(stations: Sequence[Station], resources: Sequence[int], cores: float) -> ExpectedWait:
    """Return a new policy.

    Args:
        stations: Of the simulated pipeline.
        resources: Capacity of each exclusive resource.
        cores: That its threads share.
    """
    alone = cpu = 0.0
    paces = []
    for station in stations:
        size = station.batching.max_size if station.batching is not None and station.batch_program is not None else 1
        programs = _programs(station, size)
        seconds = sum(_seconds(program, WAIT, CPU, GIL, SPREAD) for program in programs) / len(programs)
        paces.append((seconds / (size * station.workers), size * station.workers))
        for number in _resources(programs[0]):
            held = sum(_held_seconds(program, number) for program in programs) / len(programs)
            paces.append((held / (size * resources[number]), size * resources[number]))
        cpu += sum(
            _seconds(program, CPU, GIL) + _seconds(program, SPREAD) * station.threads for program in programs
        ) / (len(programs) * size)
        alone += seconds if size == 1 else _seconds(_programs(station, 1)[0], WAIT, CPU, GIL, SPREAD)
    pace, at_once = max([*paces, (cpu / cores, 1)])
    return ExpectedWait(at_once, pace or None, alone)


def _programs(station: Station, size: int) -> Sequence[Program]:
    if station.batch_program is not None:
        return [station.batch_program(size, 0)]
    return station.programs[:_SAMPLED] or [()]


def _seconds(program: Program, *kinds: int) -> float:
    return sum(amount for kind, amount in program if kind in kinds)


def _held_seconds(program: Program, number: int) -> float:
    """Return how long a program keeps a resource."""
    total, is_held = 0.0, False
    for kind, amount in program:
        if kind in (TAKE, GIVE) and int(amount) == number:
            is_held = kind == TAKE
        elif is_held and kind in (WAIT, CPU, GIL, SPREAD):
            total += amount
    return total


def _resources(program: Program) -> list[int]:
    return [int(number) for kind, number in program if kind == TAKE]

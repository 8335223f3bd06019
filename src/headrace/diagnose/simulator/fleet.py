"""Machines that work on one queue, and what they share: simulated in portions of jobs, an hour of 100 machines in a second.

How this works. What one machine does by itself is known: so many jobs a second, with a spread. It works on one portion of jobs
after the other, and hands each to what all machines share: the queue's service, a store, a network, a receiver. Each of these
is a server that takes portions in the order in which they come, at a rate of its own. A machine has only so many jobs in it, so
it stands still while what it handed on has not come through. That is a closed queueing network, in which neither the machines'
sum nor the limits are put in by hand.

Every portion meets the same servers in the same order, and each serves in order of arrival; so what comes out of the last one
is known when a portion comes to the first, and costs one event. A machine that starts first gets its model through those
servers that it comes through, together with the others that start. One that is interrupted loses what is in it, and another
starts in its place.

References:
    Closed networks and their bounds: P. Denning and J. Buzen, "The operational analysis of queueing network models", 1978.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

#: Portions that one machine works on in the time that is simulated: one in a second or two.
_PORTIONS, _MOST_PORTIONS, _LEAST_PORTIONS = 400_000, 3600, 2000
#: Portions that a machine has at hand at least: one that it works on and one on its way.
_LEAST_AT_HAND = 2
_READY, _WORKED, _THROUGH, _INTERRUPTED = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Something that all machines use."""

    name: str
    jobs_per_second: float
    """That it does for, of all machines together."""
    seconds_per_start: float = 0.0
    """For which the start of one machine keeps it busy: the model comes through it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """So many machines alike, and what they share."""

    machines: int
    jobs_per_second: float
    """Of one that nothing shared holds up."""
    in_flight: float = 1.0
    """Jobs in one machine, at most."""
    spread: float = 0.0
    """Standard deviation of the jobs done in a second, over their mean."""
    seconds: float = 3600.0
    """That are simulated."""
    start_seconds: float = 0.0
    """From wanting a machine until its first job, without what comes through `shared`."""
    interruptions_per_second: float = 0.0
    """Of one machine."""
    lost_jobs: float = 0.0
    """Jobs that an interruption makes the others do again."""
    shared: Sequence[Shared] = ()
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class FleetTrace:
    """What came of it."""

    done: float = 0.0
    """Jobs."""
    again: float = 0.0
    """Jobs that were begun and had to be begun again."""
    starting_seconds: float = 0.0
    """Of all machines together: not yet at work, or started again."""
    held_seconds: float = 0.0
    """Of all machines together: waiting for what is shared."""
    interruptions: int = 0
    busy: Mapping[str, float] = field(default_factory=dict)
    """{name of what is shared: share of the time}."""
    num_events: int = 0


@dataclass(slots=True)
class _Machine:
    life: int = 0
    """Counts its starts: what belongs to an earlier one is void."""
    at_hand: int = 0
    portion_began: float = 0.0
    portion_seconds: float = 0.0
    """0: it works on none."""
    idle_since: float = 0.0


def simulate_fleet(fleet: Fleet) -> FleetTrace:
    """Run the machines for their time and return what they did; deterministic."""
    return _Simulation(fleet).run()


class _Simulation:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        per_machine = max(_LEAST_PORTIONS, min(_MOST_PORTIONS, _PORTIONS // fleet.machines))
        self._portion = max(1.0, fleet.jobs_per_second * fleet.seconds / per_machine)
        self._most_at_hand = max(_LEAST_AT_HAND, math.ceil(fleet.in_flight / self._portion))
        self._random = np.random.default_rng(fleet.seed)
        self._machines = [_Machine() for _ in range(fleet.machines)]
        self._events: list[tuple[float, int, int, int, int]] = []
        self._serial = 0
        self._free = [0.0] * len(fleet.shared)
        self._taken = [0.0] * len(fleet.shared)
        seconds = self._portion / fleet.jobs_per_second
        # A portion's time spreads as the mean of so many seconds does.
        self._mean, self._variation = seconds, fleet.spread**2 / seconds
        self._trace = FleetTrace()

    def run(self) -> FleetTrace:
        """Pass the events until the time is over."""
        for number in range(len(self._machines)):
            self._start(number, 0.0)
        events, end, trace = self._events, self._fleet.seconds, self._trace
        acts = (self._get_ready, self._hand_on, self._come_through, self._interrupt)
        while events and events[0][0] < end:
            now, _, kind, number, life = heappop(events)
            trace.num_events += 1
            acts[kind](number, life, now)
        self._close(end)
        trace.busy = {
            shared.name: min(1.0, taken / end) for shared, taken in zip(self._fleet.shared, self._taken, strict=True)
        }
        return trace

    def _push(self, when: float, kind: int, number: int, life: int) -> None:
        self._serial += 1
        heappush(self._events, (when, self._serial, kind, number, life))

    # --- starts and interruptions

    def _start(self, number: int, now: float) -> None:
        """Let a machine come: first what is its own, then the model through what is shared."""
        machine = self._machines[number]
        machine.life += 1
        machine.at_hand, machine.portion_seconds, machine.idle_since = 0, 0.0, math.inf
        self._trace.starting_seconds -= now
        self._push(now + self._fleet.start_seconds, _READY, number, -machine.life)
        if self._fleet.interruptions_per_second > 0:
            after = self._random.exponential(1 / self._fleet.interruptions_per_second)
            self._push(now + after, _INTERRUPTED, number, machine.life)

    def _get_ready(self, number: int, life: int, now: float) -> None:
        machine = self._machines[number]
        if abs(life) != machine.life:
            return
        if life < 0:  # it is up, and now the model comes
            ends = now
            for which, shared in enumerate(self._fleet.shared):
                if shared.seconds_per_start:
                    ends = self._pass_through(which, ends, shared.seconds_per_start)
            self._push(ends, _READY, number, machine.life)
            return
        self._trace.starting_seconds += now
        machine.idle_since = now
        self._work(machine, number, now)

    def _interrupt(self, number: int, life: int, now: float) -> None:
        machine = self._machines[number]
        if life != machine.life:
            return
        trace = self._trace
        trace.interruptions += 1
        if machine.idle_since == math.inf and not machine.portion_seconds:
            trace.starting_seconds += now  # it was still starting
        elif machine.portion_seconds:
            worked = (now - machine.portion_began) / machine.portion_seconds * self._portion
            lost = self._fleet.lost_jobs
            trace.done += worked - lost
            trace.again += lost
        else:
            trace.held_seconds += now - machine.idle_since
            trace.done -= self._fleet.lost_jobs
            trace.again += self._fleet.lost_jobs
        self._start(number, now)

    # --- work

    def _work(self, machine: _Machine, number: int, now: float) -> None:
        """Begin the next portion, if there is room for it."""
        if machine.at_hand >= self._most_at_hand:
            machine.idle_since = now
            return
        self._trace.held_seconds += now - machine.idle_since
        machine.at_hand += 1
        seconds = self._mean
        if self._variation:  # a gamma distribution has no values below 0, and so keeps its mean
            seconds = float(self._random.gamma(1 / self._variation, seconds * self._variation))
        machine.portion_began, machine.portion_seconds = now, seconds
        machine.idle_since = math.inf
        self._push(now + seconds, _WORKED, number, machine.life)

    def _hand_on(self, number: int, life: int, now: float) -> None:
        machine = self._machines[number]
        if life != machine.life:
            return
        through = now
        for which, shared in enumerate(self._fleet.shared):
            through = self._pass_through(which, through, self._portion / shared.jobs_per_second)
        self._push(through, _THROUGH, number, life)
        machine.portion_seconds, machine.idle_since = 0.0, now
        self._work(machine, number, now)

    def _come_through(self, number: int, life: int, now: float) -> None:
        self._trace.done += self._portion
        machine = self._machines[number]
        if life != machine.life:
            return
        machine.at_hand -= 1
        if not machine.portion_seconds:
            self._work(machine, number, now)

    def _pass_through(self, which: int, now: float, seconds: float) -> float:
        """Return when something that comes to a server now has been served."""
        ends = self._free[which] = max(now, self._free[which]) + seconds
        self._taken[which] += max(0.0, min(seconds, self._fleet.seconds - (ends - seconds)))
        return ends

    def _close(self, end: float) -> None:
        """Count what is still going on when the time is over."""
        for machine in self._machines:
            if machine.portion_seconds:
                continue
            if machine.idle_since == math.inf:
                self._trace.starting_seconds += end
            else:
                self._trace.held_seconds += end - machine.idle_since

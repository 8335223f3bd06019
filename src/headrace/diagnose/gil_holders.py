"""Who held the GIL, by samples: all workers are looked at in the same moment.

How this works: where the sampler saw who has the GIL, a stage holds it for its CPU time, which its clocks know, times the
share of the samples of its work that found it with the GIL. Only that share is uncertain, and of code that keeps the GIL, or
lets go of it all the time, it hardly is; how often a stage was seen with it at all would be as uncertain as any count.

Where that was not seen, it follows from who was at work while others waited: in each moment in which some thread waited, one
other thread of its process had the GIL, and that one was at work (a thread that lost its core while it had the GIL counts as
at work, too). Who it was is seen where only one was. Where several were, each counts by how often it is the holder otherwise,
which is found by going through all moments again until nothing changes: expectation maximization for the shares of a mixture.
Code that let go of the GIL is as often at work when nobody waits, so it gets little.

References:
    A. Dempster, N. Laird, D. Rubin, "Maximum likelihood from incomplete data via the EM algorithm", JRSS B 39(1), 1977.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.diagnose.blocked_split import RUNNING, locate_samples
from headrace.diagnose.gauges import StateSamples
from headrace.diagnose.span_columns import Array, SpanColumns
from headrace.runs.formats.profile import Window

#: Moments with somebody who waits and somebody who works, below which nothing is said.
FEWEST_MOMENTS = 30
#: How often a stage is seen with the GIL for its CPU time, over the stage of which that is most, below which it lets go of it.
_KEEPS = 0.5
#: Samples of a stage at work below which nothing is said of it.
_FEWEST_AT_WORK = 10
_GIL = "gil"
_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class SeenWithGil:
    """How often a stage was seen at work, and with the GIL."""

    num_at_work: int
    num_with_gil: int

    @property
    def share(self) -> float:
        """Share of its work that it does with the GIL, 0 to 1."""
        return self.num_with_gil / max(1, self.num_at_work)

    @property
    def error(self) -> float:
        """The standard error of that share; not 0 where it was seen with it never, or always."""
        among = self.num_at_work + 1
        share = (self.num_with_gil + 0.5) / among
        return math.sqrt(max(share * (1 - share), 0.25 / among) / among)


@dataclass(frozen=True, slots=True)
class GilHolders:
    """What the moments say in which threads waited for the GIL; or, with `errors`, all moments."""

    num_moments: int
    shares: Mapping[str, float]
    """{stage: share of these moments in which it held the GIL}; the rest was held outside stages, or by nobody."""
    errors: Mapping[str, float] | None = None
    """{stage: standard error of its share}; None where nobody saw who has it, and shares follow from who waited."""

    @property
    def most(self) -> tuple[str, float] | None:
        """The stage that held it in more than half of the moments in which a stage did, and its share; None: none did."""
        name = max(self.shares, key=lambda one: self.shares[one], default="")
        share, total = self.shares.get(name, 0.0), sum(self.shares.values())
        return (name, share) if share > total / 2 else None

    @property
    def alike(self) -> tuple[str, ...]:
        """The stage that held it most and those that so many moments cannot tell from it, the largest share first; or none."""
        order = sorted((name for name, share in self.shares.items() if share > 0), key=lambda one: -self.shares[one])
        return tuple(name for name in order if self._is_alike(order[0], name))

    @property
    def times_to_tell(self) -> float | None:
        """How many times as many looks tell the two that held it longest apart; None: these do, or nobody saw who has it."""
        if self.errors is None or len(self.alike) < 2:
            return None
        first, second = self.alike[:2]
        difference = max(self.shares[first] - self.shares[second], 1e-9)
        return (2 * math.hypot(self.errors[first], self.errors[second]) / difference) ** 2

    def describe(self, name: str) -> str:
        """Return how long a stage was seen to hold it, and the one that held it longest beside it, within two standard errors.

        Args:
            name: Of a stage.
        """
        says = f"{name} held it {self._show(name)} of the time"
        others = [one for one in self.shares if one != name]
        if others:
            next_one = max(others, key=lambda one: self.shares[one])
            says += f" and {next_one}, the next, {self._show(next_one)}"
        return f"{says}, by CPU time and {self.num_moments:,} looks at who has it"

    def _show(self, name: str) -> str:
        share, error = self.shares[name], self.errors[name] if self.errors is not None else 0.0
        return f"{share:.0%} ({max(0.0, share - 2 * error):.0%} to {share + 2 * error:.0%})"

    def find_keepers(self, cpu_seconds: Mapping[str, float]) -> tuple[str, ...]:
        """Return which stages keep the GIL: who is seldom seen with it for the CPU time that it uses mostly lets go of it.

        Args:
            cpu_seconds: {stage: CPU time of all its items}, of the stages to choose from.
        """
        held = {name: self.shares[name] / max(seconds, 1e-9) for name, seconds in cpu_seconds.items()}
        return tuple(name for name, share in held.items() if share >= _KEEPS * max(held.values()))

    def find_letting_go(self, cpu_seconds: Mapping[str, float]) -> tuple[str, ...]:
        """Return which stages surely let go of the GIL: seen with it far less than half as often as one that keeps it would be.

        Args:
            cpu_seconds: {stage: CPU time of all its items}, of the stages to choose from.
        """
        rates = {name: self.shares[name] / seconds for name, seconds in cpu_seconds.items() if seconds > 0}
        most = max(rates.values(), default=0.0)
        found = []
        for name in rates:
            half = _KEEPS * most * cpu_seconds[name] * self.num_moments
            if half - self.shares[name] * self.num_moments > 2 * math.sqrt(half):
                found.append(name)
        return tuple(found)

    def _is_alike(self, first: str, second: str) -> bool:
        """Return whether the largest share and another may well be equal: within two standard errors of their difference."""
        largest, share = self.shares[first], self.shares[second]
        difference = largest - share
        if self.errors is not None:
            return difference <= 2 * math.hypot(self.errors[first], self.errors[second])
        return difference <= 2 * math.sqrt(max(0.0, largest + share - difference**2) / self.num_moments)


def find_gil_holders(
    spans: SpanColumns, states: StateSamples | None, window: Window, cpu_seconds: Mapping[str, float] | None = None
) -> GilHolders | None:
    """Return who held the GIL; None where too few samples found somebody waiting, and nobody saw who has it.

    Args:
        spans: Of the run.
        states: Samples; all workers are looked at in the same moment.
        window: Of the run that counts.
        cpu_seconds: {stage: CPU time per second of its threads in this process}; None: not measured.
    """
    seen = count_seen(spans, states, window)
    if seen and cpu_seconds is not None and states is not None:
        inside = (states.times >= window.from_seconds * 1e9) & (states.times <= window.to_seconds * 1e9)
        known = {name: one for name, one in seen.items() if name in cpu_seconds}
        return GilHolders(
            len(np.unique(states.times[inside])),
            {name: cpu_seconds[name] * one.share for name, one in known.items()},
            {name: cpu_seconds[name] * one.error for name, one in known.items()},
        )
    if states is None or not len(spans) or not {_GIL, RUNNING} <= set(states.state_names):
        return None
    kept, stages = locate_samples(spans, states, window)
    moments = _number_moments(states)
    is_waiting = states.state == states.state_names.index(_GIL)
    is_running = states.state == states.state_names.index(RUNNING)
    count = int(moments.max(initial=-1)) + 1
    at_work = np.zeros((count, len(spans.stage_names) + 1))  # the last column: outside the services of stages
    running = kept[is_running[kept]]
    np.add.at(at_work, (moments[running], stages[is_running[kept]]), 1)
    at_work[:, -1] = np.bincount(moments[is_running], minlength=count) - at_work[:, :-1].sum(axis=1)
    waited = np.bincount(moments[kept[is_waiting[kept]]], minlength=count) > 0
    at_work = at_work[waited & (at_work.sum(axis=1) > 0)]
    if len(at_work) < FEWEST_MOMENTS:
        return None
    found = _find_shares(at_work)
    return GilHolders(len(at_work), dict(zip(spans.stage_names, found[:-1].tolist(), strict=True)))


def count_seen(spans: SpanColumns, states: StateSamples | None, window: Window) -> dict[str, SeenWithGil]:
    """Return how often each stage was seen at work and with the GIL; without those seldom at work. Empty: nobody looked.

    Args:
        spans: Of the run.
        states: Samples.
        window: Of the run that counts.
    """
    if states is None or states.has_gil is None or not len(spans) or RUNNING not in states.state_names:
        return {}
    kept, stages = locate_samples(spans, states, window)
    count = len(spans.stage_names)
    is_running = states.state[kept] == states.state_names.index(RUNNING)
    at_work = np.bincount(stages[is_running], minlength=count)
    with_gil = np.bincount(stages[is_running & states.has_gil[kept]], minlength=count)
    numbers = zip(spans.stage_names, at_work.tolist(), with_gil.tolist(), strict=True)
    return {name: SeenWithGil(*both) for name, *both in numbers if both[0] >= _FEWEST_AT_WORK}


def _number_moments(states: StateSamples) -> Array:
    """Return for each sample the number of its moment in its process, which has one GIL."""
    both = np.column_stack([states.times, states.process.astype(np.int64)])
    return np.unique(both, axis=0, return_inverse=True)[1].ravel()


def _find_shares(at_work: Array) -> Array:
    """Return the share of each column that explains all rows best: (columns,) float64 with a sum of one.

    Args:
        at_work: (moments, columns): threads at work, at least one in each row.
    """
    shares = np.full(at_work.shape[1], 1.0 / at_work.shape[1])
    for _ in range(_ROUNDS):
        weights = at_work * shares
        shares = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
    return np.asarray(shares)

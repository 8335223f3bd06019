"""Who held the GIL while others waited for it, by samples: all workers are looked at in the same moment.

How this works: in each moment in which some thread waited, one other thread of its process had the GIL, and that one was at
work (a thread that lost its core while it had the GIL counts as at work, too). Who it was is seen where only one was. Where
several were, each counts by how often it is the holder otherwise, which is found by going through all moments again until
nothing changes: expectation maximization for the shares of a mixture. Code that let go of the GIL is as often at work when
nobody waits, so it gets little.

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
_GIL = "gil"
_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class GilHolders:
    """What the moments say in which threads waited for the GIL."""

    num_moments: int
    shares: Mapping[str, float]
    """{stage: share of these moments in which it held the GIL}; the rest was held outside stages."""

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
        return tuple(name for name in order if self._is_alike(self.shares[order[0]], self.shares[name]))

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

    def _is_alike(self, largest: float, share: float) -> bool:
        """Return whether two shares of the same moments may well be equal: within two standard errors of their difference."""
        difference = largest - share
        return difference <= 2 * math.sqrt(max(0.0, largest + share - difference**2) / self.num_moments)


def find_gil_holders(spans: SpanColumns, states: StateSamples | None, window: Window) -> GilHolders | None:
    """Return who held the GIL while others waited; None where too few samples found somebody waiting.

    Args:
        spans: Of the run.
        states: Samples; all workers are looked at in the same moment.
        window: Of the run that counts.
    """
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

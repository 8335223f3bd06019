"""What slows all stages alike: others on the cores, and threads of the run that serve no stage.

A thread that waits for a lock, for Python's lock or for another thread of the run often waits for a thread that waits for a
core. So a part of that, up to what the stages' own threads wait longer for a core, has the cause of the waiting for cores.
"""

from __future__ import annotations

import math

from headrace.monitor.recorder.facts import CORES, GC_SHARE, Facts, Key
from headrace.monitor.recorder.state import StageState, blocked_growth
from headrace.runs.formats.incident import ChangeKind

#: Being blocked in these can be waiting for a thread of the same run.
OF_THREADS = ("gil", "lock", "other", "unknown")
#: Share of the cores that others use from which on the run has to wait for them.
_CROWDED = 0.5
#: Waiting for Python's lock, over waiting for cores and over waiting for other locks, that shows a thread which keeps it.
_KEEPS_GIL = 0.3
#: Growth of a stage's waiting for cores over that of the other stages from which on it is its own.
_MORE_THAN_OTHERS = 3.0


class Pressure:
    """What slows all stages alike.

    Args:
        facts: What changed beside the times of stages.

    Attributes:
        delay: Largest growth of a stage's waiting for a core, seconds per item.
        outside: What threads beside the stages do that was not done before; None if they use no more than before.
        is_crowded: Whether others use so much of the cores that the run waits for them.
    """

    def __init__(self, facts: Facts) -> None:
        before, after = facts.before, facts.after
        self._pairs = [(before.stages[name], stage) for name, stage in after.stages.items() if name in before.stages]
        delays = [new.run_delay - old.run_delay for old, new in self._pairs]
        self.delay = max([0.0, *delays])
        usable = after.mean("machine", "usable_cores") or float(after.info.hardware.num_cores or 1)
        self.is_crowded = facts.more_others >= CORES or (after.other_cores or 0.0) >= _CROWDED * usable
        self._has_changed = (
            facts.more_others >= CORES or facts.more_own >= CORES or facts.quota_grew or facts.cores_fell
        )
        self.outside = self._name_outside(facts, sum(max(0.0, one) for one in delays))

    def share_of_delay(self, before: StageState, after: StageState) -> float:
        """Return how much of a stage's longer waiting for cores can be others' doing, seconds per item.

        All of it where the cores are used otherwise than before. On cores that are as crowded as they were, the other stages
        tell: what a stage waits much longer than they do is because it waits more often, by what it does itself.
        """
        if self._has_changed:
            return math.inf
        others = [(old, new) for old, new in self._pairs if new is not after]
        usual, now = (sum(pair[which].run_delay for pair in others) for which in (0, 1))
        return before.run_delay * (_MORE_THAN_OTHERS * now / usual - 1) if usual else math.inf

    def _name_outside(self, facts: Facts, delays: float) -> Key | None:
        grown = {"gil": 0.0, "lock": 0.0}
        for old, new in self._pairs:
            growth = blocked_growth(old, new)
            for state in grown:
                grown[state] += max(0.0, growth.get(state, 0.0))
            if old.account.kind == "device" and (growth.get("lock", 0.0) + growth.get("unknown", 0.0)) > old.service:
                return None  # its native pool computes
        if facts.outside_cores < CORES:
            return None
        if facts.gc_share >= GC_SHARE:
            return ChangeKind.GC, None
        keeps = grown["gil"] > 0 and grown["gil"] >= _KEEPS_GIL * max(delays, grown["lock"])
        return (ChangeKind.GIL if keeps else ChangeKind.CODE), None

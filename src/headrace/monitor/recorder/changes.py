"""What changed between two times of a run, and how much of the slowdown each change explains.

How this works. The latency of a job is the sum, over stages, of what it waits before the work, the work itself and what it
waits for room after it. The work is CPU time, waiting for a core, and being blocked; of what, the threads' states tell. Each
part that grew is joined to what changed on its side and could make it grow (the methods `_explain_...`); what no change
explains is `code`: the stage takes longer for the same input. So a change counts only where its effect is seen.

Waiting in queues has no cause of its own: a queue grows because items come faster, because workers are missing, or because an
item takes longer. It is divided among these by the logarithms of their ratios (the utilization of a station is their product),
and what longer work has of it goes to the changes that made the work longer, by the time of busy workers that each cost.

Nothing here is fitted to incidents. The limits say when a difference is one at all: ratios of means, and absolute ones where
means are near 0.

References:
    P. J. Denning and J. P. Buzen, "The operational analysis of queueing network models", Computing Surveys 10(3), 1978: the
    utilization law, U = X D.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.monitor.recorder.facts import BURSTS, CORES, GC_SHARE, RATIO, Facts, Key, size_ratio
from headrace.monitor.recorder.pressure import OF_THREADS, Pressure
from headrace.monitor.recorder.state import RunState, StageState, blocked_growth, larger_batches
from headrace.runs.formats.incident import ChangeKind, IncidentChange

#: Share of the slowdown below which nothing is said of a change, and growth of the failed share that counts.
_LEAST_SHARE, _FAILED = 0.05, 0.01
#: Growth of the failed share that leaves no job to be delivered: failed tries of the same jobs count, too.
_MOSTLY_FAILED = 0.3
#: What failures say that come from a service that cannot be reached.
_UNREACHABLE = re.compile(r"connect|timed out|timeout|unreachable|name resolution|name or service", re.IGNORECASE)


@dataclass(slots=True)
class Explained:
    """Seconds of the mean latency's growth, by what explains them."""

    work: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    """Of longer work, per job."""
    occupied: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    """Of busy workers, as a share of those that there are."""
    waits: float = 0.0
    """Of queues, not yet divided."""


class Comparison:
    """Two times of one pipeline."""

    def __init__(self, before: RunState, after: RunState) -> None:
        self.before, self.after = before, after
        self.facts = Facts(before, after)
        self.pressure = Pressure(self.facts)
        self.explained = Explained()
        for name, stage in after.stages.items():
            if name in before.stages:
                self._explain_stage(name, before.stages[name], stage)

    @property
    def slowdown_seconds(self) -> float:
        """Growth of the mean latency; 0 if it did not grow."""
        if self._fails_instead:
            return 0.0
        if self.before.latency is None or self.after.latency is None:
            return sum(self.explained.work.values()) + self._waits
        return max(0.0, self.after.latency - self.before.latency)

    def changes(self) -> list[IncidentChange]:
        """Return what changed, that which explains most first."""
        seconds = self._divide()
        total = max(sum(seconds.values()), self.slowdown_seconds, 1e-9)
        is_slower = self.slowdown_seconds > (RATIO - 1) * (self.before.latency or 0.0)
        found = [
            self.facts.describe(kind, stage, explained if is_slower else 0.0, explained / total if is_slower else 0.0)
            for (kind, stage), explained in seconds.items()
            if explained / total >= _LEAST_SHARE and is_slower
        ]
        found += self._find_failures(is_slower)
        known = {change.kind for change in found}
        found += [self.facts.describe(kind, stage, 0.0, 0.0) for kind, stage in self.facts.seen() if kind not in known]
        return sorted(found, key=lambda change: -change.explains_share)

    @property
    def _fails_instead(self) -> bool:
        """Whether no job goes all the way any more because they fail: how long they would take is not known."""
        more = self.after.failed_share - self.before.failed_share
        return self.after.latency is None and more >= _MOSTLY_FAILED and not self.facts.missing_workers

    @property
    def _waits(self) -> float:
        """Growth of the waits in queues; where no job goes all the way any more, they wait to the end."""
        return max(0.0, self.explained.waits, self.after.seconds if self.after.latency is None else 0.0)

    # --- work

    def _explain_stage(self, name: str, before: StageState, after: StageState) -> None:
        explained, workers = self.explained, max(1, after.account.workers or 1)
        batch = larger_batches(before, after)
        explained.waits += after.wait - before.wait + after.blocked_put - before.blocked_put + batch
        rate = after.account.throughput or 0.0
        work = _grown(before.service + batch, after.service)
        parts = list(self._explain_parts(name, before, after)) if work else []
        named = sum(seconds for _, seconds in parts)
        for key, seconds in parts:
            share = seconds / named if named else 0.0
            explained.work[key] += work * share
            explained.occupied[key] += work * share * rate / max(after.batch, 1.0) / workers
        if before.batch / max(after.batch, 1e-9) >= RATIO and after.occupancy > before.occupancy * RATIO:
            more = after.occupancy - before.occupancy
            explained.occupied[ChangeKind.BATCHING, name] += more * rate / workers

    def _explain_parts(self, name: str, before: StageState, after: StageState) -> Iterator[tuple[Key, float]]:
        """Yield what explains the growth of a stage's work, in seconds."""
        is_model = before.account.kind == "device"
        cpu, delay = after.cpu - before.cpu, after.run_delay - before.run_delay
        blocked = blocked_growth(before, after)
        if batch := larger_batches(before, after):
            blocked[before.longest_wait] = blocked.get(before.longest_wait, 0.0) - batch
        least = 0.05 * (after.service - before.service)
        if is_model:  # its threads are a native pool's: the caller waits for them
            cpu += max(0.0, blocked.pop("lock", 0.0)) + max(0.0, blocked.pop("unknown", 0.0))
        found = list(self._explain_cpu(name, before, after, cpu)) if cpu > least else []
        for state, seconds in blocked.items():
            if seconds > least:
                found += self._explain_blocked(name, before, after, state, seconds)
        yield from found
        if delay > least:
            # Who computes for longer waits for cores for longer in proportion, wherever others leave as much room as before.
            own = min(delay, before.run_delay / before.cpu * max(0.0, cpu)) if before.cpu and found else 0.0
            yield from _divide_like(own, found)
            shared = min(delay - own, self.pressure.share_of_delay(before, after))
            yield from self._explain_delay(shared, found)
            yield from _divide_like(delay - own - shared, found)

    def _explain_cpu(
        self, name: str, before: StageState, after: StageState, seconds: float
    ) -> Iterator[tuple[Key, float]]:
        """Yield what explains more CPU time: larger input, another model, the collector, others on the cores; else the code."""
        facts, left = self.facts, seconds
        is_model = before.account.kind == "device"
        if is_model and facts.is_other_model:
            yield (ChangeKind.MODEL, name), left
            return
        size = size_ratio(before, after)
        own = before.cpu if not is_model else before.service
        if size >= RATIO and left > 0:
            part = min(left, 1.5 * own * (size - 1))  # decoding grows a little faster than the number of bytes
            yield (ChangeKind.INPUT_SIZE, facts.first_larger or name), part
            left -= part
        if facts.gc_share >= GC_SHARE and not is_model:
            part = min(left, facts.gc_share * after.service)
            yield (ChangeKind.GC, None), part
            left -= part
        if left <= 0.05 * seconds:
            return
        if facts.clock_ratio <= 1 / 1.1:
            yield (ChangeKind.CLOCK, None), left
        elif facts.quota_grew or facts.cores_fell:
            yield (ChangeKind.CORES if facts.cores_fell else ChangeKind.QUOTA, None), left if is_model else 0.0
            if not is_model:
                yield (ChangeKind.CODE, name), left
        elif facts.more_others >= CORES:
            part = min(left, own * (facts.inflation(name) - 1)) if not is_model else left
            yield (ChangeKind.NEIGHBOUR, None), part
            yield (ChangeKind.CODE, name), left - part
        elif name in facts.other_settings:
            yield (ChangeKind.PLAN, name), left
        else:
            yield (ChangeKind.DEVICE if is_model and not after.cpu else ChangeKind.CODE, name), left

    def _explain_delay(self, seconds: float, beside: list[tuple[Key, float]]) -> Iterator[tuple[Key, float]]:
        """Yield what explains more waiting for a core.

        Args:
            seconds: The growth.
            beside: What explains the rest of the growth. Where cores are as busy as before, a thread waits for them more
                often because it wakes up more often: whatever it does more, or waits for.
        """
        facts = self.facts
        if facts.quota_grew:
            yield (ChangeKind.QUOTA, None), seconds
        elif facts.cores_fell:
            yield (ChangeKind.CORES, None), seconds
        elif self.pressure.outside:
            yield self.pressure.outside, seconds
        elif self.pressure.is_crowded and facts.more_own < CORES:
            yield (ChangeKind.NEIGHBOUR, None), seconds
        elif facts.arrivals_ratio >= RATIO:
            yield (ChangeKind.ARRIVALS, None), seconds
        elif beside and facts.more_own < CORES:
            yield from _divide_like(seconds, beside)
        elif heaviest := facts.heaviest_growth:
            # The run waits for itself: for the stage whose CPU time grew most.
            yield self._cause_of_cpu(heaviest), seconds
        else:
            yield (ChangeKind.NEIGHBOUR if facts.more_others > 0 else ChangeKind.CODE, None), seconds

    def _cause_of_cpu(self, name: str) -> Key:
        before, after = self.before.stages[name], self.after.stages[name]
        found = list(self._explain_cpu(name, before, after, after.cpu - before.cpu))
        return max(found, key=lambda one: one[1])[0] if found else (ChangeKind.CODE, name)

    def _explain_blocked(
        self, name: str, before: StageState, after: StageState, state: str, seconds: float
    ) -> Iterator[tuple[Key, float]]:
        """Yield what explains being blocked longer."""
        outside = self.pressure.outside
        keeps_gil = outside is not None and outside[0] is not ChangeKind.CODE
        # Who looks is a thread of the run: it comes late as the others do, and sees them when they have got the lock.
        if outside and (state == "gil" or (keeps_gil and state in (*OF_THREADS, "sleep"))):
            yield outside, seconds
            return
        if state in OF_THREADS:
            part = min(seconds, self.pressure.delay)
            yield from self._explain_delay(part, [(self._name_blocked(name, before, after, state), part)])
            seconds -= part
        yield self._name_blocked(name, before, after, state), seconds

    def _name_blocked(self, name: str, before: StageState, after: StageState, state: str) -> Key:
        """Return which change makes a stage be blocked longer."""
        facts = self.facts
        if facts.is_short_of_memory and state in ("disk", "unknown", "other"):
            return ChangeKind.MEMORY, None
        if state == "disk":
            return ChangeKind.DISK, name
        if state == "lock":
            return ChangeKind.LOCK, name
        if state == "gil":
            heaviest = facts.heaviest_growth
            if facts.gc_share >= GC_SHARE:
                return ChangeKind.GC, None
            return self._cause_of_cpu(heaviest) if heaviest else (ChangeKind.GIL, name)
        if after.role == "deliver":
            return ChangeKind.RECEIVER, name
        if after.account.work == "download":
            if size_ratio(before, after) >= RATIO and state == "network":
                return ChangeKind.INPUT_SIZE, facts.first_larger or name
            return ChangeKind.DOWNLOAD, name
        if state in ("network", "process", "output"):
            return ChangeKind.REMOTE, name
        if after.account.kind == "device":
            return (ChangeKind.MODEL if facts.is_other_model else ChangeKind.DEVICE), name
        if facts.more_io_pressure and after.account.kind == "io":
            return ChangeKind.DISK, name
        return (ChangeKind.REMOTE if after.account.kind == "io" else ChangeKind.CODE), name

    # --- queues

    def _divide(self) -> dict[Key, float]:
        """Return the seconds that each change explains, queues included."""
        seconds = dict(self.explained.work)
        waits = self._waits
        arrivals = math.log(self.facts.arrivals_ratio) if self.facts.arrivals_ratio >= RATIO else 0.0
        if self.facts.burst_ratio >= BURSTS:  # waits grow in proportion (Kingman), whatever the utilization
            arrivals += math.log(self.facts.burst_ratio)
        missing = {name: share for name, share in self.facts.missing_workers.items() if share > 0}
        workers = max((math.log(1 / max(1 - share, 0.05)) for share in missing.values()), default=0.0)
        occupied = {key: share for key, share in self.explained.occupied.items() if share > 0}
        longer = max(
            (
                math.log(max(after.occupancy / before.occupancy, 1.0))
                for before, after in self._pairs()
                if before.occupancy > 0
            ),
            default=0.0,
        )
        longer = longer if occupied and longer >= math.log(RATIO) else 0.0
        total = arrivals + workers + longer
        if not total and occupied:  # no queue forms by the means: items come less evenly, by what takes longer for some
            total = longer = 1.0
        if not total:
            return seconds
        if arrivals:
            seconds[ChangeKind.ARRIVALS, None] = (
                seconds.get((ChangeKind.ARRIVALS, None), 0.0) + waits * arrivals / total
            )
        for name, share in missing.items():
            key: Key = (ChangeKind.WORKERS, name)
            seconds[key] = seconds.get(key, 0.0) + waits * workers / total * share / sum(missing.values())
        for cause, share in occupied.items() if longer else ():
            seconds[cause] = seconds.get(cause, 0.0) + waits * longer / total * share / sum(occupied.values())
        return seconds

    def _pairs(self) -> list[tuple[StageState, StageState]]:
        """Return the stages whose workers were busy for a fifth of the time: queues form there."""
        return [
            (self.before.stages[name], after)
            for name, after in self.after.stages.items()
            if name in self.before.stages and (after.account.utilization or 0.0) >= 0.2
        ]

    # --- failures

    def _find_failures(self, is_slower: bool) -> list[IncidentChange]:
        """Return what explains that more jobs fail."""
        more = self.after.failed_share - self.before.failed_share
        if more < _FAILED:
            return []
        by_stage: Counter[str] = Counter()
        for (stage, _), count in self.after.failures.items():
            by_stage[stage] += count
        if not by_stage:
            return []
        stage, count = by_stage.most_common(1)[0]
        share = count / sum(by_stage.values())
        rejected = self.after.failures[stage, "rejected"] / count
        state = self.after.stages.get(stage)
        kind = ChangeKind.CODE
        if state is not None and state.role == "deliver":
            kind = ChangeKind.RECEIVER
        elif rejected > 0.5:
            kind = ChangeKind.INPUT_FAILURES
        elif state is not None and state.account.work == "download":
            kind = ChangeKind.DOWNLOAD
        elif state is not None and state.account.kind == "io" and self._are_unreachable(stage):
            kind = ChangeKind.REMOTE
        change = self.facts.describe_failures(kind, stage, share if not is_slower else share * min(1.0, more * 5))
        return [change]

    def _are_unreachable(self, stage: str) -> bool:
        """Return whether most failures of a stage are those of a service that it cannot reach."""
        reasons = [line.reason for line in self.after.evidence.run.errors() if line.reason.startswith(f"{stage}:")]
        return sum(bool(_UNREACHABLE.search(one)) for one in reasons) > len(reasons) / 2


def _divide_like(seconds: float, found: list[tuple[Key, float]]) -> Iterator[tuple[Key, float]]:
    """Yield seconds divided in proportion to others."""
    total = sum(part for _, part in found)
    yield from ((key, seconds * part / total) for key, part in found if total > 0)


def _grown(before: float, after: float) -> float:
    return after - before if after > before * RATIO and after - before > 20e-6 else 0.0

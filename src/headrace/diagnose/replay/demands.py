"""What each recorded unit of work needed in each stage: waiting on the outside, a core, and a core with the GIL.

How this works: a span's service is CPU time, run delay and blocked time. Run delay is what the machine did to it and is
simulated anew, so it is left out. Of the blocked time, what was spent waiting for the GIL or for other workers (a lock, an
emulated device) is left out as well; the rest is true waiting on the outside. All times of one unit are kept together through
the stages, so that an image which is slow to decode because it is large is also the one that is slow to download.

References:
    Replaying recorded service demands instead of fitting distributions: D. Menasce, V. Almeida, "Capacity Planning for Web
    Services", 2001, chapter 4 (service demands); trace-driven simulation: R. Jain, "The Art of Computer Systems Performance
    Analysis", 1991, chapter 24.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from headrace.base.errors import HeadraceError
from headrace.diagnose.clock_cost import clock_seconds
from headrace.diagnose.concurrency import Turns, find_turns, fit_growth
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.lock_holders import share_of_lock_waits
from headrace.diagnose.replay.whole_jobs import FEWEST_JOBS, find_whole, routes_of
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.profile import ProfileDocument, StageAccount
from headrace.runs.run_folder import StageInfo

#: Blocked time that is waiting for a lock counts as a lock of the stage's own from these shares on.
_LOCK_SHARE_OF_BLOCKED, _LOCK_SHARE_OF_SERVICE = 0.5, 0.15


#: Size of a result, in bytes, from which on writing it down can be what a delivery computes.
LARGE_RESULT = 10_000


class CannotReplay(HeadraceError):
    """This run, or this change of it, cannot be simulated; the message says why and what to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTry:
    """A try that failed in a stage and was repeated there."""

    wait: float
    cpu: float
    delay: float
    """Until the unit was in the queue again."""


#: Of a stage's blocked time, that it waited until somebody read its output, from which on the reader sets the pace.
_WAITS_FOR_READER = 0.5
#: Of its service: from here on a stage waits for somebody rather than for the GIL or a core.
_WAITS = 0.5


@dataclass(slots=True, kw_only=True)
class StageDemands:
    """One stage; arrays are float64, seconds, one value for each unit of its level."""

    info: StageInfo
    route: str
    """The route of jobs that it lies on; empty where all jobs go through it."""
    wait: Array
    cpu: Array
    """For a device: of its whole batch."""
    holds_gil: float
    """Share of the CPU time with the GIL, 0 to 1."""
    gil_wait: float = 0.0
    """Mean seconds a unit (of a device: a batch) was seen to wait for the GIL."""
    gil_wait_grows: float = 0.0
    """Of a device: share of that wait that grows with the batch, 0 to 1; the rest is the same for each call."""
    mean_lock: float = 0.0
    """Mean seconds a unit waited for a lock of the stage's own; 0: there is none."""
    turns: Turns | None = None
    """What it waits for serves one at a time, whoever asks; None where it is not known to."""
    is_emulated: bool = False
    """A device whose times are settings of the Plan."""
    is_exclusive: bool = False
    """A device that serves one call at a time, without a core of this machine."""
    has_own_device: bool = False
    """It has such a device for itself: that of augmentation which only takes time is not the models'."""
    batch_size: Array = field(default_factory=lambda: np.ones(0))
    shapes: Array | None = None
    """Code of each unit's shape as it came, where there are several."""
    tries: dict[int, list[FailedTry]] = field(default_factory=dict)
    num_children: Array | None = None
    """Of a fan-out: children of each unit."""

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.info.name

    @property
    def cpu_demand(self) -> Array:
        """CPU seconds of one unit: of a batch its share."""
        return np.asarray(self.cpu / self.batch_size) if len(self.batch_size) else self.cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """All jobs that can be replayed, in the order in which they came."""

    num_jobs: int
    arrived: Array
    """(arrivals,) float64 seconds, growing: when jobs came, also those that were not recorded whole. The meters rest now and
    then, and without these jobs the others would seem to come more slowly than they did."""
    route: Array
    """(jobs,) int: index into `routes`."""
    routes: Array
    """(routes, stages) bool: which stages a job goes through. Those of its task (see `diagnose.routes`), and the first one only
    if it did: what was pushed in and needs nothing of that stage, as a posted image needs no download, begins at the second."""
    stages: tuple[StageDemands, ...]


def find_demands(evidence: Evidence, document: ProfileDocument) -> Demands:
    """Return what the recorded jobs needed.

    Raises:
        CannotReplay: If too few jobs were recorded whole, or the CPU time of stages was not.
    """
    infos = evidence.info.stages
    if not infos:
        raise CannotReplay("the run folder names no stages: it was written by an older headrace; profile again")
    _check_clocks(evidence)
    jobs = find_whole(evidence, document.window)
    if len(jobs) < FEWEST_JOBS:
        raise CannotReplay(
            f"only {len(jobs)} jobs were recorded whole, through every stage; at least {FEWEST_JOBS} are needed. Profile more "
            "items, or longer"
        )
    route, routes = routes_of(evidence, jobs)
    accounts = {stage.name: stage for stage in document.stages}
    stages, units = [], jobs
    parents: list[Array] = []
    for number, info in enumerate(infos):
        if info.role == "join":
            units = parents.pop()
        demands = _stage_demands(evidence, document, info, accounts[info.name], units)
        if not number:
            _empty_where(demands, ~routes[route, number])
        stages.append(demands)
        if info.role == "fan_out":
            if parents:
                raise CannotReplay(f"stage {info.name} is a fan-out within a fan-out, which is not simulated")
            children, demands.num_children = _children(evidence, infos[number + 1].name, units)
            parents.append(units)
            units = children
    return Demands(
        num_jobs=len(jobs), arrived=_arrivals(evidence, jobs), route=route, routes=routes, stages=tuple(stages)
    )


def _arrivals(evidence: Evidence, jobs: Array) -> Array:
    """Return when jobs came, from the first whole one to the last; closer together where only some jobs were recorded."""
    spans = evidence.spans
    first = np.full(len(spans.unit_ids) or 1, np.iinfo(np.int64).max)
    np.minimum.at(first, spans.root, spans.arrived)
    came = np.sort(first[np.unique(spans.root)])
    came = came[(came >= first[jobs].min()) & (came <= first[jobs].max())]
    return np.asarray(came / 1e9 / spans.weight.mean())


def _check_clocks(evidence: Evidence) -> None:
    if len(evidence.spans) and not np.isfinite(evidence.spans.cpu).any():
        raise CannotReplay(
            f"{evidence.run.path} has no CPU time of stages: it was written by headrace run; record it with headrace profile"
        )


def _empty_where(demands: StageDemands, is_passed_by: Array) -> None:
    """Take the work of a stage from units that do not go through it."""
    for values in (demands.wait, demands.cpu):
        values[is_passed_by] = 0.0


def _children(evidence: Evidence, stage: str, parents: Array) -> tuple[Array, Array]:
    """Return the units cut from parents, in the parents' order, and how many each has."""
    spans = evidence.spans
    place = np.full(len(spans.unit_ids), -1)
    place[parents] = np.arange(len(parents))
    rows = np.arange(len(spans))[spans.of(stage)]
    rows = rows[spans.is_ok[rows] & (place[spans.root[rows]] >= 0) & (spans.unit[rows] != spans.root[rows])]
    units, first = np.unique(spans.unit[rows], return_index=True)
    parent = place[spans.root[rows[first]]]
    order = np.lexsort((first, parent))
    return units[order], np.bincount(parent, minlength=len(parents))


def _stage_demands(
    evidence: Evidence, document: ProfileDocument, info: StageInfo, account: StageAccount, units: Array
) -> StageDemands:
    spans = evidence.spans
    rows = np.arange(len(spans))[spans.of(info.name)]
    place = np.full(len(spans.unit_ids), -1)
    place[units] = np.arange(len(units))
    rows = rows[place[spans.unit[rows]] >= 0]
    good = rows[spans.is_ok[rows]]
    at = place[spans.unit[good]]
    service = (spans.ended[good] - spans.started[good]) / 1e9
    cpu = spans.cpu[good] / 1e9
    if evidence.info.handoff is not None:  # older runs are predicted as they were
        cpu = np.maximum(cpu - clock_seconds(evidence, info.name), 0.0)
    delay = np.nan_to_num(spans.run_delay[good] / 1e9)
    blocked = np.maximum(service - spans.cpu[good] / 1e9 - delay, 0.0)
    lock, kept = _compute_blocked_shares(info, account)
    values = {
        name: _fill(len(units), at, value)
        for name, value in (("wait", blocked * kept), ("cpu", cpu), ("size", spans.batch_size[good].astype(float)))
    }
    demands = StageDemands(
        info=info,
        route=next(stage.route for stage in evidence.stages if stage.name == info.name),
        wait=values["wait"],
        cpu=values["cpu"],
        holds_gil=_may_hold_gil(info, account),
        batch_size=np.maximum(values["size"], 1.0),
        shapes=_shapes(evidence, info, good, at, len(units)),
        tries=_tries(evidence, rows, place, kept),
    )
    behind = _find_lock_of_writers(evidence, document, account)
    _note_lock(demands, info, account, lock * (1.0 - behind))
    demands.turns = _find_turns(evidence, demands, account, behind)
    split = account.blocked_split
    if split is not None and info.executor != "process" and split.unknown <= 0.5 * (account.blocked or 0.0):
        demands.gil_wait = split.gil
        if info.kind == "device":
            demands.gil_wait_grows = _fit_growing_share(blocked, spans.batch_size[good].astype(float))
    return demands


def _may_hold_gil(info: StageInfo, account: StageAccount) -> float:
    """Return 1.0 for a stage that may keep the GIL while it computes: it did not promise otherwise, and calls no model.

    A delivery waits without it, but large results become text with it.
    """
    if info.role == "deliver" and info.executor != "process" and largest_result(account) >= LARGE_RESULT:
        return 1.0
    return 0.0 if info.releases_gil or info.executor == "process" or info.kind == "device" else 1.0


def largest_result(account: StageAccount) -> float:
    """Return the mean bytes of what a stage gets, or of what it hands on, whichever is more; 0 where that was not recorded."""
    return max(account.bytes_in or 0.0, account.bytes_out or 0.0)


def _fit_growing_share(values: Array, sizes: Array) -> float:
    """Return which share of a mean grows with the batch size: the least-squares line's, between 0 and 1."""
    mean = float(values.mean()) if len(values) else 0.0
    if mean <= 0 or len(values) < FEWEST_JOBS or sizes.std() < 0.1 * sizes.mean():
        return 0.5  # not known: one part for the call, one for its items
    slope = float(np.cov(sizes, values)[0, 1] / sizes.var(ddof=1))
    return min(1.0, max(0.0, slope * float(sizes.mean()) / mean))


def _compute_blocked_shares(info: StageInfo, account: StageAccount) -> tuple[float, float]:
    """Return which shares of the blocked time were waiting for a lock, and for the outside."""
    split, blocked = account.blocked_split, account.blocked
    known = 0.0 if split is None or not blocked else 1.0 - split.unknown / blocked
    if split is None or not blocked or known < 0.5:
        # Not sampled: a stage that computes is held up by others, one that waits by the outside.
        return 0.0, 0.0 if _computes(account) else 1.0
    total = blocked * known
    return split.lock / total, max(0.0, 1.0 - (split.gil + split.lock) / total)


def _computes(account: StageAccount) -> bool:
    """Return whether a stage is more at work than it waits."""
    return (account.cpu or 0.0) >= (account.blocked or 0.0)


def _fill(count: int, at: Array, values: Array) -> Array:
    """Return values by unit; units without one (not measured) get those of the others in turn."""
    found = np.full(count, np.nan)
    found[at] = values
    missing = np.flatnonzero(~np.isfinite(found))
    known = found[np.isfinite(found)]
    if len(missing) and len(known):
        found[missing] = known[np.arange(len(missing)) % len(known)]
    return np.asarray(np.nan_to_num(found))


def _shapes(evidence: Evidence, info: StageInfo, rows: Array, at: Array, count: int) -> Array | None:
    """Return the shapes in which units come to a device; None where they are all alike or it takes one at a time."""
    spans = evidence.spans
    if info.kind != "device" or not len(rows) or spans.batch_size[rows].max() <= 1:
        return None
    reasons = {spans.reason_names[code] for code in np.unique(spans.reason[rows]) if code >= 0}
    if "shape" not in reasons:
        return None
    before = _stage_before(evidence, info)
    if before is None:
        return None
    own = np.arange(len(spans))[spans.of(before)]
    shape_of = np.zeros(len(spans.unit_ids), np.int64)
    shape_of[spans.unit[own]] = spans.shape[own]
    shapes = np.zeros(count, np.int64)
    shapes[at] = shape_of[spans.unit[rows]]
    return shapes


def _stage_before(evidence: Evidence, info: StageInfo) -> str | None:
    names = [stage.name for stage in evidence.info.stages]
    number = names.index(info.name)
    return names[number - 1] if number else None


def _tries(evidence: Evidence, rows: Array, place: Array, kept: float) -> dict[int, list[FailedTry]]:
    """Return the tries of units that failed in this stage and went through it in the end."""
    spans = evidence.spans
    failed = rows[~spans.is_ok[rows]]
    found: dict[int, list[FailedTry]] = {}
    if not len(failed):
        return found
    by_unit: dict[int, list[int]] = {}
    for row in rows[np.argsort(spans.arrived[rows], kind="stable")]:
        by_unit.setdefault(int(spans.unit[row]), []).append(int(row))
    for unit in {int(spans.unit[row]) for row in failed}:
        own = by_unit[unit]
        if not spans.is_ok[own[-1]]:
            continue
        found[int(place[unit])] = [
            _read_failed_try(evidence, row, after, kept)
            for row, after in itertools.pairwise(own)
            if not spans.is_ok[row]
        ]
    return found


def _read_failed_try(evidence: Evidence, row: int, after: int, kept: float) -> FailedTry:
    spans = evidence.spans
    service = (spans.ended[row] - spans.started[row]) / 1e9
    cpu = float(np.nan_to_num(spans.cpu[row])) / 1e9
    delay = float(np.nan_to_num(spans.run_delay[row])) / 1e9
    return FailedTry(
        wait=max(0.0, service - cpu - delay) * kept,
        cpu=cpu,
        delay=max(0.0, float(spans.arrived[after] - spans.ended[row]) / 1e9),
    )


def _note_lock(demands: StageDemands, info: StageInfo, account: StageAccount, share: float) -> None:
    """Tell a lock of the stage's own, which only one worker passes at a time, from one that is rarely waited for."""
    blocked, service = account.blocked or 0.0, account.service.mean or 0.0
    waited = share * blocked
    if info.executor == "process" or (info.workers or 1) < 2 or info.kind == "device":
        return
    if share >= _LOCK_SHARE_OF_BLOCKED and waited >= _LOCK_SHARE_OF_SERVICE * service:
        demands.mean_lock = waited


def _find_lock_of_writers(evidence: Evidence, document: ProfileDocument, account: StageAccount) -> float:
    """Return the share of a stage's waits for a lock in which some worker waited until its output was read."""
    split = account.blocked_split
    if split is None or not split.lock:
        return 0.0
    return share_of_lock_waits(evidence.spans, evidence.states, document.window, account.name, ("output",)) or 0.0


def _find_turns(evidence: Evidence, demands: StageDemands, account: StageAccount, behind: float) -> Turns | None:
    """Return how long what a stage waits for takes for each, where the run shows that it serves one at a time.

    A pipe is one for all workers, unless they were seen to write to one each, and is read as fast as it is read; a service
    that is limited in rate answers so many a second.
    """
    wait, cpu = float(demands.wait.mean()), float(demands.cpu.mean())
    if demands.info.kind == "device" or demands.mean_lock:
        return None
    output = _find_output(account, behind)
    if output > cpu:
        if _has_output_each(evidence, account.name):
            return None
        spans, rows = evidence.spans, evidence.stage_rows(account.name)
        seconds = float(spans.ended[rows].max() - spans.started[rows].min()) / 1e9
        # Several that stand in line wait for one another, too.
        each = min(account.service.mean or 0.0, seconds / max(1, rows.stop - rows.start))
        return Turns(max(0.0, each - cpu), with_work=True)
    if wait <= max(cpu, _WAITS * (account.service.mean or 0.0)) or not fit_growth(evidence, account.name).is_in_line:
        return None
    found = find_turns(evidence, account.name)
    return Turns(found.seconds, max(0.0, found.apart - cpu))


def _has_output_each(evidence: Evidence, stage: str) -> bool:
    """Return whether several workers of a stage waited for readers, and no two of them for the same one."""
    spans, profiling = evidence.spans, evidence.profiling
    workers = {spans.thread_names[code] for code in np.unique(spans.thread[evidence.stage_rows(stage)])}
    written = [] if profiling is None else [found for name, found in profiling.outputs.items() if name in workers]
    return len(written) > 1 and len({one for found in written for one in found}) == sum(map(len, written))


def _find_output(account: StageAccount, behind: float) -> float:
    """Return the seconds per item that a stage waits until its output is read, if most of what it waits for is that; else 0.

    The GIL apart, which a writer has to have, too; `behind` is the share of its waits for a lock that are for whoever writes.
    """
    split, blocked = account.blocked_split, account.blocked or 0.0
    if split is None or blocked <= split.gil:
        return 0.0
    return split.output if split.output + behind * split.lock >= _WAITS_FOR_READER * (blocked - split.gil) else 0.0

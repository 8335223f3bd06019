"""What each recorded step and batch needed of the machine: seconds computing and seconds blocked, by part.

Waiting for a core is in neither, nor is waiting for a batch: a simulation makes both again. A step that does not stand for
others (the first of the run, one that compiled or was profiled, one that failed) gets the needs of the next plain one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.diagnose.training.steps import Array, LoadedBatches, RankSteps, Stretches, Times
from headrace.runs.training_phases import Kind, LoaderWork, Phase

#: What the training thread does for each micro-batch, and once for each step, in this order.
PER_BATCH = (Phase.PREPARE, Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.EXCHANGE)
PER_STEP = (Phase.BEFORE_UPDATE, Phase.OPTIMIZER, Phase.AFTER, Phase.CHECKPOINT, Phase.OUTSIDE)
#: Phases in which PyTorch's operators compute, with all of their threads.
IN_THREADS = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER})
#: What loading a batch consists of, in this order. `ITEMS` is here what is left of it without its parts.
LOADING = (
    LoaderWork.READ,
    LoaderWork.OPEN,
    LoaderWork.DECODE,
    LoaderWork.AUGMENT,
    LoaderWork.TOKENISE,
    LoaderWork.ITEMS,
    LoaderWork.COLLATE,
)
#: Parts of `ITEMS`.
PARTS = (LoaderWork.READ, LoaderWork.OPEN, LoaderWork.DECODE, LoaderWork.AUGMENT, LoaderWork.TOKENISE)
#: What a cache of items saves.
CACHED = (LoaderWork.READ, LoaderWork.OPEN, LoaderWork.DECODE)


@dataclass(frozen=True, slots=True)
class Needs:
    """One part, one value for each step or batch: float64 seconds."""

    blocked: Array
    cpu: Array

    def __getitem__(self, places: Array) -> Needs:
        """Return it for some of the steps or batches."""
        return Needs(self.blocked[places], self.cpu[places])

    def __add__(self, other: Needs) -> Needs:
        return Needs(self.blocked + other.blocked, self.cpu + other.cpu)

    def without(self, other: Needs) -> Needs:
        """Return what is left of it, no less than nothing."""
        return Needs(np.maximum(self.blocked - other.blocked, 0.0), np.maximum(self.cpu - other.cpu, 0.0))

    @property
    def total(self) -> Array:
        """float64 seconds: of both."""
        return np.asarray(self.blocked + self.cpu)


def needs_of(times: Times) -> Needs:
    """Return what a part needed; where CPU time was not measured, all of it counts as computing."""
    delay = np.nan_to_num(times.run_delay)
    cpu = np.where(np.isnan(times.cpu), np.maximum(times.wall - delay, 0.0), times.cpu)
    return Needs(np.maximum(times.wall - cpu - delay, 0.0), cpu)


def standing_for(steps: Stretches) -> Array:
    """Return for each step the place of the one whose needs it gets: its own, or those of the next plain one.

    Returns:
        int64, (steps,).
    """
    odd = [kind in (Kind.RECOMPILED, Kind.PROFILED, Kind.CUT) for kind in steps.kinds] | steps.is_failed
    odd[0] = True
    places = np.arange(len(steps))
    good = np.flatnonzero(~np.asarray(odd, bool))
    if not len(good):
        return places
    nearest = good[np.minimum(np.searchsorted(good, places), len(good) - 1)]
    return np.where(odd, nearest, places)


def loading_needs(rank: RankSteps, workers: int) -> dict[LoaderWork, Needs] | None:
    """Return what loading needed, one value for each micro-batch of each step in order; None where it was not recorded.

    Without workers the training thread's wait holds the work of loading, and serves where no batch was recorded.
    """
    counts = np.maximum(rank.steps.microbatches, 1)
    if len(rank.batches) and {LoaderWork.ITEMS, LoaderWork.COLLATE} & set(rank.batches.work):
        return {work: needs[_places(rank, counts)] for work, needs in _split(rank.batches).items()}
    if workers or Phase.WAIT not in rank.steps.phases:
        return None
    wait = needs_of(rank.steps.phases[Phase.WAIT])[standing_for(rank.steps)]
    return {LoaderWork.ITEMS: Needs(*(np.repeat(part / counts, counts) for part in (wait.blocked, wait.cpu)))}


def _places(rank: RankSteps, counts: Array) -> Array:
    """Return for each micro-batch the place of its batch; of a step whose batches are not all there, those that came next."""
    used = np.flatnonzero(np.isin(rank.batches.step, rank.steps.number))
    used = used if len(used) else np.arange(len(rank.batches))
    by_step: dict[int, list[int]] = {}
    for place in used:
        by_step.setdefault(int(rank.batches.step[place]), []).append(int(place))
    found: list[int] = []
    nexts = np.searchsorted(rank.batches.step[used], rank.steps.number)
    for number, count, at in zip(rank.steps.number, counts, nexts, strict=True):
        own = by_step.get(int(number), [])
        found += own if len(own) == count else [int(used[(at + one) % len(used)]) for one in range(count)]
    return np.array(found, np.int64)


def _split(batches: LoadedBatches) -> dict[LoaderWork, Needs]:
    """Return the work by its parts, none of which holds another."""
    zero = Needs(np.zeros(len(batches)), np.zeros(len(batches)))
    given = {work: needs_of(times) for work, times in batches.work.items() if work in LOADING}
    items, collate = given.get(LoaderWork.ITEMS, zero), given.get(LoaderWork.COLLATE, zero)
    for work in PARTS:
        part = given.get(work, zero)
        # A tokeniser is called in the items or when they are collated: what does not fit into the items was in there.
        collate, items = collate.without(part.without(items)), items.without(part)
    if LoaderWork.READ not in given:
        given[LoaderWork.READ] = Needs(items.blocked, np.zeros(len(batches)))
        items = Needs(np.zeros(len(batches)), items.cpu)
    return {**given, LoaderWork.ITEMS: items, LoaderWork.COLLATE: collate}

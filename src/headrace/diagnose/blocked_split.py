"""What blocked threads waited for: samples of their states, taken from outside, laid over the spans of their workers.

A sample belongs to the stage in whose service it was taken. Among those that found the thread blocked, the share of each
state is the share of the blocked time: samples are taken at even steps of time. How long the thread was blocked at all is not
taken from samples but from the span's clocks, which are exact.

One thread may carry the calls of all workers of a stage. What it waits for then holds up only the calls that have something to
do, while most of those under way wait for their servers; so its samples are no shares of the blocked time of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.diagnose.gauges import StateSamples
from headrace.diagnose.span_columns import Array, SpanColumns
from headrace.runs.formats.profile import BlockedSplit, Window

RUNNING = "running"
#: Blocked samples below which no share is given: of so many, what takes a quarter of the time is missed once in eighteen times.
FEWEST_SAMPLES = 10
#: What the thread that carries calls waits for when it has nothing to do.
_OUTSIDE = "network"
_STATES = ("gil", "lock", "network", "disk", "sleep", "process", "output", "other")


@dataclass(frozen=True, slots=True)
class BlockedSamples:
    """Samples by stage and state."""

    counts: dict[str, dict[str, int]]
    """{stage: {state: samples within its service}}, `running` included."""
    lone: frozenset[str] = frozenset()
    """Stages of which one thread in each process was sampled."""
    fewest: int = FEWEST_SAMPLES
    """Blocked samples below which no share is given."""

    def split(self, stage: str, blocked: float) -> BlockedSplit:
        """Return a stage's blocked seconds per item by what was waited for; all `unknown` where samples are too few.

        Args:
            stage: Its name.
            blocked: Mean blocked seconds per item.
        """
        counts = {state: count for state, count in self.counts.get(stage, {}).items() if state != RUNNING}
        total = sum(counts.values())
        if total < self.fewest:
            return BlockedSplit(unknown=blocked, num_samples=total)
        shares = {state: blocked * counts.pop(state, 0) / total for state in _STATES}
        shares["other"] += blocked * sum(counts.values()) / total  # states of a newer headrace
        return BlockedSplit(**shares, num_samples=total)

    def split_carried(self, stage: str, blocked: float, computing: float) -> BlockedSplit:
        """Return the same of a stage whose calls one thread carried.

        What the thread waited for itself (the GIL, a lock) it did while it had something to do. Per call that is in proportion
        to its computing as the samples of both are, and longer by the calls before it, as in a queue before one server.

        Args:
            stage: Its name.
            blocked: Mean blocked seconds per item.
            computing: Mean seconds per item of CPU time and of waiting for a core.
        """
        split = self.split(stage, blocked)
        counts = self.counts.get(stage, {})
        outside = counts.get(_OUTSIDE, 0)
        if split.unknown or not outside or blocked <= 0:
            return split
        stretch = sum(counts.values()) / outside
        seconds_per_sample = computing / max(1, counts.get(RUNNING, 0)) * stretch
        factor = min(1.0, seconds_per_sample * split.num_samples / blocked)
        shares = {state: getattr(split, state) * factor for state in _STATES if state != _OUTSIDE}
        return BlockedSplit(**shares, network=blocked - sum(shares.values()), num_samples=split.num_samples)


def count_samples(spans: SpanColumns, states: StateSamples | None, window: Window) -> BlockedSamples | None:
    """Return the samples that fall within services in a window; None without samples."""
    if states is None or not len(spans):
        return None
    kept, worker = _find_worked(spans, states, window)
    hit, stage = _stages_at(spans, worker, states.times[kept])
    counts: dict[str, dict[str, int]] = {}
    num_states = len(states.state_names)
    table = np.bincount(
        stage[hit] * num_states + states.state[kept][hit], minlength=len(spans.stage_names) * num_states
    )
    for code, name in enumerate(spans.stage_names):
        own = table[code * num_states : (code + 1) * num_states]
        counts[name] = {states.state_names[state]: int(own[state]) for state in np.flatnonzero(own)}
    return BlockedSamples(counts, _lone(spans, np.unique(worker)))


def locate_samples(spans: SpanColumns, states: StateSamples, window: Window) -> tuple[Array, Array]:
    """Return the rows of the samples that fall within services in a window, and the stage of each, by its number."""
    kept, worker = _find_worked(spans, states, window)
    hit, stage = _stages_at(spans, worker, states.times[kept])
    return kept[hit], stage[hit]


def _find_worked(spans: SpanColumns, states: StateSamples, window: Window) -> tuple[Array, Array]:
    """Return the rows of the samples in a window of threads that have spans, and the worker of each."""
    first, last = window.from_seconds * 1e9, window.to_seconds * 1e9
    kept = np.flatnonzero((states.times >= first) & (states.times <= last))
    worker = _workers(spans, states)[kept]
    return kept[worker >= 0], worker[worker >= 0]


def _lone(spans: SpanColumns, sampled: Array) -> frozenset[str]:
    """Return the stages of which no more than one worker in each process was sampled."""
    found = set()
    for name in spans.stage_names:
        own = spans.of(name)
        workers, one_each = np.unique(spans.worker[own], return_index=True)
        processes = spans.process[own][one_each][np.isin(workers, sampled)]
        if len(np.unique(processes)) == len(processes):
            found.add(name)
    return frozenset(found)


def _workers(spans: SpanColumns, states: StateSamples) -> Array:
    """Return for each sample the number of its worker in `spans`; -1 if it has no spans."""
    _, one_each = np.unique(spans.worker, return_index=True)
    known = {
        (int(spans.process[row]), spans.thread_names[spans.thread[row]]): int(spans.worker[row]) for row in one_each
    }
    threads = len(states.thread_names)
    key = states.process.astype(np.int64) * threads + states.thread
    keys, which = np.unique(key, return_inverse=True)
    found = [known.get((int(value) // threads, states.thread_names[int(value) % threads]), -1) for value in keys]
    return np.array(found, np.int64)[which]


def _stages_at(spans: SpanColumns, worker: Array, times: Array) -> tuple[Array, Array]:
    """Return whether each sample falls within a service of its worker, and the stage of the last service begun before it."""
    base = min(int(spans.started.min()), int(times.min(initial=0)))
    # One key for worker and time: those of one worker follow one another, and no two workers overlap.
    span_of_time = max(int(spans.ended.max()), int(times.max(initial=0))) - base + 1
    order = np.argsort(spans.worker.astype(np.int64) * span_of_time + spans.started - base, kind="stable")
    starts = (spans.worker.astype(np.int64) * span_of_time + spans.started - base)[order]
    index = np.searchsorted(starts, worker * span_of_time + times - base, "right") - 1
    row = order[np.maximum(index, 0)]
    hit = (index >= 0) & (spans.worker[row] == worker) & (times <= spans.ended[row])
    return hit, spans.stage[row].astype(np.int64)

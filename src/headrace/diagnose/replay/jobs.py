"""Which of the recorded jobs a simulated run does, when they come, and what a call of the source takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.base.plan import Plan
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.replay.demands import Demands
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import ProfileDocument

#: Receivers that wait longer than this share of their time for jobs have fewer than they could take.
_WAITING_SHARE = 0.4
#: Blocks of neighbouring jobs that a resampled run is made of.
_BLOCKS = 12
#: Share of the deliveries that were lost, failed or given back, from which on jobs that come again matter.
COMES_AGAIN = 0.02


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a job needs in the source's own thread, which works ahead of the receivers."""

    cpu_seconds: float
    wait_seconds: float
    threads: int
    """That work while that thread waits."""
    depth: int
    """Jobs that it keeps ready at most."""


def find_ahead(evidence: Evidence) -> Ahead | None:
    """Return what the source's own thread does for each job; None if it has none, or what that takes is not known."""
    work = evidence.info.source_work
    if work is None or work.cpu_seconds is None or work.wait_seconds is None:
        return None
    return Ahead(work.cpu_seconds, work.wait_seconds, work.threads, work.jobs_ahead)


def sample_jobs(recorded: int, count: int, seed: int | None) -> Array:
    """Return which recorded jobs come: in order and around again, or in blocks drawn with replacement.

    Of more jobs than that, blocks from all over the run: the first ones alone may be of another kind.
    """
    if seed is None:
        length = -(-count // _BLOCKS)
        apart = max(0, recorded - length) / (_BLOCKS - 1) if count < recorded else length
        starts = np.floor(np.arange(_BLOCKS) * apart).astype(int)
        return np.asarray((starts[:, None] + np.arange(length)).ravel()[:count] % recorded)
    # No more of them than were recorded: a run of a hundred jobs is no surer for being gone around four times.
    length = -(-min(count, recorded) // _BLOCKS)
    starts = np.random.default_rng(seed).integers(0, recorded, size=_BLOCKS)
    drawn = (starts[:, None] + np.arange(length)).ravel() % recorded
    return np.asarray(drawn[np.arange(count) % len(drawn)])


def find_arrivals(demands: Demands, change: Change, count: int, seed: int, *, is_open: bool) -> list[float] | None:
    """Return when each of so many jobs comes: as said, as recorded and around again, or None: as soon as it is taken."""
    if change.arrival_rate is not None:
        gaps = np.random.default_rng(seed).exponential(1.0, count)
        gaps *= count / change.arrival_rate / gaps.sum()  # a small sample's own rate is that of its luck
        return [float(when) for when in np.cumsum(gaps)]
    if not is_open:
        return None
    recorded = demands.arrived - demands.arrived[0]
    around = recorded[-1] + recorded[-1] / max(1, len(recorded) - 1)
    turns = np.arange(count) // len(recorded)
    return [float(when) for when in recorded[np.arange(count) % len(recorded)] + turns * around]


def find_calls(evidence: Evidence, plan: Plan, *, is_open: bool) -> tuple[float, int]:
    """Return seconds of a call of the source, and how many jobs it may bring.

    Calls that waited for a thread of the source, or until jobs were due again, say nothing of what a call takes. Jobs that were
    given back without its counting against them cannot be told from new ones: where these are many and calls bring few, no
    call's time is known.
    """
    receiving = evidence.info.receiving
    batch = plan.source.receive_batch
    if receiving is None or is_open or find_ahead(evidence) is not None:
        return 0.0, max(batch, 1)
    calls = receiving.calls - receiving.empty_calls
    if calls < 1:
        return 0.0, batch
    per_call = receiving.jobs / calls
    # Calls that bring what they are asked for show no limit of the source's own.
    is_full = per_call >= 0.8 * min(batch, receiving.asked / max(1, receiving.calls))
    own_calls = calls - receiving.again_calls
    counters = evidence.info.counters
    if own_calls < 1 or (not is_full and counters.returned >= COMES_AGAIN * max(counters.received, 1)):
        return 0.0, batch
    seconds = receiving.call_seconds - receiving.empty_call_seconds - receiving.again_call_seconds
    return max(0.0, seconds) / own_calls, 10**6 if is_full else max(1, round(per_call))


def find_open(evidence: Evidence, document: ProfileDocument) -> bool:
    """Return whether jobs came slower than they could have been taken: receivers waited for them, and not for the source."""
    if evidence.info.source_work is not None:
        return False
    receiving = evidence.info.receiving
    if receiving is not None:
        elapsed = max(evidence.elapsed_seconds, 1e-9) * receiving.num_receivers
        waited = receiving.empty_call_seconds + receiving.call_seconds * (receiving.calls > 0) * _is_polled(evidence)
        return waited / elapsed > _WAITING_SHARE and receiving.blocked_seconds / elapsed < 1 - _WAITING_SHARE
    busiest = max((stage.utilization or 0.0 for stage in document.stages), default=0.0)
    return busiest < 0.6


def _is_polled(evidence: Evidence) -> bool:
    """Return whether calls of the source wait for jobs: these do not grow old in it; if it tells no age, some calls were empty.

    Where jobs come often, a call that waits comes back with the next one and never empty.
    """
    receiving = evidence.info.receiving
    if receiving is None:
        return False
    age = receiving.last_age_seconds
    return receiving.empty_calls > 0 if age is None else age < 0.5

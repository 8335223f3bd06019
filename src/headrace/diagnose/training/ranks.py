"""Joins the steps of ranks that train together: who works how long, who waits for whom, and what the exchange itself takes.

Each exchange is a point at which all ranks meet. Up to it a rank works; from the end of its own work until the last rank has
come it waits; from then on it transfers. So the three parts of the time between two exchanges add up to it:

    own     from the end of the rank's exchange before to the start of this one
    wait    from there to the start of the rank that comes last
    rest    from there to the end of the exchange: transfer, and what belongs to it

Clocks: processes of one host share one. Clocks of several hosts, or clocks that contradict each other (an exchange that ended
before another rank had begun it), are aligned by the ends of the exchanges, which are the same moment for all ranks up to what
the exchange itself takes. That is then the uncertainty: a smaller lead is not told apart from a clock that is off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from headrace.diagnose.training.steps import Array, RankSteps
from headrace.runs.reader import Run
from headrace.runs.training_phases import DEVICE, Phase, Stretch

#: Clocks of one host disagree by less; what an exchange's end shows beyond this contradicts a common clock.
_SAME_CLOCK_SECONDS = 0.0002


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """The exchanges of one rank, in order of time."""

    host: str
    step: Array
    """int64: number of the step it was in."""
    began: Array
    """float64, seconds since the run began, on the clock of the host."""
    ended: Array
    """float64, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meetings:
    """Exchanges of all ranks side by side: one row for each exchange, one column for each rank."""

    ranks: tuple[int, ...]
    step: Array
    """int64, (meetings,)."""
    own: Array
    """float64 seconds, (meetings, ranks); NaN where the exchange before is not known."""
    wait: Array
    """float64 seconds, (meetings, ranks)."""
    rest: Array
    """float64 seconds, (meetings, ranks)."""
    uncertainty: float
    """Seconds by which the clocks may disagree."""

    @property
    def last(self) -> Array:
        """int64, (meetings,): column of the rank that came last."""
        return np.asarray(np.argmin(self.wait, axis=1))

    @property
    def lead(self) -> Array:
        """float64 seconds, (meetings,): how much later the last rank came than the one before it."""
        return np.asarray(np.partition(self.wait, 1, axis=1)[:, 1])


def read_exchanges(run: Run) -> dict[int, Exchanges]:
    """Return {rank: its exchanges}; empty where none was recorded.

    Args:
        run: Whose `info.unit` is `step`.
    """
    spans = run.spans()
    spans = spans.filter(pc.equal(spans["stage"], str(Phase.EXCHANGE)))
    on_device = spans.filter(pc.equal(spans["unit"], DEVICE))
    spans = on_device if len(on_device) else spans.filter(pc.equal(spans["unit"], str(Stretch.STEP)))
    found: dict[int, list[tuple[int, int, int, str]]] = {}
    for row in spans.select(["rank", "started", "ended", "unit_id", "host"]).to_pylist():
        found.setdefault(row["rank"], []).append((row["started"], row["ended"], int(row["unit_id"]), row["host"]))
    joined = {}
    for rank, rows in sorted(found.items()):
        rows.sort()
        host = rows[0][3]
        shift = run.info.clock_offsets_ns.get(host, 0) - run.info.started_monotonic_ns
        joined[rank] = Exchanges(
            host=host,
            step=np.array([row[2] for row in rows], np.int64),
            began=np.array([row[0] + shift for row in rows], np.float64) / 1e9,
            ended=np.array([row[1] + shift for row in rows], np.float64) / 1e9,
        )
    return joined


def join_exchanges(exchanges: Mapping[int, Exchanges]) -> Meetings | None:
    """Put the exchanges of ranks side by side; None with fewer than two ranks, or where they have no step in common.

    A step counts if every rank has the same number of exchanges in it.
    """
    if len(exchanges) < 2:
        return None
    counts = [
        dict(zip(*map(np.ndarray.tolist, np.unique(one.step, return_counts=True)), strict=True))
        for one in exchanges.values()
    ]
    common = {step for step, count in counts[0].items() if all(other.get(step) == count for other in counts)}
    if not common:
        return None
    chosen = {rank: np.isin(one.step, list(common)) for rank, one in exchanges.items()}
    began = np.stack([one.began[chosen[rank]] for rank, one in exchanges.items()], axis=1)
    ended = np.stack([one.ended[chosen[rank]] for rank, one in exchanges.items()], axis=1)
    own = np.stack([_own_work(one)[chosen[rank]] for rank, one in exchanges.items()], axis=1)
    shifts, uncertainty = _align_clocks(began, ended, tuple(one.host for one in exchanges.values()))
    began, ended = began + shifts, ended + shifts
    latest = began.max(axis=1, keepdims=True)
    first = next(iter(exchanges))
    return Meetings(
        ranks=tuple(exchanges),
        step=exchanges[first].step[chosen[first]],
        own=own,
        wait=latest - began,
        rest=ended - latest,
        uncertainty=uncertainty,
    )


def select_steps(ranks: Sequence[RankSteps], meetings: Meetings) -> Meetings:
    """Return the meetings of steps that are plain on every rank."""
    plain: set[int] = set.intersection(*(set(one.steps.number[one.steps.is_plain].tolist()) for one in ranks))
    kept = np.isin(meetings.step, list(plain))
    return Meetings(
        ranks=meetings.ranks,
        step=meetings.step[kept],
        own=meetings.own[kept],
        wait=meetings.wait[kept],
        rest=meetings.rest[kept],
        uncertainty=meetings.uncertainty,
    )


def sum_by_step(meetings: Meetings, values: Array) -> Array:
    """Return float64, (steps, ...): values of one step's meetings added up.

    Args:
        meetings: Whose steps they are.
        values: (meetings, ...).
    """
    steps, place = np.unique(meetings.step, return_inverse=True)
    total = np.zeros((len(steps), *values.shape[1:]))
    np.add.at(total, place, values)
    return total


def _own_work(exchanges: Exchanges) -> Array:
    own = np.full(len(exchanges.step), np.nan)
    own[1:] = exchanges.began[1:] - exchanges.ended[:-1]
    # After a pause of a step that had no exchange the time between is not one rank's work up to a meeting.
    own[1:][np.diff(exchanges.step) > 1] = np.nan
    return own


def _align_clocks(began: Array, ended: Array, hosts: Sequence[str]) -> tuple[Array, float]:
    """Return seconds to add to each rank's clock, and the seconds by which they may then disagree."""
    none = np.zeros(began.shape[1])
    contradiction = float(np.median(began.max(axis=1) - ended.min(axis=1)))
    if len(set(hosts)) == 1 and contradiction <= _SAME_CLOCK_SECONDS:
        return none, 0.0
    shifts = np.median(ended[:, :1] - ended, axis=0)
    # The rank that comes last is in the exchange for the transfer alone, and clocks do not matter to how long that is.
    return shifts, float(np.median((ended - began).min(axis=1)))

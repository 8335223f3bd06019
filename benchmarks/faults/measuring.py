"""Profiles a case into a run folder, and measures what a change costs by running two cases in turn."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults import work
from benchmarks.faults.case import Case
from headrace.base.errors import HeadraceError
from headrace.base.observer import Observer
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.compare.blocks import per_item
from headrace.compare.intervals import Interval, centre, paired_interval
from headrace.compare.sequential import once
from headrace.compare.turns import Turns, take_turns
from headrace.pipeline.execute import Measuring, run
from headrace.profiler.profile import ProfileSettings, profile


def run_case(case: Case, folder: str | Path, *, force: bool = False, settings: ProfileSettings | None = None) -> Path:
    """Profile a case and return its run folder, which says nothing of what was done to the case.

    Args:
        case: What to run.
        folder: New or empty.
        force: Replace what an earlier run left in the folder.
        settings: What is measured.

    Raises:
        HeadraceError: What profiling raises.
    """
    work.calibrate()
    with case.opened() as pipeline:
        profile(pipeline, case.plan, output=folder, limit=case.limit, force=force, settings=settings)
    return Path(folder)


class _Settled(Observer):
    """Notes when jobs were delivered that were still ours, on the monotonic clock: others have been done in vain."""

    def __init__(self) -> None:
        self.at_seconds: list[float] = []

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Note it."""
        if outcome.kind is OutcomeKind.DELIVERED and not job.lost:
            self.at_seconds.append(time.monotonic())


def throughput(case: Case) -> float:
    """Run a case, without a profiler, and return its delivered jobs per second in the steady part.

    Raises:
        HeadraceError: If it cannot run, or delivers too few to tell.
    """
    work.calibrate()
    settled = _Settled()
    with case.opened() as pipeline:
        run(pipeline, case.plan, limit=case.limit, observers=[settled], measuring=Measuring(first_alone=True))
    each_seconds = per_item(settled.at_seconds[1:])
    if each_seconds is None:
        raise HeadraceError(
            f"shape {case.shape}: {len(settled.at_seconds)} jobs were delivered in {case.seconds:g} s, too few for a rate; "
            "give it more seconds or a smaller dose"
        )
    return 1 / each_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a change does to the throughput."""

    ratio: float
    """Throughput after over throughput before, paired; below 1 it costs."""
    interval: tuple[float, float] | None
    """95 % interval of the ratio; None with fewer than six pairs."""
    before: tuple[float, ...]
    """Jobs per second of each run, in order."""
    after: tuple[float, ...]


def measure_cost(
    before: Case, after: Case, *, pairs: int = 3, say: Callable[[str], object] = lambda line: None
) -> Cost:
    """Run two cases in turn, A B, B A, ..., and return what the second does to the throughput.

    Args:
        before: Healthy, for instance.
        after: Faulty, for instance; or mended.
        pairs: Runs of each, >= 1.
        say: Told about the progress, one line at a time.

    Raises:
        HeadraceError: If a case cannot run, or delivers too few to tell.
    """

    def progress(turns: Turns[float]) -> None:
        found = turns.rounds[-1]
        say(f"pair {len(turns.rounds)} of {pairs}: {found['a']:.4g}/s and {found['b']:.4g}/s")

    sides = {"a": functools.partial(throughput, before), "b": functools.partial(throughput, after)}
    turns = take_turns(sides, once(pairs), after_round=progress)
    if turns.interrupted:
        raise KeyboardInterrupt
    rates = turns.pairs("a", "b")
    differences = [math.log(b / a) for a, b in rates]
    interval: Interval | None = paired_interval(differences)
    firsts, seconds = zip(*rates, strict=True)
    return Cost(
        ratio=math.exp(centre(differences)),
        interval=None if interval is None else (math.exp(interval.low), math.exp(interval.high)),
        before=firsts,
        after=seconds,
    )

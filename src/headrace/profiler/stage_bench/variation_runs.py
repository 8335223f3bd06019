"""Runs variations in turn and measures the throughput of each one's steady part.

How this works: a run goes on until its steady part has lasted long enough; then what is still queued is dropped. The loop
of `compare.turns` runs all of them there and back, and they are compared within each round.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.base.observer import Observer
from headrace.base.plan import Plan
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.compare.sequential import once
from headrace.compare.turns import Turns, take_turns
from headrace.pipeline.definition import Pipeline
from headrace.profiler.stage_bench.background import BackgroundRun, Replay
from headrace.profiler.stage_bench.curves import ratio_interval, steady_rate
from headrace.profiler.stage_bench.scaling import Effort
from headrace.runs.formats.isolation import Variation

#: After the first item is done, for this share of the measured time, queues still fill.
_RAMP_SHARE = 0.3
#: Done items below which the measured time is stretched, and by how much at most.
_ENOUGH_ITEMS = 20
_MOST_STRETCH = 5
#: A pipeline that has done nothing by then is given up.
_FIRST_ITEM_SECONDS = 60.0
_POLL_SECONDS = 0.02


class NotPossible(Exception):
    """A variation cannot be run here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One variation, ready to be run any number of times."""

    name: str
    pipeline: Pipeline
    """Its source is not used."""
    plan: Plan
    jobs: Sequence[Job]
    """What its source gives, round and round; at least one."""
    says: str
    """What it means."""
    prepare: Callable[[], object] = lambda: None
    """Called before each run; may raise NotPossible."""
    before: Callable[[Job], object] = lambda job: None
    """Called with each job before it is given out."""
    check: Callable[[], object] = lambda: None
    """Called after each run; may raise NotPossible: the run does not count."""
    copies: bool = False
    """Each job needs a copy of its payload, because the first stage changes it."""
    outputs_per_item: float = 1.0
    """Results of this pipeline for one item of the whole one."""


def measure_all(scenarios: Mapping[str, Scenario | str], effort: Effort) -> tuple[Variation, ...]:
    """Run all variations in turn and return their throughput; what was stopped half-way counts as far as it went."""
    says = {name: one if isinstance(one, str) else one.says for name, one in scenarios.items()}
    given_up: set[str] = set()

    def measure(scenario: Scenario) -> float | None:
        if scenario.name in given_up or effort.stop():
            return None
        effort.progress(f"variation {scenario.name}")
        try:
            return run_once(scenario, effort)
        except NotPossible as reason:
            given_up.add(scenario.name)
            says[scenario.name] = str(reason)
            return None

    ready = {name: one for name, one in scenarios.items() if isinstance(one, Scenario)}
    blocks = {name: functools.partial(measure, one) for name, one in ready.items()}
    turns = take_turns(blocks, once(effort.repetitions), may_go_on=lambda: not effort.stop())
    if turns.interrupted:
        raise KeyboardInterrupt
    return tuple(compare_rates(name, turns, text) for name, text in says.items())


def compare_rates(name: str, turns: Turns[float], says: str) -> Variation:
    """Return one variation as the document has it, compared with `as_is` within each round.

    Args:
        name: Of the variation.
        turns: Items per second of all.
        says: What it means, or why it was not run.
    """
    rates = turns.of(name)
    if not rates:
        return Variation(name=name, throughput=None, says=says)
    ratios = [rate / base for rate, base in turns.pairs(name, "as_is")]
    interval = ratio_interval(ratios)
    return Variation(
        name=name,
        throughput=statistics.median(rates),
        throughput_low=min(rates),
        throughput_high=max(rates),
        ratio=statistics.median(ratios) if ratios else None,
        ratio_low=interval[0] if interval else None,
        ratio_high=interval[1] if interval else None,
        says=says,
    )


def run_once(scenario: Scenario, effort: Effort) -> float | None:
    """Return the items per second of one run's steady part; None if it was stopped before there was one.

    Raises:
        NotPossible: If it does not run, with the reason.
    """
    scenario.prepare()
    stamps = _Stamps()
    source = Replay(scenario.jobs, scenario.before, copies=scenario.copies)
    with BackgroundRun(scenario.pipeline, source, scenario.plan, [stamps]) as running:
        start, end = _wait(running, stamps, effort)
    if running.error is not None:
        raise NotPossible(f"not possible: {type(running.error).__name__}: {running.error}")
    scenario.check()
    rate = steady_rate(stamps.seconds, start, end)
    if rate is None and not effort.stop():
        last = f", the last failure: {stamps.reason}" if stamps.reason else ""
        raise NotPossible(f"not possible: {len(stamps.seconds)} items were done, too few for a rate{last}")
    return None if rate is None else rate / scenario.outputs_per_item


def _wait(running: BackgroundRun, stamps: _Stamps, effort: Effort) -> tuple[float, float]:
    """Wait until a run's steady part was long enough, and return its start and end in seconds."""
    given_up_at = time.monotonic() + _FIRST_ITEM_SECONDS + effort.seconds
    start = 0.0
    while running.goes_on(_POLL_SECONDS) and not effort.stop():
        now = time.monotonic()
        if not stamps.seconds:
            if now > given_up_at:
                break
            continue
        start = stamps.seconds[0] + _RAMP_SHARE * effort.seconds
        enough = sum(1 for stamp in stamps.seconds[-_ENOUGH_ITEMS:] if stamp >= start) >= _ENOUGH_ITEMS
        if now >= start + effort.seconds * (1 if enough else _MOST_STRETCH):
            break
    return start, time.monotonic()


@dataclass
class _Stamps(Observer):
    """When jobs were done."""

    seconds: list[float] = field(default_factory=list)
    """Of time.monotonic, in order: several threads settle jobs, but a list's append is atomic."""
    reason: str = ""
    """Of the last job that was not delivered."""

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Note the moment."""
        if outcome.kind is OutcomeKind.DELIVERED:
            self.seconds.append(time.monotonic())
        elif outcome.kind is not OutcomeKind.RETURNED:
            self.reason = outcome.reason

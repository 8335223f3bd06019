"""Lives beside a run and experiments on it: a watch, as `headrace.run` takes it.

How this works: one thread turns the levers. It waits for the first results, measures some stretches with nothing changed,
chooses the perturbations by what it saw, and then makes them in turn, each between two unperturbed stretches, until each is
decided, none of them is affordable, or the time is up; then it sets `stop`, which ends the run. Stretches are cut short and
everything is undone when the run is stopped, fails or ends: the runtime ends the levers (`pipeline.levers`), and leaving the
context of this watch ends the thread, which leaves the context of the perturbation.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from headrace import __version__
from headrace.pipeline.levers import Adjustable
from headrace.pipeline.thread_budget import usable_cores
from headrace.pipeline.watching import RunInProgress
from headrace.profiler.experiment.departures import Departures, Measured
from headrace.profiler.experiment.estimate import (
    MOST_PAIRS,
    THRESHOLD,
    Scatter,
    interval_of,
    is_decided,
    scatter_of,
    sensitivity_of,
)
from headrace.profiler.experiment.native_threads import native_cpu_seconds
from headrace.profiler.experiment.pacing import SLOWEST_RATE, Pace, Purse, choose_pace
from headrace.profiler.experiment.perturbations import Planned, is_its_turn, plan_perturbations
from headrace.runs.formats.experiment import Ended, ExperimentDocument, Perturbation, StationState, Stretch

logger = logging.getLogger("headrace")

#: Stretches with nothing changed before the first perturbation.
_FIRST_STRETCHES = 4
#: From the first result to the first stretch: queues fill, and so on.
_WARM_SECONDS = 1.0
#: What is measured before the pace is known: longer, if the first second has too few items.
_FIRST_SECONDS = (1.0, 2.0, 4.0)
_TICK_SECONDS = 0.05
#: Stretches in which nothing was done, after which a perturbation is given up.
_MOST_EMPTY = 3


class _Over(Exception):
    """The run ends, or the time is up."""


@dataclass(slots=True)
class _Tried:
    """One perturbation and what its pairs measured."""

    planned: Planned
    log_ratios: list[float] = field(default_factory=list)
    log_latencies: list[float] = field(default_factory=list)
    service_ratios: list[float] = field(default_factory=list)
    num_empty: int = 0
    lost_seconds: float = 0.0
    """Seconds' worth of items that its stretches cost."""
    left_out: str = ""

    def is_open(self, usual: Scatter) -> bool:
        """Return whether more pairs may tell more."""
        return not self.left_out and len(self.log_ratios) < MOST_PAIRS and not self.is_decided(usual)

    def is_decided(self, usual: Scatter) -> bool:
        """Return whether its answer is clear."""
        return is_decided(interval_of(self.log_ratios, usual), self.planned.amount)

    def answer(self, usual: Scatter) -> bool | None:
        """Return whether it costs what it would if its resource was the limit; None: not known yet."""
        ratio, amount = interval_of(self.log_ratios, usual), self.planned.amount
        if amount is None:  # it has no such resource
            return False
        if ratio is None or self.is_open(usual):
            return None
        return sensitivity_of(ratio, amount).mid > THRESHOLD

    @property
    def expected_loss(self) -> float:
        """Share of the throughput that the next stretch will cost."""
        if not self.log_ratios:
            return self.planned.worst_loss
        return max(0.0, 1 - statistics.geometric_mean([math.exp(value) for value in self.log_ratios]))

    def document(self, usual: Scatter, usual_latencies: Scatter) -> Perturbation:
        """Return what came of it."""
        planned, ratio = self.planned, interval_of(self.log_ratios, usual)
        sensitivity = None
        if ratio is not None and planned.amount is not None:
            sensitivity = sensitivity_of(ratio, planned.amount)
        return Perturbation(
            name=planned.name,
            kind=planned.kind,
            station=planned.station,
            says=planned.says,
            amount=planned.amount,
            num_pairs=len(self.log_ratios),
            ratio=ratio,
            sensitivity=sensitivity,
            latency=interval_of(self.log_latencies, usual_latencies),
            service=statistics.median(self.service_ratios) if self.service_ratios else None,
            decided=self.is_decided(usual),
            left_out=self.left_out,
        )


class Experimenter:
    """A watch that experiments on one run; a context manager.

    Args:
        run: That is about to begin.
        budget_seconds: From the first result on.
        delivered: Whether the run delivers its results.
        stop: Set when all is over.
        say: Called with a line for people, when something begins or ends.
    """

    def __init__(
        self,
        run: RunInProgress,
        budget_seconds: float,
        stop: threading.Event,
        *,
        delivered: bool,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._run = run
        self._budget = budget_seconds
        self._stop = stop
        self._delivered = delivered
        self._say = say
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, name="headrace-experiment", daemon=True)
        self._began = 0.0
        self._ends_at = float("inf")
        self._ended: Ended = "source_ended"
        self._stations: list[Adjustable] = []
        self._departures: Departures | None = None
        self._tried: list[_Tried] = []
        self._stretches: list[Stretch] = []
        self._states: tuple[StationState, ...] = ()
        self._throughput: float | None = None
        self._purse = Purse()

    def __enter__(self) -> Experimenter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._thread.join()

    def document(self) -> ExperimentDocument:
        """Return what was measured; after the run."""
        plan, usual = self._run.plan, self._usual()
        latencies = scatter_of(one.log_latencies for one in self._tried)
        return ExperimentDocument(
            headrace_version=__version__,
            pipeline=self._run.pipeline.name,
            plan_id=plan.plan_id,
            delivered=self._delivered,
            budget_seconds=self._budget,
            seconds=self._purse.seconds,
            ended=self._ended,
            throughput=self._throughput,
            cost=self._purse.cost,
            stations=self._states,
            perturbations=tuple(one.document(usual, latencies) for one in self._tried),
            stretches=tuple(self._stretches),
        )

    # --- the thread

    def _work(self) -> None:
        try:
            self._experiment()
        except _Over:
            pass
        except Exception:  # The run is somebody's work: it goes on, as it was.
            logger.exception("the experiment failed; everything it changed is undone, and the run goes on")
        finally:
            if self._departures is not None:
                self._departures.end()
            self._run.levers.rest()
            self._say(
                f"the experiment is over ({self._ended.replace('_', ' ')}); it cost {self._purse.cost:.1%} of the throughput"
            )
            self._stop.set()

    def _experiment(self) -> None:
        while not self._run.begun.wait(_TICK_SECONDS):
            self._check()
        self._stations = list(self._run.adjustable())
        if not self._delivered:
            self._stations = [one for one in self._stations if one.is_last or one.has_workers]
        self._departures = Departures(self._stations)
        self._departures.begin()
        self._wait_for_results()
        self._ends_at = time.monotonic() + self._budget
        self._began = time.monotonic()
        self._pause(_WARM_SECONDS)
        pace = self._find_pace()
        native = native_cpu_seconds()
        before = [self._stretch(pace) for _ in range(_FIRST_STRETCHES)]
        self._choose(before, (native_cpu_seconds() - native) / (_FIRST_STRETCHES * pace.seconds))
        names = ", ".join(one.planned.name for one in self._tried)
        self._say(f"experiment begins, for {self._budget:.0f} s at most; stretches of {pace.seconds:.2g} s: {names}")
        self._take_turns(pace, before[-1])
        self._ended = "decided"

    def _find_pace(self) -> Pace:
        """Return how long stretches are, by what some seconds show."""
        for seconds in _FIRST_SECONDS:
            first = self._measure("", seconds)
            self._purse.spend(seconds)
            if first.throughput is not None and first.latency is not None and first.throughput >= SLOWEST_RATE:
                return choose_pace(first.throughput, first.latency)
        self._ended = "too_slow"
        raise _Over

    def _wait_for_results(self) -> None:
        """Wait until something has come through: models are loaded and warmed up with the first items."""
        assert self._departures is not None
        while not self._departures.stretch(0.0, time.monotonic()).num_items:
            self._pause(_TICK_SECONDS)

    def _choose(self, before: Sequence[Measured], native_seconds: float) -> None:
        """Note what the run does with nothing changed, and choose what to change."""
        seconds = sum(stretch.seconds for stretch in self._stretches[-len(before) :])
        rates = [one.throughput for one in before if one.throughput is not None]
        if not rates:
            self._ended = "too_slow"
            raise _Over
        self._throughput = statistics.fmean(rates)
        states = []
        for station in self._stations:
            name = station.lever.name
            busy = sum(one.busy_seconds[name] for one in before)
            services = [one.service_seconds[name] for one in before if name in one.service_seconds]
            states.append(
                StationState(
                    name=name,
                    stages=station.stages,
                    num_workers=station.num_workers,
                    utilization=min(1.0, busy / (station.num_workers * seconds)),
                    service_seconds=statistics.fmean(services) if services else 0.0,
                )
            )
        self._states = tuple(states)
        self._tried = [
            _Tried(one)
            for one in plan_perturbations(
                self._stations,
                self._run.levers,
                {state.name: state.utilization for state in states},
                self._throughput,
                num_receivers=self._run.plan.source.receivers,
                num_cores=usable_cores(),
                native_seconds=native_seconds,
            )
        ]

    def _usual(self) -> Scatter:
        return scatter_of(one.log_ratios for one in self._tried)

    def _take_turns(self, pace: Pace, before: Measured) -> None:
        while turns := self._whose_turn():
            for pair in _pairs(turns):
                if not self._has_time(pace, pair):
                    for tried in pair:
                        tried.left_out = "the time was up"
                    continue
                before = self._rest_until_affordable(pace, before, pair)
                changed = [self._change(tried, pace) for tried in pair]
                after = self._stretch(pace)
                for tried, measured in zip(pair, changed, strict=True):
                    self._compare(tried, before, measured, after, pace)
                before = after
        while self._purse.seconds_owed > 0:
            self._stretch(pace)
        if any(one.left_out for one in self._tried):
            self._ended = "budget"
            raise _Over

    def _whose_turn(self) -> list[_Tried]:
        """Return what is to be made now."""
        usual = self._usual()
        made = {
            one.planned.name: one.answer(usual) for one in self._tried if one.log_ratios or one.planned.turn == "first"
        }
        still = [one for one in self._tried if one.is_open(usual)]
        return [one for one in still if is_its_turn(one.planned, made)]

    def _has_time(self, pace: Pace, pair: Sequence[_Tried]) -> bool:
        """Return whether there is time for the next ones, and to pay for them."""
        seconds = (len(pair) + 1) * pace.seconds
        loss = sum(tried.expected_loss for tried in pair) * pace.seconds
        return time.monotonic() + max(seconds, self._purse.seconds_owed_after(loss)) <= self._ends_at

    def _rest_until_affordable(self, pace: Pace, before: Measured, pair: Sequence[_Tried]) -> Measured:
        """Change nothing until the cost of the next ones is within its limit, and return the last stretch."""
        loss = sum(tried.expected_loss for tried in pair)
        short = self._purse.seconds_short(pace.seconds, loss)
        while short > 0:
            before = self._stretch(pace)
            short -= pace.seconds
        return before

    def _change(self, tried: _Tried, pace: Pace) -> Measured:
        logger.info("experiment: for %.2g s, %s", pace.seconds, tried.planned.says)
        with tried.planned.enter():
            return self._stretch(pace, tried.planned.name)

    def _compare(self, tried: _Tried, before: Measured, changed: Measured, after: Measured, pace: Pace) -> None:
        rates = [one.throughput for one in (before, changed, after)]
        if None in rates:
            tried.num_empty += 1
            if tried.num_empty >= _MOST_EMPTY:
                tried.left_out = "nothing left the pipeline in some stretches"
            return
        ratio = _ratio(rates)
        tried.log_ratios.append(math.log(ratio))
        ages = [one.latency for one in (before, changed, after)]
        if None not in ages:
            tried.log_latencies.append(math.log(_ratio(ages)))
        name = tried.planned.station
        if name is not None:
            services = [one.service_seconds.get(name) for one in (before, changed, after)]
            if None not in services and min(value or 0.0 for value in services) > 0:
                tried.service_ratios.append(_ratio(services))
        # The stretch was counted as one that costs nothing. What one perturbation gains is no excuse for what others cost.
        tried.lost_seconds += pace.seconds * (1 - ratio)
        self._purse.lost_seconds = sum(max(0.0, one.lost_seconds) for one in self._tried)

    def _stretch(self, pace: Pace, name: str = "") -> Measured:
        self._pause(pace.settling_seconds)
        measured = self._measure(name, pace.measured_seconds)
        self._purse.spend(pace.seconds)
        return measured

    def _measure(self, name: str, seconds: float) -> Measured:
        assert self._departures is not None
        began = time.monotonic()
        self._pause(seconds)
        ended = time.monotonic()
        measured = self._departures.stretch(began, ended)
        self._stretches.append(
            Stretch(name=name, began=began - self._began, seconds=ended - began, throughput=measured.throughput)
        )
        return measured

    def _pause(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self._leaving.wait(min(left, _TICK_SECONDS))
            self._check()

    def _check(self) -> None:
        if self._leaving.is_set() or self._run.levers.is_over:
            self._ended = "interrupted" if self._run.levers.is_stopped else "source_ended"
            raise _Over
        if time.monotonic() > self._ends_at + 1.0:
            self._ended = "budget"
            raise _Over


def _pairs(turns: Sequence[_Tried]) -> list[Sequence[_Tried]]:
    """Return them two by two: two perturbed stretches share the unperturbed ones around them."""
    return [turns[start : start + 2] for start in range(0, len(turns), 2)]


def _ratio(values: Sequence[float | None]) -> float:
    """Return the middle one over the geometric mean of the two around it."""
    before, changed, after = (max(value or 0.0, 1e-9) for value in values)
    return changed / math.sqrt(before * after)

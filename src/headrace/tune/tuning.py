"""Finds a better Plan and proves it: profile once, predict hundreds of Plans, measure a few against the base, in turn.

How this works: the base is profiled once, the device's batches are swept in one short run, and Plans are predicted from
that. The most promising few are predicted once more with an interval, written to the ledger, and only then measured.
One of the few is kept back for a second look: where prediction and measurement differ by more than 10 %, the best Plan
so far is profiled and the search goes on from there; else it goes to the next best of the first search. What is not
better by measurement is not called better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from headrace.base.errors import HeadraceError, Interrupted, LedgerError
from headrace.base.formatting import pluralize
from headrace.base.plan import Plan
from headrace.base.settings import check
from headrace.base.statistics import samples_needed
from headrace.base.units import format_duration
from headrace.compare.blocks import Contender, quiet
from headrace.compare.comparison import Question
from headrace.compare.contenders import Say
from headrace.ledger.ledger import Ledger
from headrace.pipeline.definition import Pipeline
from headrace.runs.formats.prediction import PredictionDocument, TrackRecord
from headrace.runs.formats.tuning import TuningDocument
from headrace.runs.hardware import find_hardware
from headrace.sources.finite import FiniteSource
from headrace.tune.decision import PlanDecision, decide
from headrace.tune.objective import Objective
from headrace.tune.paced_items import PacedItems
from headrace.tune.predictions import Diagnosis, Predictions, Simulator, look, short
from headrace.tune.predictor import size
from headrace.tune.rounds import Effort, Entrant, Rounds
from headrace.tune.search import FoundPoint, choose
from headrace.tune.setting_reasons import Reason, find_reasons
from headrace.tune.space import PLACES
from headrace.tune.sweep import LARGEST_BATCH, BatchCosts
from headrace.tune.tuning_document import MeasuredPlan, TuningOutcome, make_tuning_document
from headrace.tune.tuning_runs import TuningRuns

#: Prediction and measurement that differ by more: the run from which was predicted is too unlike; look again from nearer.
FAR_OFF = 0.10
#: Better Plans whose gains differ by less count as equal, and the smaller one is taken.
_SAME = 0.01
#: Of the budget, what a search may take; on a busy machine it may take three times as long.
_SEARCH_SHARE = 0.1
#: Of what is left of it then, what measuring may take: predictions with their intervals come before.
_MEASURING_SHARE = 0.9
#: Rounds that two Plans must share to be compared head to head.
_FEWEST_DIRECT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """How much is spent."""

    plans: int = 3
    """Plans measured beside the base, at most."""
    profile_seconds: float = 8.0
    """Length of a profiled run, about."""
    search_seconds: float = 20.0
    """Time for predicting, in each search."""
    budget_seconds: float | None = None
    """No new round of measuring begins that would not end by this time; None for no limit."""
    enough: float | None = None
    """Jobs per second: the first Plan that surely does so many is taken, and Plans are measured one by one; None: the best."""
    largest_batch: int = LARGEST_BATCH
    """Largest batch that the sweep tries."""
    keep: frozenset[str] = frozenset()
    """Settings that stay as they are: `decode.scale`, `process.batch`."""
    effort: Effort = field(default_factory=Effort)
    seed: int = 0

    def find_search_seconds(self) -> float:
        """Return the time for predicting in each search: with a small budget less, or nothing could be measured."""
        budget = self.budget_seconds
        return self.search_seconds if budget is None else min(self.search_seconds, _SEARCH_SHARE * budget)

    def __post_init__(self) -> None:
        """Check every value."""
        check(1 <= self.plans <= 10, "--plans", self.plans, "1 to 10 Plans to measure")
        budget = self.budget_seconds
        check(budget is None or budget > 0, "--budget-seconds", budget, "more than 0 seconds")
        check(1 <= self.largest_batch <= 65_536, "--largest-batch", self.largest_batch, "1 to 65536")
        check(self.enough is None or self.enough > 0, "--enough", self.enough, "more than 0 jobs per second")
        check(self.profile_seconds > 0, "profile_seconds", self.profile_seconds, "more than 0")
        check(self.search_seconds > 0, "search_seconds", self.search_seconds, "more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What tuning came to."""

    document: TuningDocument
    plan: Plan | None
    """The better Plan as to be written, the user's with the changes; None without a proved one."""
    reasons: tuple[Reason, ...] = ()


def tune(
    pipeline: Pipeline,
    plan: Plan,
    source: FiniteSource,
    *,
    objective: Objective | None = None,
    settings: TuneSettings | None = None,
    runs: Path = Path("runs"),
    ledger: Ledger | None = None,
    say: Say = lambda line: None,
    diagnosis: Diagnosis | None = None,
) -> Tuned:
    """Find a better Plan by prediction and prove it by measurement.

    Args:
        pipeline: What is done.
        plan: The base, as written.
        source: Where the items of all runs come from.
        objective: What is better.
        settings: How much is spent.
        runs: Folder for the profiled runs, each a run folder of its own.
        ledger: Where predictions are written before they are measured; None: nowhere.
        say: Told about the progress, one line at a time.
        diagnosis: What predicts; None: headrace's simulator.

    Raises:
        HeadraceError: If the base cannot run, or its run cannot be replayed.
        Interrupted: If it was interrupted before anything was known.
    """
    settings = settings or TuneSettings()
    bench = TuningRuns(pipeline, plan, source, runs, deliver=settings.effort.deliver, say=say)
    with quiet():
        return _Tuning(bench, objective or Objective(), settings, ledger, diagnosis or Simulator()).run()


def fit_effort(effort: Effort, objective: Objective) -> Effort:
    """Return the effort for an objective.

    The slower of two Plans may be the one that keeps a latency goal; and a goal takes so many jobs to tell.
    """
    by_speed = objective.name == "throughput" and objective.slo is None
    fewest = 0 if objective.slo is None else 1 + math.ceil(samples_needed(objective.slo.percentile) / effort.rounds)
    return replace(effort, halves=effort.halves and by_speed, fewest_jobs=max(effort.fewest_jobs, fewest))


class _Tuning:
    def __init__(
        self,
        bench: TuningRuns,
        objective: Objective,
        settings: TuneSettings,
        ledger: Ledger | None,
        diagnosis: Diagnosis,
    ) -> None:
        self._bench = bench
        self._objective = objective
        self._settings = settings
        self._ledger = ledger
        self._diagnosis = diagnosis
        self._began = time.monotonic()
        self._candidates: list[MeasuredPlan] = []
        self._views: list[Predictions] = []
        self._warnings: list[str] = []
        self._out_of_time = ""
        self._has_looked_again = False
        effort = fit_effort(settings.effort, objective)
        base = Contender(name="base", pipeline=bench.pipeline, plan=bench.resolve())
        rate = objective.rate if objective.is_open else None
        items = bench.items if rate is None else PacedItems(bench.items, rate, settings.seed)
        self._rounds = Rounds(base, items, effort, bench.say, self._may_go_on)

    def run(self) -> Tuned:
        rate = self._bench.pilot()
        view = self._look((), rate, self._bench.sweep(self._settings.largest_batch))
        view.entrant = self._rounds.base
        self._measure_first([view, *self._look_elsewhere(view, rate)])
        try:
            self._go_on(view)
        except KeyboardInterrupt:  # while predicting; what was measured is kept
            self._rounds.interrupted = True
        return self._conclude()

    def _measure_first(self, views: list[Predictions]) -> None:
        """Measure the most promising; of several places the best of each, as far as it may be the best of all."""
        at_once = 1 if self._settings.enough else max(1, self._settings.plans - 1)
        if len(views) == 1:
            self._measure(views[0], choose(views[0].found, at_once))
            return
        for view in sorted(filter(self._is_worth_it, views), key=lambda one: -one.promise)[:at_once]:
            if self._candidates and not self._may_look_again():
                return
            best = max(self._candidates, key=lambda one: one.mid, default=None)
            if best is None or self._promises(view, view.found[0], best):
                self._measure(view, view.found[:1])

    def _is_worth_it(self, view: Predictions) -> bool:
        """Return whether the best of a place is another Plan than the user's, and as far as only that counts a faster one."""
        is_other = bool(view.found) and bool(view.settings(view.found[0].point))
        return is_other and (self._objective.name != "throughput" or view.promise > 1 + _SAME)

    def _go_on(self, first: Predictions) -> None:
        while self._num_left() > 0 and self._candidates and self._may_look_again():
            before = len(self._candidates)
            self._look_again(first)
            if len(self._candidates) == before:
                return

    def _may_go_on(self) -> bool:
        return self._has_time_for(self._rounds.last_seconds)

    def _has_time_for(self, seconds: float) -> bool:
        budget = self._settings.budget_seconds
        return budget is None or time.monotonic() - self._began + seconds < budget

    def _may_look_again(self) -> bool:
        if self._rounds.interrupted or any(self._is_enough(one) for one in self._candidates):
            return False
        return self._has_time_for(self._rounds.last_seconds * self._settings.effort.rounds)

    def _is_enough(self, candidate: MeasuredPlan) -> bool:
        """Return whether a Plan is surely better, and surely does the jobs that are enough."""
        decision, base, enough = candidate.decision, self._rounds.base.throughput, self._settings.enough
        if enough is None or base is None or decision is None or decision.ratio is None:
            return False
        return decision.verdict == "better" and decision.ratio.low * base >= enough

    def _num_left(self) -> int:
        return self._settings.plans - len(self._candidates)

    # --- predicting --------------------------------------------------------------------------------------------------

    def _look_elsewhere(self, first: Predictions, rate: float) -> list[Predictions]:
        """Return what is predicted from profiles of the other places where a stage could compute, one for each."""
        found = []
        settings = self._settings
        for key, (_, *others) in self._bench.elsewhere().items():
            if settings.keep & {key, short(key), PLACES}:
                continue
            for place in others:
                moved = f'{key}="{place}"'
                if not self._has_time_for(2 * (settings.profile_seconds + settings.find_search_seconds())):
                    self._warnings.append(f"{short(moved)}: not tried, for want of time")
                    continue
                try:
                    view = self._look((moved,), rate, self._bench.sweep(settings.largest_batch, (moved,)))
                except Interrupted:
                    raise
                except HeadraceError as error:
                    self._warnings.append(f"{short(moved)}: not tried: {error}")
                    continue
                view.over_base = view.replay.throughput / first.replay.throughput
                found.append(view)
        return found

    def _look(self, base_settings: tuple[str, ...], rate: float, costs: Mapping[str, BatchCosts]) -> Predictions:
        run = self._bench.profile(base_settings, rate, self._settings.profile_seconds)
        view = look(
            self._bench,
            self._diagnosis,
            run,
            base_settings,
            objective=self._objective,
            costs=costs,
            search_seconds=self._settings.find_search_seconds(),
            seed=self._settings.seed,
            keep=self._settings.keep,
        )
        self._views.append(view)
        self._bench.say(f"{pluralize(view.predictor.num_predicted, 'Plan')} predicted")
        return view

    def _look_again(self, first: Predictions) -> None:
        """Measure one more: the next of the first search, or of one that begins at the best so far."""
        done = [self._bench.resolve(one.settings) for one in self._candidates]
        best = max(self._candidates, key=lambda one: one.mid)
        view = self._views[-1] if self._has_looked_again else best.view
        is_far_off = not self._objective.is_open and _is_far_off(self._candidates)
        if not self._has_looked_again and is_far_off and best.entrant is not None and best.mid > 0:
            self._bench.say(
                "predicted and measured differ by more than 10 %; the best so far is profiled, to look from there"
            )
            try:
                view = self._look(best.settings, best.entrant.throughput or first.replay.throughput, best.view.costs)
            except Interrupted:
                self._rounds.interrupted = True
                return
            except HeadraceError as error:
                self._warnings.append(f"no second look: {error}")
                view = best.view
            else:
                self._has_looked_again = True
                view.entrant, view.over_base = best.entrant, best.mid
        fresh = [one for one in view.found if self._bench.resolve(view.settings(one.point)) not in done]
        chosen = choose(fresh, 1)
        if chosen and self._promises(view, chosen[0], best):
            self._measure(view, chosen)

    def _promises(self, view: Predictions, found: FoundPoint, best: MeasuredPlan) -> bool:
        """Return whether it may be better than the best so far, or as good and smaller; else measuring it is of no use."""
        if best.decision is None or best.decision.verdict != "better" or self._objective.name != "throughput":
            return True
        ratio = found.outlook.ratio * view.over_base / best.mid
        return ratio > 1 + _SAME or (ratio > 1 - _SAME and found.outlook.size < best.found.outlook.size)

    def _predict(self, view: Predictions, found: FoundPoint) -> PredictionDocument | None:
        """Return the prediction with its interval, written to the ledger; None where jobs come at a rate: all have it then."""
        if self._objective.is_open:
            return None
        record = TrackRecord(num=0) if self._ledger is None else self._ledger.track_record()
        try:
            document = self._diagnosis.predict(view.replay, view.predictor.change(found.point), record)
        except (HeadraceError, ValueError) as error:
            self._warnings.append(f"no interval for {view.words(found.point)}: {error}")
            return None
        if self._ledger is None or document.throughput.ratio is None or view.entrant is None:
            return document  # of a place whose own Plan is not measured nothing will come to hold it against
        return msgspec.structs.replace(document, id=self._ledger.write_prediction(document, hardware=find_hardware()))

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _measure(self, view: Predictions, chosen: Sequence[FoundPoint]) -> None:
        """Predict these with an interval, write that down, and measure them."""
        others = self._fit(view, [one for one in chosen if view.settings(one.point)])
        new: list[MeasuredPlan] = []
        for found in others:
            name = self._name(len(new))
            self._bench.say(f"{name}: x{view.over_base * found.outlook.ratio:.3g} predicted, {view.words(found.point)}")
            new.append(MeasuredPlan(name, view, found, view.settings(found.point), self._predict(view, found)))
        if not new:
            return
        contenders, rates = self._contend(view, others)
        entrants = self._rounds.measure(contenders, rates, self._is_sure, beside=self._list_rivals(view))
        self._bench.num_runs += len(entrants)
        for candidate, entrant in zip(new, entrants, strict=True):
            candidate.entrant = entrant
            candidate.decision = self._decide(entrant)
            self._candidates.append(candidate)
            self._write_measurement(candidate)
            if self._is_enough(candidate):
                self._bench.say(f"{candidate.name} surely does the {self._settings.enough:g}/s that are enough")

    def _name(self, index: int) -> str:
        return f"plan {len(self._candidates) + index + 1}"

    def _contend(self, view: Predictions, chosen: Sequence[FoundPoint]) -> tuple[list[Contender], list[float]]:
        """Return who is measured, and the rates that are expected, the base's first."""
        plans = [self._bench.resolve(view.settings(one.point)) for one in chosen]
        contenders = [
            Contender(name=self._name(index), pipeline=self._bench.pipeline, plan=plan)
            for index, plan in enumerate(plans)
        ]
        base, throughput = self._views[0].replay.throughput, view.replay.throughput
        return contenders, [base, *(throughput * one.outlook.ratio for one in chosen)]

    def _fit(self, view: Predictions, chosen: Sequence[FoundPoint]) -> Sequence[FoundPoint]:
        """Return those that can be measured within the budget: fewer, in shorter blocks, or none; what is less is said."""
        budget = self._settings.budget_seconds
        if budget is None or not chosen:
            return chosen
        left, needed = _MEASURING_SHARE * (budget - (time.monotonic() - self._began)), 0.0
        for is_shorter in (False, True):
            if is_shorter:
                self._rounds.halve_blocks()
            for num in range(len(chosen), 0, -1):
                needed = self._rounds.expect_seconds(*self._contend(view, chosen[:num]), self._bench.opening_seconds)
                if needed <= left:
                    self._say_less(len(chosen), num, is_shorter, left)
                    return chosen[:num]
        self._out_of_time = (
            "the budget does not suffice to prove a Plan: to measure the best in turn with the present one takes about "
            f"{format_duration(needed)} in blocks of half the length, and {format_duration(max(0.0, left))} are left"
        )
        self._bench.say(self._out_of_time)
        return ()

    def _say_less(self, of: int, num: int, is_shorter: bool, left: float) -> None:
        less = [f"{num} of {pluralize(of, 'Plan')} measured"] if num < of else []
        less += ["blocks of half the length"] if is_shorter else []
        if less:
            self._bench.say(f"{format_duration(left)} of the budget are left: {' and '.join(less)}")

    def _list_rivals(self, view: Predictions) -> list[Entrant]:
        """Return who runs beside the new ones: the best so far, and the Plan that they were predicted from."""
        found = [max(self._candidates, key=lambda one: one.gain).entrant] if self._candidates else []
        found += [view.entrant] if view.entrant not in (self._rounds.base, *found) else []
        return [entrant for entrant in found if entrant is not None]

    def _is_sure(self, entrant: Entrant) -> bool:
        return self._decide(entrant).is_sure

    def _decide(self, entrant: Entrant) -> PlanDecision:
        accounts = {account.name: account for account in self._views[0].document.stages}
        before = size(self._bench.resolve(), accounts)
        return decide(self._rounds, entrant, self._objective, size(entrant.contender.plan, accounts) / before)

    def _write_measurement(self, candidate: MeasuredPlan) -> None:
        """Write down what came of a prediction, against the Plan that it was made from."""
        prediction, entrant, base = candidate.prediction, candidate.entrant, candidate.view.entrant
        if self._ledger is None or prediction is None or not prediction.id or entrant is None or base is None:
            return
        found = self._rounds.judged(entrant, Question(), base)
        if found is not None and found.interval is not None:
            pairs = pluralize(len(entrant.ratios(base)), "pair")
            try:
                self._ledger.write_measurement(
                    prediction.id, found.interval, f"headrace tune, {pairs} of blocks in turn"
                )
            except LedgerError as error:  # a Plan that was proved is not lost over it
                self._warnings.append(f"not in the ledger: {error}")

    def _record(self) -> TrackRecord:
        try:
            return TrackRecord(num=0) if self._ledger is None else self._ledger.track_record()
        except LedgerError:
            return TrackRecord(num=0)

    # --- concluding --------------------------------------------------------------------------------------------------

    def _conclude(self) -> Tuned:
        for candidate in self._candidates:
            if candidate.entrant is not None:
                candidate.decision = self._decide(candidate.entrant)  # again: more Plans were tried since
        best = self._best()
        outcome = TuningOutcome(
            bench=self._bench,
            objective=self._objective,
            views=self._views,
            rounds=self._rounds,
            candidates=self._candidates,
            best=best,
            record=self._record(),
            warnings=tuple(self._warnings),
            out_of_time="" if self._candidates else self._out_of_time,
        )
        document = make_tuning_document(outcome)
        if best is None:
            return Tuned(document=document, plan=None)
        plan = self._bench.written.with_settings(best.settings)
        base = {
            **self._views[0].predictor.space.base,
            **{key: now for key, (now, *_) in self._bench.elsewhere().items()},
        }
        predictor = best.view.predictor
        reasons = find_reasons(predictor, predictor.space.canonical(best.found.point), best.settings, base)
        return Tuned(document=document, plan=plan, reasons=reasons)

    def _best(self) -> MeasuredPlan | None:
        """Return the best of those that are better than the base; of two that are as good, the smaller."""
        better = [one for one in self._candidates if one.decision is not None and one.decision.verdict == "better"]
        champion: MeasuredPlan | None = None
        for one in better:
            if champion is None or self._beats(one, champion):
                champion = one
        return champion

    def _beats(self, one: MeasuredPlan, champion: MeasuredPlan) -> bool:
        lead = one.gain / champion.gain
        if one.entrant is not None and champion.entrant is not None and self._objective.name == "throughput":
            # Head to head, where both ran in the same rounds: the base's noise is in neither.
            direct = self._rounds.judged(one.entrant, Question(), champion.entrant)
            if direct is not None and len(one.entrant.ratios(champion.entrant)) >= _FEWEST_DIRECT:
                lead = direct.mid
        smaller = one.found.outlook.size < champion.found.outlook.size
        return lead > 1 + _SAME or (smaller and lead > 1 - _SAME)


def _is_far_off(candidates: Sequence[MeasuredPlan]) -> bool:
    """Return whether prediction and measurement of the best differ by more than 10 %."""
    best = max(candidates, key=lambda one: one.mid)
    return best.mid > 0 and abs(best.view.over_base * best.found.outlook.ratio / best.mid - 1) > FAR_OFF

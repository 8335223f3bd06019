"""All of one tuning as the document `headrace.tuning/1`, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration
from headrace.runs.formats.prediction import PredictionDocument, TrackRecord
from headrace.runs.formats.profile import EMULATED, Estimate
from headrace.runs.formats.tuning import SweepPoint, Trial, TuningDocument
from headrace.runs.run_folder import headrace_version
from headrace.tune.decision import PlanDecision, misses_goal
from headrace.tune.objective import Objective
from headrace.tune.predictions import Predictions, format_value, short
from headrace.tune.rounds import Entrant, Rounds
from headrace.tune.search import FoundPoint
from headrace.tune.sweep import sweep_points
from headrace.tune.tuning_runs import TuningRuns

#: Points of the search that are listed although they were not measured.
_LISTED = 5
#: A ratio that is predicted or measured below this is no gain.
_NO_GAIN = 1.02


@dataclass(slots=True)
class MeasuredPlan:
    """A Plan that was worth measuring."""

    name: str
    view: Predictions
    """Of which run it was predicted."""
    found: FoundPoint
    settings: tuple[str, ...]
    """What makes it of the user's Plan."""
    prediction: PredictionDocument | None
    entrant: Entrant | None = None
    decision: PlanDecision | None = None

    @property
    def mid(self) -> float:
        """Measured throughput over that of the user's Plan; 0 if it was not measured."""
        return 0.0 if self.decision is None or self.decision.mid is None else self.decision.mid

    @property
    def gain(self) -> float:
        """How much better it is for what the user wants; 1 for the same."""
        return 1.0 if self.decision is None else self.decision.gain


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningOutcome:
    """What is known at the end."""

    bench: TuningRuns
    objective: Objective
    views: Sequence[Predictions]
    rounds: Rounds
    candidates: Sequence[MeasuredPlan]
    best: MeasuredPlan | None
    record: TrackRecord
    warnings: tuple[str, ...]
    out_of_time: str = ""
    """Why no Plan was measured, though some are predicted to gain; empty: it was not for want of time."""


def make_tuning_document(outcome: TuningOutcome) -> TuningDocument:
    """Return what tuning tried and found."""
    bench, rounds = outcome.bench, outcome.rounds
    trials = {id(one): _trial(outcome, one) for one in outcome.candidates}
    ordered = sorted(outcome.candidates, key=lambda one: (one is not outcome.best, -one.gain))
    verdict = _verdict(outcome)
    return TuningDocument(
        pipeline=bench.pipeline.name,
        headrace_version=headrace_version(),
        objective=outcome.objective.name,
        goals=_goals(outcome.objective),
        base_plan=bench.resolve().as_table(),
        base_throughput=rounds.base.throughput or outcome.views[0].replay.throughput,
        num_predicted=sum(view.predictor.num_predicted for view in outcome.views),
        num_measured=len(outcome.candidates),
        trials=(*(trials[id(one)] for one in ordered), *_list_not_measured(outcome)),
        best=None if outcome.best is None else trials[id(outcome.best)],
        sweep=_sweep(outcome),
        says=tuple(_says(outcome, verdict)),
        verdict=verdict,
        num_runs=bench.num_runs,
        measured_seconds=bench.seconds + rounds.seconds,
        interrupted=rounds.interrupted,
        record=outcome.record,
        warnings=(*outcome.warnings, *_warnings(outcome)),
        is_emulated=_is_emulated(outcome),
        is_out_of_time=bool(outcome.out_of_time),
    )


def _is_emulated(outcome: TuningOutcome) -> bool:
    """Return whether a device was emulated, at the present place or at another one that was measured."""
    bench = outcome.bench
    return bench.is_emulated or any(bench.emulates_device(one.settings) for one in outcome.candidates)


def _verdict(outcome: TuningOutcome) -> str:
    if outcome.best is not None:
        return "better"
    decisions = [one.decision for one in outcome.candidates if one.decision is not None]
    if misses_goal(outcome.rounds.base, outcome.objective) and all(
        one.verdict == "breaks the goal" for one in decisions
    ):
        return "goal missed"
    if (
        outcome.out_of_time
        or outcome.rounds.interrupted
        or any(one.verdict == "underpowered" and one.gain >= 1.0 for one in decisions)
    ):
        return "inconclusive"
    return "already at the best"


def _trial(outcome: TuningOutcome, one: MeasuredPlan) -> Trial:
    entrant, decision = one.entrant, one.decision
    words = {
        "better": "best" if one is outcome.best else "better",
        "no_difference": "worse",
        "underpowered": "not sure",
    }
    return Trial(
        name=_words(outcome, one),
        settings=one.settings,
        plan=outcome.bench.resolve(one.settings).as_table(),
        predicted=None
        if one.prediction is None
        else _convert_to_base(one, outcome.rounds.base, one.prediction.throughput.ratio),
        measured=None if decision is None else decision.ratio,
        latency_p50=None if entrant is None else entrant.latency(50),
        latency_p99=None if entrant is None else entrant.latency(99),
        outcome="not measured" if decision is None else words.get(decision.verdict, decision.verdict),
        why="" if decision is None else decision.why,
        prediction_id="" if one.prediction is None else one.prediction.id,
    )


def _convert_to_base(one: MeasuredPlan, first: Entrant, ratio: Estimate | None) -> Estimate | None:
    """Return a ratio to the user's Plan: a second look predicts from another, whose own ratio was measured."""
    if ratio is None or not one.view.base_settings:
        return ratio
    factor = _factor(one, first)
    return None if factor is None else Estimate(ratio.low * factor, ratio.mid * factor, ratio.high * factor)


def _factor(one: MeasuredPlan, first: Entrant) -> float | None:
    """Return the measured throughput of the Plan that was predicted from, over the user's."""
    base = one.view.entrant
    if base is None:
        return one.view.over_base
    if not base.throughput or not first.throughput:
        return None
    return base.throughput / first.throughput


def _words(outcome: TuningOutcome, one: MeasuredPlan) -> str:
    """Return what a Plan changes of the user's, in words."""
    places = {key: now for key, (now, *_) in outcome.bench.elsewhere().items()}
    base = {**places, **outcome.views[0].predictor.space.base}
    changes = (setting.partition("=") for setting in one.settings)
    written = ((key, value.strip('"')) for key, _, value in changes)
    # A second look starts from another Plan, and may have taken a change back.
    return ", ".join(
        f"{short(key)} {format_value(base[key])} -> {value}" if key in base else f"{short(key)} {value}"
        for key, value in written
        if key not in base or format_value(base[key]) != value
    )


def _list_not_measured(outcome: TuningOutcome) -> list[Trial]:
    """Return the next best of the first search, for people to see what else was thought of."""
    view = outcome.views[0]
    measured = {one.settings for one in outcome.candidates}
    rest = [
        one
        for one in view.found
        if view.predictor.space.list_changed(one.point) and view.settings(one.point) not in measured
    ]
    return [
        Trial(
            name=view.words(one.point),
            settings=view.settings(one.point),
            plan=outcome.bench.resolve(view.settings(one.point)).as_table(),
            predicted=None,
            measured=None,
            outcome="not measured" if view.objective.fits(one.outlook) else "does not fit",
            why=f"x{one.outlook.ratio:.3g} by simulation, without an interval",
        )
        for one in rest[:_LISTED]
    ]


def _sweep(outcome: TuningOutcome) -> tuple[SweepPoint, ...]:
    """Return the points of the stage that takes batches; of several, of the one that is busiest."""
    view = outcome.views[0]
    if outcome.best is not None:  # the first that was looked at where the best one computes
        view = next(one for one in outcome.views if one.costs is outcome.best.view.costs)
    busy = {account.name: account.utilization or 0.0 for account in view.document.stages}
    stage = max(view.costs, key=lambda name: busy.get(name, 0.0), default=None)
    if stage is None:
        return ()
    key = f"stages.{stage}.batch"
    best = view.found[0].point if view.found else view.predictor.space.base
    predicted = {}
    for size in view.costs[stage].seconds if key in view.predictor.space.base else ():
        outlook = view.predictor.predict({**best, key: size})
        if outlook is not None:
            predicted[size] = (view.replay.throughput * outlook.ratio, outlook.latency_p50)
    return sweep_points(view.costs[stage], predicted)


def _goals(objective: Objective) -> tuple[str, ...]:
    goals = [] if objective.slo is None else [str(objective.slo)]
    if objective.rate is not None:
        goals.append(f"at {objective.rate:g}/s" if objective.is_open else f">= {objective.rate:g}/s")
    return tuple(goals)


def _says(outcome: TuningOutcome, verdict: str) -> list[str]:
    lines = [_headline(outcome, verdict)]
    if outcome.best is not None:
        lines.append(_explain_prediction(outcome.best, outcome))
    predicted = sum(view.predictor.num_predicted for view in outcome.views)
    rounds = max((len(one.entrant.blocks) for one in outcome.candidates if one.entrant is not None), default=0)
    lines.append(
        f"{pluralize(predicted, 'Plan')} predicted, {pluralize(len(outcome.candidates), 'Plan')} measured against the base in "
        f"{pluralize(rounds, 'round')} of blocks in turn."
    )
    if outcome.objective.is_open:
        lines.append(
            f"Jobs came at {outcome.objective.rate:g}/s at random times (Poisson), and latency counts from when each was due, "
            "whether the pipeline kept up or not."
        )
    elif outcome.objective.needs_latency:
        lines.append(
            "Latency here is that of a pipeline kept full by a source that always has more: most of it is waiting, and "
            "source.max_in_flight bounds it. Where jobs come one by one, waiting is less: --rate has them come so."
        )
    if _is_emulated(outcome):
        lines.append(EMULATED)
    if outcome.rounds.interrupted:
        lines.append("It was interrupted: this is from what was measured until then.")
    return lines


def _headline(outcome: TuningOutcome, verdict: str) -> str:
    best = outcome.best
    if best is not None and best.decision is not None:
        return f"A better Plan: {_words(outcome, best)}: {best.decision.why}."
    if verdict == "goal missed":
        latency = outcome.rounds.base.latency(outcome.objective.slo.percentile) if outcome.objective.slo else None
        now = "" if latency is None else f"; the base has {format_duration(latency)}"
        return f"No Plan that was measured meets {', '.join(_goals(outcome.objective))}{now}."
    if outcome.out_of_time:
        return f"{outcome.out_of_time[:1].upper()}{outcome.out_of_time[1:]}."
    if verdict == "inconclusive":
        return "It cannot be told yet whether a better Plan was found: more rounds, or a quieter machine, would tell."
    predicted = max((view.promise for view in outcome.views if view.found), default=1.0)
    if not outcome.candidates or predicted < _NO_GAIN:
        return f"The Plan is already at the best that is known: no other is predicted to gain {_NO_GAIN - 1:.0%}."
    return "The Plan is already at the best that is known: what was predicted to be better is not, by measurement."


def _explain_prediction(best: MeasuredPlan, outcome: TuningOutcome) -> str:
    objective, first = outcome.objective, outcome.rounds.base
    if objective.is_open:
        outlook, percent = best.found.outlook, 50.0 if objective.slo is None else objective.slo.percentile
        predicted = outlook.latency_p50 if objective.slo is None else outlook.latency_goal
        found = predicted, None if best.entrant is None else best.entrant.latency(percent)
        told = ["not known" if one is None else format_duration(one) for one in found]
        return f"p{percent:g} at {objective.rate:g}/s predicted {told[0]}; measured {told[1]}."
    ratio = None if best.prediction is None else _convert_to_base(best, first, best.prediction.throughput.ratio)
    if ratio is None:
        return "Its throughput was not predicted with an interval."
    decision = best.decision
    measured = "" if decision is None or decision.mid is None else f"; measured x{decision.mid:.3g}"
    return f"Throughput predicted x{ratio:.3g}{measured}."


def _warnings(outcome: TuningOutcome) -> list[str]:
    lines: list[str] = []
    for view in outcome.views:
        lines += view.predictor.space.left_out
        lines += [f"not predicted: {setting}: {why}" for why, setting in view.predictor.refused.items()]
        lines += [f"{view.document.run}: {reason}" for reason in view.document.distrust]
    for costs in (costs for view in outcome.views for costs in view.costs.values()):
        if costs.out_of_memory_at is not None:
            lines.append(
                f"{costs.stage}: there was no memory for a batch of {costs.out_of_memory_at}; only smaller ones were tried"
            )
    if outcome.best is not None and any(setting.startswith("decode.scale=") for setting in outcome.best.settings):
        lines.append(
            "decoding at scale changes the pixels a little: check the results on labelled items before using it"
        )
    changed = {setting.partition("=")[0] for setting in outcome.best.settings} if outcome.best is not None else set()
    lines += [
        f"{short(key)}: results of another place may differ a little: check them on labelled items before using it"
        for key in outcome.bench.elsewhere()
        if key in changed
    ]
    return list(dict.fromkeys(lines))

"""Tuning as a whole, with predictions by formula: what is measured, what is written down, and what it comes to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuning_fakes import FormulaReplay, Numbers

import headrace as hr
from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.goals import LatencyGoal
from headrace.base.plan import Plan
from headrace.diagnose import profile_document
from headrace.ledger.ledger import Ledger
from headrace.pipeline.definition import Pipeline
from headrace.runs.formats.prediction import Change, PredictedMetric, PredictionDocument, TrackRecord
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import Run
from headrace.stages.stage import Stage, StageContext
from headrace.tune.objective import Objective
from headrace.tune.rounds import Effort
from headrace.tune.tuning import Tuned, TuneSettings, fit_effort, tune

ONE_WORKER = Plan().with_settings(["work.workers=1"])
QUICK = TuneSettings(
    plans=1, profile_seconds=0.2, search_seconds=5.0, effort=Effort(rounds=7, most_rounds=7, block_seconds=0.05)
)


def sleeping() -> Pipeline:
    """Return a pipeline of one stage that sleeps for two milliseconds."""
    return hr.Pipeline(Numbers(), stages=[hr.emulated("work", seconds=0.002)], name="sleeping")


def by_workers(plan: Plan) -> float:
    """What a pipeline that sleeps does."""
    return 500.0 * min(8, plan.stages["work"].workers or 1)


class Formula:
    """A diagnosis that predicts by formula, and notes what it was asked.

    Args:
        formula: Jobs per second under a Plan.
        pipeline: Whose Plans.
    """

    def __init__(self, formula: Callable[[Plan], float], pipeline: Pipeline) -> None:
        self._formula = formula
        self._pipeline = pipeline
        self.predicted: list[Change] = []

    def replay(self, run: Run) -> Any:
        """Return the run as the formula has it."""
        plan = Plan.from_table(next(iter(run.info.plans.values())))
        replay: Any = FormulaReplay(plan, self._formula, [stage.defaults() for stage in self._pipeline.stages])
        replay.document = profile_document(run)
        return replay

    def predict(self, replay: Any, change: Change, record: TrackRecord) -> PredictionDocument:
        """Return a prediction a tenth to each side."""
        self.predicted.append(change)
        ratio = replay.simulate(change).throughput / replay.throughput
        estimate = Estimate(0.9 * ratio, ratio, 1.1 * ratio)
        nothing = PredictedMetric(base=None, predicted=None, ratio=None)
        return PredictionDocument(
            created_unix_seconds=0.0, headrace_version="0", run="run", pipeline="sleeping", plan_id="p", change=change,
            says="more workers", plan={}, throughput=PredictedMetric(base=500.0, predicted=estimate, ratio=estimate),
            latency_p50=nothing, latency_p99=nothing, cpu_per_item=nothing, bound_ratio=None, naive_ratio=None,
            limit_after="", simulated_base=None,
        )  # fmt: skip


def tuned(
    tmp_path: Path, formula: Callable[[Plan], float] = by_workers, plan: Plan = ONE_WORKER, **given: Any
) -> Tuned:
    """Tune the sleeping pipeline."""
    pipeline = sleeping()
    given.setdefault("settings", QUICK)
    return tune(pipeline, plan, Numbers(), runs=tmp_path, diagnosis=Formula(formula, pipeline), **given)


@pytest.mark.measures
def test_a_better_plan_is_found_proved_and_explained(tmp_path: Path) -> None:
    """Eight workers for one: better by measurement, no more than the eight that gain, with the reason.

    Where others take the cores it may be that this cannot be told: then nothing is recommended.
    """
    found = tuned(tmp_path)
    document = found.document
    assert document.num_measured == 1
    assert document.num_runs == 2  # the profile, and the Plan
    if document.verdict == "inconclusive":
        assert found.plan is None
        return
    assert document.verdict == "better"
    assert found.plan is not None
    assert found.plan.stages["work"].workers == 8
    assert document.best is not None
    assert document.best.measured is not None
    assert document.best.measured.low > 1
    assert [reason.key for reason in found.reasons] == ["stages.work.workers"]


@pytest.mark.measures
def test_a_plan_that_is_enough_ends_the_search(tmp_path: Path) -> None:
    """Of three Plans that might be measured only the first is, unless it is not sure that it does 600/s."""
    settings = replace(QUICK, plans=3, enough=600.0)
    document = tuned(tmp_path, settings=settings).document
    first = document.trials[0].measured
    is_sure = first is not None and first.low * 400 > 600  # a stage of 2 ms and one worker does 500/s at best
    assert document.num_measured == 1 or not is_sure


@pytest.mark.parametrize(("budget", "seconds"), [(None, 5.0), (1000.0, 5.0), (20.0, 2.0)])
def test_a_search_with_little_time_predicts_less(budget: float | None, seconds: float) -> None:
    """A tenth of the budget, so that something is left for measuring."""
    assert replace(QUICK, budget_seconds=budget).find_search_seconds() == seconds


def test_what_cannot_be_proved_in_time_is_not_begun(tmp_path: Path) -> None:
    """A profile of 0.2 s, and 2 s are given: fifty rounds of a second each are not begun, and nothing is called the best."""
    effort = Effort(rounds=50, most_rounds=50, block_seconds=1.0)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        document = tuned(
            tmp_path, settings=replace(QUICK, budget_seconds=2.0, search_seconds=0.5, effort=effort), ledger=ledger
        ).document
        assert not ledger.predictions()
    assert (document.num_measured, document.verdict, document.is_out_of_time) == (0, "inconclusive", True)
    assert document.says[0].startswith("The budget does not suffice to prove a Plan")


@pytest.mark.measures
@pytest.mark.slow
def test_predictions_are_in_the_ledger_before_and_after(tmp_path: Path) -> None:
    """What was predicted stands there with what was measured, and the document shows the record."""
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        document = tuned(tmp_path, ledger=ledger).document
        (entry,) = ledger.predictions()
    assert entry.measured is not None
    assert document.record.num == 1
    assert document.trials[0].prediction_id == entry.id


@pytest.mark.measures
def test_nothing_is_written_that_is_not_better(tmp_path: Path) -> None:
    """A formula that promises what measuring does not hold: no Plan comes of it, whatever was predicted."""
    found = tuned(tmp_path, lambda plan: 1000.0 if plan.stages["work"].workers == 2 else 500.0, _eight())
    assert found.plan is None
    assert found.document.best is None
    assert found.document.num_measured == 1
    assert found.document.trials[0].outcome != "best"


def _eight() -> Plan:
    return Plan().with_settings(["work.workers=8"])


class Movable(Stage):
    """Sleeps for two milliseconds here, or for half of one there."""

    executor = "thread"
    computes = False

    def elsewhere(self, plan: Plan) -> dict[str, tuple[str, ...]]:
        """Return the other place, and one that does not work."""
        now = plan.stages[self.name].options.get("where", "here")
        return {f"stages.{self.name}.options.where": (now, *({"here", "there"} - {now}), "nowhere")}

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return the sleep."""
        seconds = {"here": 0.002, "there": 0.0005}.get(context.options.get("where", "here"))
        if seconds is None:
            raise SettingsError("there is no such place")

        def rest(value: Any) -> Any:
            time.sleep(seconds)
            return value

        return rest


class Profiled(Formula):
    """Notes the places where the profiled runs computed."""

    def __init__(self, formula: Callable[[Plan], float], pipeline: Pipeline) -> None:
        super().__init__(formula, pipeline)
        self.places: list[str] = []

    def replay(self, run: Run) -> Any:
        """Return the run as the formula has it."""
        found = super().replay(run)
        self.places.append(place_of(found.plan))
        return found


def place_of(plan: Plan) -> str:
    """Return where the stage that can be moved computes."""
    where: str = plan.stages["work"].options.get("where", "here")
    return where


def moved(tmp_path: Path, plan: Plan = ONE_WORKER, **given: Any) -> tuple[Tuned, list[str]]:
    """Tune one stage that can be moved, of which nothing else gains; return also where it was profiled."""
    pipeline = hr.Pipeline(Numbers(), stages=[Movable("work")], name="movable")
    diagnosis = Profiled(lambda plan: {"here": 500.0, "there": 2000.0}[place_of(plan)], pipeline)
    given.setdefault("settings", QUICK)
    return tune(pipeline, plan, Numbers(), runs=tmp_path, diagnosis=diagnosis, **given), diagnosis.places


@pytest.mark.measures
def test_what_can_be_moved_is_profiled_at_the_other_place_and_measured(tmp_path: Path) -> None:
    """Four times as fast there: that Plan is written, the prediction is of the user's own, and a place that fails is named."""
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        found, places = moved(tmp_path, ledger=ledger)
        assert not ledger.predictions()  # nothing was changed of the run there
    document = found.document
    assert places == ["here", "there"]
    assert any("work.options.where=" in line and "there is no such place" in line for line in document.warnings)
    (trial, *_) = document.trials
    assert trial.settings == ('stages.work.options.where="there"',)
    assert trial.name == "work.options.where here -> there"
    assert trial.predicted is not None
    assert trial.predicted.mid == pytest.approx(4.0)
    if document.verdict == "inconclusive":  # others take the cores
        return
    assert found.plan is not None
    assert place_of(found.plan) == "there"
    assert any("may differ" in line for line in document.warnings)
    assert [(one.key, one.before, one.after) for one in found.reasons] == [
        ("stages.work.options.where", "here", "there")
    ]


def test_what_is_at_the_better_place_stays(tmp_path: Path) -> None:
    """The other place was profiled, promises less, and is not measured."""
    found, places = moved(tmp_path, ONE_WORKER.with_settings(["work.options.where=there"]))
    assert places == ["there", "here"]
    assert (found.document.num_measured, found.document.verdict) == (0, "already at the best")


@pytest.mark.parametrize("keep", ["work.options.where", "stages.work.options.where", "places"])
def test_what_is_to_stay_where_it_is_is_not_profiled_elsewhere(tmp_path: Path, keep: str) -> None:
    """As `--keep` says."""
    _, places = moved(tmp_path, settings=replace(QUICK, keep=frozenset({keep})))
    assert places == ["here"]


def test_where_nothing_is_promised_the_plan_is_at_the_best(tmp_path: Path) -> None:
    """No Plan is measured when none is predicted to be better."""
    document = tuned(tmp_path, lambda plan: 500.0).document
    assert document.verdict == "already at the best"
    assert document.num_measured == 0


@pytest.mark.slow
def test_a_goal_that_nobody_meets_is_said(tmp_path: Path) -> None:
    """A median of a microsecond cannot be had from a stage of two milliseconds."""
    objective = Objective(slo=LatencyGoal(50.0, 1e-6))
    document = tuned(tmp_path, objective=objective).document
    assert document.verdict == "goal missed"
    assert document.goals == ("p50 <= 1.00 us",)


@pytest.mark.measures
@pytest.mark.slow
def test_latency_falls_with_the_jobs_in_flight(tmp_path: Path) -> None:
    """Eight workers need eight jobs in flight, not what all queues hold: less latency at the same rate."""

    def closed(plan: Plan) -> float:
        return 500.0 * min(8, plan.source.max_in_flight or 8)

    found = tuned(tmp_path, closed, _eight(), objective=Objective(name="latency"))
    assert found.plan is None or found.plan.source.max_in_flight in (8, 16)
    assert any(setting.startswith("source.max_in_flight=") for setting in found.document.trials[0].settings)
    assert any("pipeline kept full" in line for line in found.document.says)


@pytest.mark.measures
@pytest.mark.slow
def test_a_goal_at_the_rate_of_arrivals(tmp_path: Path) -> None:
    """One worker of 2 ms falls behind 700/s: two, or a few more, keep the median; jobs come at that rate in every block."""
    objective = Objective(name="latency", slo=LatencyGoal(50.0, 0.1), rate=700.0)
    document = tuned(tmp_path, objective=objective, ledger=None).document
    assert document.goals == ("p50 <= 100 ms", "at 700/s")
    assert any("700/s at random times" in line for line in document.says)
    assert document.trials[0].latency_p50 is not None
    assert not document.trials[0].prediction_id


@pytest.mark.measures
@pytest.mark.slow
def test_a_prediction_that_was_far_off_has_it_looked_at_again(tmp_path: Path) -> None:
    """Twice is predicted and much more measured: the best so far is profiled, and the next is predicted from there."""
    settings = TuneSettings(plans=2, profile_seconds=0.2, search_seconds=5.0, effort=QUICK.effort)

    def shy(plan: Plan) -> float:
        return 500.0 * (plan.stages["work"].workers or 1) ** 0.2

    document = tuned(tmp_path, shy, settings=settings).document
    assert len(list(tmp_path.glob("tune-sleeping-*"))) == 2
    assert document.verdict == "better"


@pytest.mark.measures
@pytest.mark.slow
def test_an_interrupt_while_predicting_keeps_what_was_measured(tmp_path: Path) -> None:
    """Ctrl-C in the search from the best so far: that one is proved already, and is the answer."""

    class Interrupted(Formula):
        num_replays = 0

        def replay(self, run: Run) -> Any:
            self.num_replays += 1
            if self.num_replays > 1:
                raise KeyboardInterrupt
            return super().replay(run)

    pipeline = sleeping()
    settings = TuneSettings(
        plans=2, profile_seconds=0.2, search_seconds=5.0, effort=Effort(rounds=8, most_rounds=8, block_seconds=0.05)
    )
    shy = Interrupted(lambda plan: 500.0 * (plan.stages["work"].workers or 1) ** 0.2, pipeline)
    found = tune(pipeline, ONE_WORKER, Numbers(), settings=settings, runs=tmp_path, diagnosis=shy)
    assert found.document.interrupted
    assert found.plan is not None


def test_nobody_is_given_up_for_being_slow_where_a_latency_must_be_kept() -> None:
    """The fastest may break the goal that a slower one keeps."""
    assert fit_effort(Effort(), Objective()).halves
    assert not fit_effort(Effort(), Objective(slo=LatencyGoal(50, 10.0))).halves
    assert fit_effort(Effort(rounds=8), Objective(slo=LatencyGoal(99, 10.0))).fewest_jobs * 8 >= 662


def test_a_pipeline_whose_jobs_fail_is_not_tuned(tmp_path: Path) -> None:
    """The first failure is named."""

    def refuse(value: object) -> object:
        raise ValueError("no such thing")

    pipeline = hr.Pipeline(Numbers(), stages=[hr.stage("work", refuse)])
    with pytest.raises(HeadraceError, match="no such thing"):
        tune(pipeline, Plan(), Numbers(), runs=tmp_path, settings=QUICK, diagnosis=Formula(by_workers, pipeline))

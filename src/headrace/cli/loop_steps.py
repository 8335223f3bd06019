"""The steps of a loop, each by the command that its line names: parsed as if it had been typed, and run in this process."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.formatting import quote_arg
from headrace.base.units import format_duration, format_rate
from headrace.loop.policy import COMPARE_SECONDS, PAIRS, expect_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.diagnose.analysis import Analysis
    from headrace.loop.folder import LoopFolder
    from headrace.loop.goals import Goals
    from headrace.loop.policy import Next
    from headrace.runs.formats.diagnosis import DiagnosisDocument
    from headrace.runs.formats.loop import LoopDocument, LoopStep, Outcome
    from headrace.sources.finite import FiniteSource

#: Length of a profiled run; of one that is to tell what a shorter one did not.
_PROFILE_SECONDS, _LONGER_SECONDS = 8.0, 24.0
#: Jobs that a percentile of 99 needs, with some to spare.
_MANY_JOBS = 1200
#: Of the time that a comparison may take, what its pairs get.
_ROUNDS_SHARE = 0.75
#: In less time a search measures one Plan only: two, against the base, take a round half as long again.
_SHORT_SEARCH_SECONDS = 240.0
#: Jobs that come at a rate are done at that rate, less what a short run cannot tell.
_KEEPS_UP = 0.97


class LoopSteps:
    """Takes the steps of one loop.

    Args:
        folder: Of the loop.
        goals: As parsed.
        say: Told about the progress.
    """

    def __init__(self, folder: LoopFolder, goals: Goals, say: Callable[[object], None]) -> None:
        self._folder = folder
        self._goals = goals
        self._say = say

    def __call__(self, chosen: Next, document: LoopDocument) -> LoopStep:
        """Take one step; see `loop.runner.Take`."""
        assert chosen.kind is not None
        if chosen.kind == "tune":
            return self._tune(document, chosen.seconds, chosen.keep)
        if chosen.kind == "optimize":
            return self._optimize(document, chosen.seconds)
        if chosen.kind == "compare":
            return self._compare(document, chosen.seconds)
        if chosen.kind == "diagnose":
            return self._diagnose(document)
        steps = {"profile": self._profile, "validate": self._validate}
        return steps[chosen.kind](document, chosen.seconds)

    # --- profile and diagnose

    def _profile(self, document: LoopDocument, most_seconds: float | None) -> LoopStep:
        from headrace.base.plan import Plan
        from headrace.cli.loading import load_pipeline
        from headrace.cli.pipeline_arguments import items_source
        from headrace.tune.tuning_runs import FEWEST_PROFILED, TuningRuns

        asked, began = document.asked, time.monotonic()
        pipeline = load_pipeline(asked.pipeline)
        source = items_source(asked.source or None, pipeline)
        plan = Plan.load(self._folder.plan)
        bench = TuningRuns(pipeline, plan, source, self._folder.runs, deliver=asked.deliver, say=self._say)
        rate = bench.pilot()
        doubted = bool(document.steps) and document.steps[-1].kind == "diagnose"
        length = _LONGER_SECONDS if doubted else _PROFILE_SECONDS
        arrivals = self._goals.rate if self._goals.slo and self._goals.rate else None
        if self._goals.slo:
            length = max(length, min(4 * length, _MANY_JOBS / (arrivals or rate)))
        words = ["profile", asked.pipeline, "--plan", str(self._folder.plan), *self._source(document)]
        words += ["--results", str(self._folder.path / "by-hand.jsonl"), "-o", str(self._folder.runs / "by-hand")]
        block = bench.expect_block(asked.block_seconds)
        if most_seconds is not None:
            left, least = most_seconds - (time.monotonic() - began), FEWEST_PROFILED / (arrivals or rate)
            if left < least:
                says = _say_too_long(
                    f"a profile of {FEWEST_PROFILED} items, the fewest that tell anything,", least, left
                )
                return _step("profile", words, "out of time", says=(says,), block_seconds=block)
            length = min(length, left)
        run = bench.profile((), arrivals or rate, length, arrivals=arrivals)
        return _step("profile", words, "done", run_folder=str(run.path), block_seconds=block)

    def _diagnose(self, document: LoopDocument) -> LoopStep:
        from headrace.diagnose.analysis import Analysis
        from headrace.diagnose.diagnosis import Goal, RateGoal, diagnosis_document
        from headrace.runs.reader import read_run

        folder = next(step.run_folder for step in reversed(document.steps) if step.run_folder)
        goals: list[Goal] = [self._goals.slo] if self._goals.slo else []
        if self._goals.rate and not self._goals.slo:
            goals.append(RateGoal(self._goals.rate))
        analysis = Analysis(read_run(folder))
        found = diagnosis_document(analysis, goals)
        plan_gain, model_gain = _predict_gains(found), self._predict_model(analysis, document)
        words = ["diagnose", folder]
        words += ["--slo", self._goals.slo_text] if self._goals.slo else []
        words += ["--rate", format_rate(self._goals.rate)] if self._goals.rate and not self._goals.slo else []
        return _step(
            "diagnose", words, "done", says=(found.first.title, found.first.says, *(one.outcome for one in found.goals)),
            run_folder=folder, throughput=found.throughput, verdict=str(found.first.verdict), is_met=self._is_met(found),
            plan_gain=plan_gain, model_gain=model_gain, is_emulated=found.is_emulated,
        )  # fmt: skip

    def _is_met(self, found: DiagnosisDocument) -> bool | None:
        """Return whether all goals are met; jobs that came at the wanted rate must have been done at it."""
        if not self._goals.slo or not self._goals.rate or found.good_enough is False:
            return found.good_enough
        kept_up = found.throughput is not None and found.throughput >= _KEEPS_UP * self._goals.rate
        return found.good_enough if kept_up else False

    def _predict_model(self, analysis: Analysis, document: LoopDocument) -> float | None:
        from headrace.diagnose.replay import CannotReplay
        from headrace.optimize.amdahl import predict_free_model

        if not document.asked.model:
            return None
        try:
            return predict_free_model(analysis)[1]
        except (CannotReplay, SettingsError):
            return None

    # --- changes

    def _tune(self, document: LoopDocument, most_seconds: float | None, keep: Sequence[str]) -> LoopStep:
        from headrace.base.plan import Plan
        from headrace.cli.tune import find_better_plan
        from headrace.diagnose.replay import CannotReplay
        from headrace.tune.space import PLACES

        if document.steps and document.steps[-1].outcome == "refused" and not document.asked.slo:
            step, took = self._take_without(document, most_seconds, keep)
            if step is not None:
                return step
            most_seconds = None if most_seconds is None else max(0.0, most_seconds - took)
        asked, plan = document.asked, self._folder.plan
        words = ["tune", asked.pipeline, "--plan", str(plan), *self._source(document)]
        if asked.slo:
            words += ["--for", "latency", "--slo", asked.slo]
            words += ["--rate", f"{asked.rate:g}/s"] if asked.rate else []
        elif asked.rate:
            words += ["--enough", f"{asked.rate:g}/s"]
        # What computes at another place gives slightly other answers, and only those of another `decode.scale` are asked about.
        words += [word for key in (*keep, PLACES) for word in ("--keep", key)]
        words += ["--seconds", f"{asked.block_seconds:g}s"] if asked.block_seconds != 1 else []
        if most_seconds is not None:
            # With little time one Plan that is proved is worth more than two that are not.
            words += ["--plans", "1"] if most_seconds < _SHORT_SEARCH_SECONDS else []
            words += ["--budget-seconds", f"{most_seconds:.0f}"]
        words += ["--deliver"] if asked.deliver else []
        words += ["--runs", str(self._folder.runs), "--ledger", document.ledger, "-o", str(plan), "--force"]
        before = Plan.load(plan)
        try:
            found, problem = find_better_plan(_parse(words))
        except CannotReplay as error:
            return _step("tune", words, "not sure", says=(str(error),))
        if problem is not None:
            raise problem
        outcomes: dict[str, Outcome] = {
            "better": "better", "already at the best": "nothing better", "goal missed": "goal missed",
        }  # fmt: skip
        is_kept = found.best is not None and found.plan_file != ""
        outcome: Outcome = "interrupted" if found.interrupted else outcomes.get(found.verdict, "not sure")
        outcome = "out of time" if found.is_out_of_time else outcome
        scales = is_kept and Plan.load(plan).decode.scale != before.decode.scale
        return _step(
            "tune", words, outcome, says=found.says, ratio=found.best.measured if found.best else None,
            changes_answers=scales,
        )  # fmt: skip

    def _take_without(
        self, document: LoopDocument, most_seconds: float | None, keep: Sequence[str]
    ) -> tuple[LoopStep | None, float]:
        """Take the Plan whose answers changed, but for `keep`, if that surely gains; return the step or None, and its seconds.

        Its other settings cost a search, which would begin from nothing again.
        """
        import msgspec

        from headrace.base.plan import Plan
        from headrace.ledger.ledger import Ledger

        assert tuple(keep) == ("decode.scale",), keep
        if not self._folder.refused.exists():  # a loop that was begun with an earlier headrace
            return None, 0.0
        present, began = Plan.load(self._folder.plan), time.monotonic()
        without = Plan.load(self._folder.refused).with_settings([f"decode.scale={present.decode.scale}"])
        if without == present:
            return None, 0.0
        tried = self._folder.path / "without.toml"
        tried.write_text(without.as_toml(), encoding="utf-8")
        step = self._compare_plans(document, self._folder.plan, tried, _limit_comparison(most_seconds))
        took = time.monotonic() - began
        if step.outcome == "interrupted":
            raise KeyboardInterrupt
        if step.ratio is None or step.ratio.low <= 1:
            self._say("what else was changed in the Plan that was refused does not surely gain by itself: a new search")
            return None, took
        says = ("the Plan that was refused, decoding as before", *step.says)
        with Ledger.open(document.ledger) as ledger:
            ledger.attempts.accept(self._folder.plan, without.as_toml(), why=": ".join(says))
        return msgspec.structs.replace(step, kind="tune", outcome="better", says=says), took

    def _optimize(self, document: LoopDocument, most_seconds: float | None) -> LoopStep:
        from headrace.cli.optimize import find_cheaper_model

        asked, plan = document.asked, self._folder.plan
        look = next(step for step in reversed(document.steps) if step.kind == "diagnose")
        words = ["optimize", asked.model, "--pipeline", asked.pipeline, "--plan", str(plan), "--run", look.run_folder]
        words += self._source(document)
        words += ["--data", asked.data] if asked.data else []
        words += ["--golden", asked.golden, "--max-drop", f"{100 * asked.max_drop:g}pt"]
        words += ["--for", "latency"] if asked.slo else []
        if most_seconds is not None:  # of the search; the comparison of the whole pipeline follows it
            words += ["--budget", f"{max(1.0, most_seconds - expect_seconds(asked, 'compare', document.steps)):.0f}s"]
        words += ["--ledger", document.ledger, "-o", str(plan), "--force"]
        found, is_proved = find_cheaper_model(_parse(words))
        outcome: Outcome = "interrupted" if found.interrupted else "better" if is_proved else "nothing better"
        ratio = found.end_to_end.measured if found.end_to_end else None
        return _step("optimize", words, outcome, says=(found.says,), ratio=ratio)

    # --- proofs

    def _validate(self, document: LoopDocument, most_seconds: float | None) -> LoopStep:
        """Run both Plans over the golden folder; take the better one back if too many answers changed, or there is no time."""
        from headrace.base.plan import Plan
        from headrace.ledger.ledger import Ledger

        asked, plan = document.asked, self._folder.plan
        words = ["run", asked.pipeline, "--plan", str(plan), "--source", asked.golden, "--results", "after.jsonl"]
        with Ledger.open(document.ledger) as ledger:
            decision = ledger.attempts.find_in_force(plan)
            if decision is None or decision.before is None:
                raise HeadraceError(f"the ledger {document.ledger} has no decision about {plan}")
            before = self._folder.path / "before-tune.toml"
            before.write_text(decision.before, encoding="utf-8")
            says, may_stay = self._have_no_time(document, most_seconds), False
            if not says:
                says, may_stay = self._compare_answers(document, [Plan.load(file) for file in (before, plan)])
            if not may_stay:
                self._folder.refused.write_bytes(plan.read_bytes())
                ledger.attempts.rollback(plan, why=f"the loop takes it back: {says}")
        return _step("validate", words, "done" if may_stay else "refused", says=(says,))

    def _have_no_time(self, document: LoopDocument, most_seconds: float | None) -> str:
        """Return why two runs over the golden folder do not fit into the budget; empty if they do, or nobody can tell."""
        rate = next((step.throughput for step in reversed(document.steps) if step.throughput), None)
        if most_seconds is None or rate is None:
            return ""
        needed = 2 * sum(1 for _ in self._open_golden(document).entries()) / rate
        if needed <= most_seconds:
            return ""
        return _say_too_long("it decodes otherwise, and comparing its answers with those before", needed, most_seconds)

    def _compare_answers(self, document: LoopDocument, plans: Sequence[object]) -> tuple[str, bool]:
        """Return in words how many answers two Plans give otherwise, and whether so many may."""
        from headrace.base.statistics import wilson_interval
        from headrace.tune.agreement import num_agreeing

        agreeing, total = num_agreeing(*(self._answer(document, plan) for plan in plans))
        most, may = wilson_interval(total - agreeing, total, z=1.645)[1] if total else 1.0, document.asked.max_drop
        return f"{total - agreeing} of {total} answers changed: {most:.2%} or less (95 %), {may:.2%} may", most <= may

    def _answer(self, document: LoopDocument, plan: object) -> dict[str, object]:
        """Return {item: result} of a Plan on the golden folder."""
        from headrace.cli.loading import load_pipeline
        from headrace.compare.blocks import quiet, replace_parts
        from headrace.delivery.collect import Collect
        from headrace.pipeline.execute import run

        source, kept = self._open_golden(document), Collect()
        with quiet():
            result = run(replace_parts(load_pipeline(document.asked.pipeline), source, kept), plan)  # type: ignore[arg-type]
        if result.interrupted:
            raise KeyboardInterrupt
        return dict(kept.results)

    def _open_golden(self, document: LoopDocument) -> FiniteSource:
        from headrace.cli.loading import parse_source
        from headrace.sources.finite import FiniteSource

        source = parse_source(document.asked.golden, drain=True)
        assert isinstance(source, FiniteSource)
        return source

    def _compare(self, document: LoopDocument, most_seconds: float | None) -> LoopStep:
        limit = _limit_comparison(most_seconds)
        return self._compare_plans(document, self._folder.before, self._folder.plan, limit)

    def _compare_plans(self, document: LoopDocument, a: Path, b: Path, seconds: float) -> LoopStep:
        from headrace.cli.compare import compare_sides
        from headrace.runs.formats.profile import Estimate

        asked = document.asked
        words = ["compare", str(a), str(b), "--pipeline", asked.pipeline]
        words += [*self._source(document), "--blocks", str(PAIRS), "--until-sure", "--time-limit", f"{seconds:.0f}s"]
        words += ["--metric", "latency"] if asked.slo else []
        words += ["--seconds", f"{asked.block_seconds:g}s"] if asked.block_seconds != 1 else []
        words += ["--deliver"] if asked.deliver else []
        found = compare_sides(_parse(words))
        is_known = None not in (found.ratio_low, found.ratio, found.ratio_high)
        ratio = Estimate(found.ratio_low or 0.0, found.ratio or 0.0, found.ratio_high or 0.0) if is_known else None
        return _step("compare", words, "interrupted" if found.interrupted else "done", says=found.says, ratio=ratio)

    def _source(self, document: LoopDocument) -> list[str]:
        return ["--source", document.asked.source] if document.asked.source else []


def _limit_comparison(most_seconds: float | None) -> float:
    """Return how long a comparison may add pairs; its pilots come before, and the last pair is ended."""
    return COMPARE_SECONDS if most_seconds is None else max(1.0, min(COMPARE_SECONDS, _ROUNDS_SHARE * most_seconds))


def _say_too_long(what: str, needed: float, left: float) -> str:
    return f"{what} takes about {format_duration(needed)}, and the budget has {format_duration(max(0.0, left))} left for it"


def _parse(words: Sequence[str]) -> argparse.Namespace:
    from headrace.cli import make_parser

    return make_parser(words).parse_args(words)


def _step(kind: str, words: Sequence[str], outcome: Outcome, **fields: object) -> LoopStep:
    """Return a step whose command is given as its words."""
    from headrace.runs.formats.loop import LoopStep

    command = f"headrace {' '.join(quote_arg(word) for word in words)}"
    return LoopStep(
        number=0, kind=kind, command=command, began_unix_seconds=0.0, seconds=0.0, outcome=outcome, **fields  # type: ignore[arg-type]
    )  # fmt: skip


def _predict_gains(found: DiagnosisDocument) -> float | None:
    """Return the largest throughput ratio that the diagnosis predicts for settings of the Plan; None if it predicts none."""
    findings = [one for one in (found.first, found.runner_up) if one is not None]
    ratios = [
        remedy.ratio.mid
        for finding in findings
        for remedy in finding.remedies
        if remedy.settings and remedy.ratio is not None
    ]
    return max(ratios, default=None)

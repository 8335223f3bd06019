"""Finds a cheaper variant of a model: the order of techniques, the same gates for every candidate, repairs where int8 fails.

How this works: first what costs nothing (other engines), then what changes the numbers a little (bf16), then int8. Every
candidate passes the cheap gates on the calibration data (`cheap_gates`). Those that are significantly faster, and no others,
are then tested on the golden set (`golden_test`), the fastest first, at the level that `alpha_budget` gives each. Where an int8
variant is rejected for what it answers, its repairs are tried on the same engine.

Smaller models come last, and with a recipe, which says how to train, techniques that train. All of them pass the cheap gates
first; then their number is known, and they are tested from the fastest down to the first that is accepted: slower ones cannot
be better. For int8 a network is trained only where none of its full speed is accepted without.

At the end `decision` chooses among the accepted. What was tried is written to the ledger as it is decided (`attempt_log`), so
that an interrupted search goes on where it stopped, and what was refuted with the same files, data, machine and versions is not
tried again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.base.errors import EngineError, MissingExtra, SettingsError
from headrace.base.formatting import pluralize
from headrace.base.plan import ModelPlan
from headrace.base.settings import check
from headrace.ledger.attempts import Attempts
from headrace.optimize.alpha_budget import AlphaBudget, count_tests, is_tested, network_of
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.attempt_log import AttemptLog
from headrace.optimize.catalogue import METHODS, Methods
from headrace.optimize.cheap_gates import CheapGates
from headrace.optimize.conditions import ALPHA, Conditions
from headrace.optimize.decision import Decision
from headrace.optimize.goal import Goal
from headrace.optimize.golden_test import GoldenTest, Weigh, fails_by_answers
from headrace.optimize.incumbent import find_incumbent
from headrace.optimize.pipeline_speedup import PipelineSpeedup
from headrace.optimize.recipe import Buildable, source_hash
from headrace.optimize.search_words import Words, name_attempt, name_candidate
from headrace.optimize.smaller import smaller_models
from headrace.optimize.techniques import AS_GIVEN, INT8_AT_FULL_SPEED, Obstacle, Subject, Technique
from headrace.optimize.trained import NO_RECIPE
from headrace.runs.formats.optimization import Attempt, OptimizationDocument
from headrace.runs.formats.variants import VariantSide
from headrace.validate import measuring
from headrace.validate.answer_cache import AnswerCache
from headrace.validate.disjoint import check_disjoint
from headrace.validate.golden import Golden
from headrace.validate.items import check_inputs, describe_items, fed
from headrace.validate.policy import Policy
from headrace.validate.robustness import explain_no_robustness
from headrace.validate.sample_size import sample_size_told
from headrace.validate.variant_spec import VariantSpec


def optimize(
    model: Path,
    *,
    store: ArtifactStore,
    goal: Goal,
    calibration: Golden | None = None,
    golden: Golden | None = None,
    memory: Attempts | None = None,
    hardware: str = "",
    recipe: Buildable | None = None,
    networks: tuple[str, ...] = (),
    pipeline: PipelineSpeedup | None = None,
    weigh: Weigh | None = None,
    in_use: ModelPlan | None = None,
    say: Callable[[str], object] = lambda text: None,
    methods: Methods = METHODS,
) -> OptimizationDocument:
    """Return what was tried with a model, and which variant to use.

    Args:
        model: The model file.
        store: Keeps every file that is made.
        goal: What is asked for.
        calibration: Items for the ranges of int8, and to compare answers on; labels are not looked at.
        golden: Items with labels that decide; None: no other variant than the model as given can be recommended.
        memory: The ledger's attempts; None: nothing is kept.
        hardware: Fingerprint of this machine.
        recipe: How the model is made and trained; None: nothing is trained.
        networks: That the pipeline's module registered for the torch engine; where none is, it is not tried.
        pipeline: Says what a faster model would make of a recorded run; None: only the model's own speed-up is predicted.
        weigh: (variant, batch) -> the memory that it needs, bytes; None: nothing is known of memory.
        in_use: The `[model]` table of the Plan in use; where that is another variant than the model as given, what is
            recommended must be faster than it. None: the model as given is in use.
        say: Told what is going on, one line at a time.
        methods: What is tried, and with what it is tested.

    Raises:
        EngineError: If the model cannot be opened, or what the Plan uses.
        SettingsError: If it does not exist, or the calibration and golden sets share items or sources.
    """
    check(model.is_file(), "model file", str(model), "a file that exists")
    check_disjoint({"--data": calibration, "--golden": golden})
    original = store.add(model)
    incumbent = find_incumbent(in_use, original, goal.threads) if in_use else None
    sets = [one for one in (calibration, golden) if one is not None]
    subject = Subject(
        original=original, store=store, calibration=calibration, threads=goal.threads,
        flags=measuring.current().cpu_flags(), engines=methods.installed_engines(), recipe=recipe,
        recipe_key=source_hash(recipe) if recipe else "", prune_shares=methods.prune_shares, say=say,
        input_sizes=goal.input_sizes, also=goal.also,
        networks=networks, target=goal.target, incumbent=incumbent, stop=goal.is_over_budget,
        scales_before=calibration is not None and all(one.scaled for one in sets),
    )  # fmt: skip
    for spec in (subject.baseline(), *([incumbent.spec] if incumbent else [])):
        _check_fits(spec, sets)
    if goal.robustness and golden is not None:
        _check_robustness(subject, golden, goal)
    conditions = Conditions(subject=subject, goal=goal, golden=golden, hardware=hardware)
    log = AttemptLog(original.sha256, goal, memory, hardware, say)
    kept = AnswerCache()
    search = Search(
        conditions, log, methods,
        CheapGates(conditions=conditions, log=log, kept=kept, pipeline=pipeline),
        GoldenTest(conditions=conditions, log=log, kept=kept, evaluate=methods.evaluate, weigh=weigh),
        AlphaBudget(ALPHA if has_one_family(subject) else ALPHA / 2, methods.max_untrained),
    )  # fmt: skip
    decision, is_interrupted = Decision(conditions, log), True
    with contextlib.suppress(KeyboardInterrupt):
        search.run()
        decision.decide()
        is_interrupted = False
    return _document(conditions, log, decision, search.max_tests, is_interrupted=is_interrupted)


def has_one_family(subject: Subject) -> bool:
    """Return whether nothing is tested but untrained variants of the model as given, so that they may use all of alpha."""
    return subject.recipe is None and not subject.input_sizes and not subject.also


def _check_fits(spec: VariantSpec, sets: Sequence[Golden]) -> None:
    """Raise EngineError if a variant cannot be opened, SettingsError if it does not take the items of a set."""
    model = spec.open()
    for one in sets:
        check_inputs(one.inputs, model.inputs, one.name)
        try:
            model(fed(one.scale_to(spec.model.input_side)[:1]))
        except SettingsError:
            raise
        except Exception as error:  # engines raise their own types
            name = Path(spec.model.artifact or "").name
            raise SettingsError(
                f"{name} does not take the items of {one.name}, {describe_items(one.inputs)}: {error}"
            ) from None


def _check_robustness(subject: Subject, golden: Golden, goal: Goal) -> None:
    """Raise SettingsError where spoiled images cannot be asked: after hours of search nothing could be accepted."""
    why = explain_no_robustness(subject.baseline().open(), golden, Policy(batch=goal.batch, output=goal.output))
    if why is not None:
        raise SettingsError(f"--robustness cannot be asked: {why}; leave it out")


@dataclass(slots=True)
class Search:
    """Tries techniques in their order."""

    conditions: Conditions
    log: AttemptLog
    methods: Methods
    gates: CheapGates
    test: GoldenTest
    untrained: AlphaBudget
    """Of untrained variants of the model as given."""
    others: AlphaBudget | None = None
    """Of smaller models and trained ones; None until their number is known."""

    @property
    def max_tests(self) -> int:
        """Tests among which the probability of a wrong acceptance was shared."""
        return self.untrained.max_tests + (self.others.max_tests if self.others else 0)

    def run(self) -> None:
        """Try what leaves the network as it is, then repairs of int8, then other networks.

        Raises:
            KeyboardInterrupt: If it was interrupted; what is known by then is in the log.
        """
        self._say_sample_size(self.untrained, "variants of the model as given")
        subject, goal, methods = self.conditions.subject, self.conditions.goal, self.methods
        if subject.incumbent is not None:
            self.test.judge_in_use(subject.incumbent, self.untrained.alpha)
        given = (AS_GIVEN,) if subject.incumbent else ()
        since = goal.now()
        for technique in (
            *given,
            *methods.of_the_file,
            *(methods.of_the_network if subject.recipe is not None else ()),
        ):
            if goal.is_time_to_test(since):  # else a slow machine times candidates until no time is left to test one
                self._test_untrained(goal.is_over_budget)
                since = goal.now()
            self._try_technique(technique)
        self._test_untrained()
        # What was not tested on the golden set is not known to be wrong.
        if any(attempt.technique == "int8" and fails_by_answers(attempt) for attempt in self.log.attempts):
            self._repair()
        else:
            why = Obstacle("int8 was not tried, or is not wrong", "an int8 that is wrong")
            self.log.note_untried(methods.repairs, why)
        self._try_other_networks()

    # --- families of candidates

    def _test_untrained(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Test what was tried so far, the fastest first, each once."""
        for attempt in self.test.order(self.log.attempts, self.untrained):
            if stop():
                return
            if not is_tested(attempt):
                self.test.run(attempt, self.untrained)

    def _repair(self) -> None:
        """Try what keeps int8's speed before what costs some of it; the first repair that is accepted is enough."""
        repairs = self.methods.repairs
        for number, technique in enumerate(repairs, 1):
            for attempt in self.test.order(self._try_technique(technique), self.untrained):
                self.test.run(attempt, self.untrained)
            known = [attempt for attempt in self.log.attempts if attempt.technique == technique.name]
            if any(attempt.verdict == "accept" for attempt in known):
                why = Obstacle(f"{technique.name} is accepted", f"a {technique.name} that is wrong")
                self.log.note_untried(repairs[number:], why)
                return

    def _try_other_networks(self) -> None:
        """Try smaller and retrained models; stop at the fastest one that passes."""
        goal, num_held_back = self.conditions.goal, self.num_held_back()
        tried, since = dict[str, Attempt](), goal.now()
        for technique in (*smaller_models(self.conditions.subject), *self._what_trains()):
            if tried and goal.is_time_to_test(since):
                rest = "half of what was left of the budget is used up, and the other half is for the golden set"
                self.log.skip(technique, Obstacle(rest, self._more_budget()))
                continue
            tried.update({attempt.candidate: attempt for attempt in self._try_technique(technique)})
        known = [attempt for attempt in tried.values() if attempt.candidate not in self.untrained.tested]
        family = [attempt for attempt in known if is_tested(attempt) or self.conditions.is_worth_testing(attempt)]
        if not family:
            return
        # The outcomes of the first family must not change the number of tests: the share of alpha would not hold.
        number = count_tests(family, each=goal.objective == "size") + num_held_back
        self.others = AlphaBudget(ALPHA - self.untrained.share, number)
        self._say_sample_size(self.others, "smaller models and trained ones")
        for attempt in self.test.order(family, self.others):
            why = self._why_no_use(attempt)
            if why is None:
                self.test.run(attempt, self.others)
            else:
                self.test.leave_out(attempt, why)

    def num_held_back(self) -> int:
        """Return how many more tests there might have been, had the golden set said something else of int8."""
        can_train = self.methods.qat.find_obstacle(self.conditions.subject) is None
        return int(can_train and self._why_no_qat() is not None)

    def _what_trains(self) -> tuple[Technique, ...]:
        """Return what can be tried with a recipe, and note what cannot."""
        qat, trained = self.methods.qat, self.methods.trained
        if self.conditions.subject.recipe is None:
            why_none = Obstacle(NO_RECIPE, "MODULE:ATTRIBUTE of a recipe in the place of the model")
            self.log.note_untried((qat, *trained, *self.methods.of_the_network), why_none)
            return ()
        why = self._why_no_qat()
        if why is None:
            return (qat, *trained)
        self.log.skip(qat, Obstacle(why, "an int8, and an int8-equalized, that are wrong"))
        return trained

    def _why_no_qat(self) -> str | None:
        """Return why int8 need not be trained for; None if training may win something."""
        known = [attempt for attempt in self.log.attempts if attempt.technique in INT8_AT_FULL_SPEED]
        accepted = next((attempt for attempt in known if attempt.verdict == "accept"), None)
        if accepted is not None:
            return f"{name_attempt(accepted)} is accepted: int8 at its full speed, without training"
        if known and not any(map(fails_by_answers, known)):
            return "int8 was not turned down for what it answers"
        return None

    def _why_no_use(self, attempt: Attempt) -> str | None:
        """Return why another network is no use, whatever a test would say; None if it may be."""
        goal = self.conditions.goal
        for other in self.log.attempts:
            is_same = network_of(other) == network_of(attempt) and other.candidate != attempt.candidate
            if is_same and other.verdict != "accept" and (is_tested(other) or other.gate == "accuracy"):
                return f"the same file was not accepted on {other.settings.get('engine', '')}"
            is_faster = goal.rank_of(other) >= goal.rank_of(attempt) and goal.objective != "size"
            if other.verdict == "accept" and is_faster:
                merit = "cheap" if goal.objective == "cost" else "fast"
                return f"{name_attempt(other)} is accepted and as {merit}"
        return None

    # --- one technique

    def _try_technique(self, technique: Technique) -> list[Attempt]:
        """Return what the cheap gates say of each candidate that a technique makes."""
        subject, goal, tried = self.conditions.subject, self.conditions.goal, list[Attempt]()
        spent, more = goal.budget_is_used_up, self._more_budget()
        if goal.is_over_budget():
            self.log.skip(technique, Obstacle(spent, more))
            return []
        try:
            obstacle = technique.find_obstacle(subject)
            if obstacle is not None:
                self.log.skip(technique, obstacle)
                return []
            for candidate in technique.try_on(subject):
                name = name_candidate(candidate)
                if subject.incumbent is not None and subject.incumbent.is_same(candidate.artifact, candidate.spec):
                    until = "another variant in the Plan, or none (without --plan)"
                    self.log.skip(technique, Obstacle(f"{name} is what the Plan uses", until))
                    continue
                if goal.is_over_budget():
                    self.log.skip(technique, Obstacle(f"{name} and what follows: {spent}", more))
                    break
                tried.append(self.gates.judge(candidate))
        except (EngineError, MissingExtra) as error:
            self.log.skip(technique, Obstacle(str(error)))
        return tried

    def _more_budget(self) -> str:
        return f"more --budget, or {self.conditions.goal.going_on}, which goes on"

    def _say_sample_size(self, budget: AlphaBudget, of: str) -> None:
        """Say what the golden set can show of a family of candidates, before any of them is tested."""
        golden = self.conditions.golden
        shown = sample_size_told(len(golden), self.conditions.policy("lossy", budget.alpha)) if golden else ""
        if shown:
            self.log.say(f"{of}: {shown}, for {pluralize(budget.max_tests, 'candidate')} may be asked about")


def _document(
    conditions: Conditions, log: AttemptLog, decision: Decision, max_tests: int, *, is_interrupted: bool
) -> OptimizationDocument:
    """Return what is known of a search, complete or not."""
    subject, goal, golden = conditions.subject, conditions.goal, conditions.golden
    found = OptimizationDocument(
        baseline=log.baseline or VariantSide(name=subject.in_use().text, variant={}, open_seconds=0.0),
        in_use=log.in_use, model=subject.original, objective=goal.objective, max_drop=goal.max_drop, batch=goal.batch,
        golden=golden.name if golden else "",
        golden_uses=log.memory.golden_uses(golden.sha256) if log.memory and golden else 0,
        attempts=tuple(log.attempts), skipped=tuple(log.skipped), layout=decision.concurrency_of_chosen(),
        laid_out=tuple(decision.concurrency), run_offs=tuple(decision.head_to_head), front=decision.front(),
        recommended=decision.find_chosen(), says="", interrupted=is_interrupted,
    )  # fmt: skip
    words = Words(found, goal, decision.has_own_concurrency, max_tests)
    warnings = words.warnings(len(golden or ()), has_data=subject.calibration is not None)
    return msgspec.structs.replace(found, says=words.says(), warnings=tuple(warnings))

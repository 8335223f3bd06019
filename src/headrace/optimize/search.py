"""Finds a cheaper variant of a model: a ladder of techniques, the same gates for every candidate, repairs where int8 fails.

How this works: first what costs nothing (other engines), then what changes the numbers a little (bf16), then int8. Every
candidate passes the cheap gates (does it open, is it really int8, does it answer alike, how fast is it) on the calibration
data. Those that are significantly faster, and no others, are then evaluated on the golden set, the fastest first. The
probability of a wrong acceptance is shared among all that may be evaluated (`questions`). Where an int8 variant is turned
down for what it answers, its repairs are tried on the same engine.

What was tried is written down as it is decided, so that an interrupted search goes on where it stopped, and what was refuted
with the same files, data, machine and versions is not tried again.

Smaller models, and with a recipe, which says how to train, techniques that train come last. All of them pass the cheap gates
first; then it is known how many there are to ask about, and the golden set is asked from the fastest down to the first that it
accepts: the slower ones cannot be better. For int8 a network is trained only where none of its full speed is accepted without.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from headrace.base.errors import EngineError, MissingExtra, SettingsError
from headrace.base.formatting import counted
from headrace.base.plan import ModelPlan
from headrace.base.settings import check
from headrace.compare.interrupts import noticing
from headrace.ledger.remedies import UNASKED
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.forecast import Forecast, expected
from headrace.optimize.goal import Goal
from headrace.optimize.gpu import GPU
from headrace.optimize.half import FP16
from headrace.optimize.incumbent import AS_GIVEN, IN_USE, Incumbent, ask_cheap_gates, find_incumbent
from headrace.optimize.layout_rung import LayoutRung
from headrace.optimize.pareto import Point, best, front, is_smaller, merit, near_fastest, tied
from headrace.optimize.questions import MOST_UNTRAINED, Questions, answering, most_questions, was_asked
from headrace.optimize.recipe import Buildable, source_hash
from headrace.optimize.run_off import Pairs, RunOffs
from headrace.optimize.search_words import Words, less_cpu, named_attempt
from headrace.optimize.smaller import smaller_models
from headrace.optimize.techniques import (
    INT8_AT_FULL_SPEED,
    LADDER,
    REPAIRS,
    Candidate,
    Subject,
    Technique,
    deciding_versions,
    installed_engines,
)
from headrace.optimize.trained import NO_RECIPE, QAT, TRAINED
from headrace.optimize.unconverted import UNCONVERTED, network_code
from headrace.runs.cpu_features import cpu_flags
from headrace.runs.formats.events import Event
from headrace.runs.formats.optimization import Artifact, Asked, Attempt, OptimizationDocument, RunOff, Skipped
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.variants import Gate, GateName, ValidationDocument, VariantSide
from headrace.runs.hardware import find_hardware, find_versions, machine_in_words
from headrace.validate.disjoint import check_disjoint
from headrace.validate.golden import Golden, spread
from headrace.validate.items import Feed, check_inputs, fed, in_words
from headrace.validate.kept_answers import KeptAnswers
from headrace.validate.model_speed import Speed
from headrace.validate.policy import MAX_SLICE_DROP, Policy
from headrace.validate.robustness import why_no_robustness
from headrace.validate.sample_size import sample_size_told
from headrace.validate.variant_spec import VariantSpec, variant_settings
from headrace.validate.variants import OPEN, PARITY_ITEMS, validate_variants

#: Probability that a search accepts any that is worse by more than the margin, at most.
_ALPHA = 0.05
#: Speed-up that a candidate must surely have to be worth the golden set's time.
_LEAST_SPEEDUP = 1.02
#: Gates that the golden set is asked through.
_CONFIRMING: tuple[GateName, ...] = ("static", "accuracy", "robustness")
Weigh = Callable[[VariantSpec, Feed], int | None]
_NO_DROP = Estimate(0.0, 0.0, 0.0)
_SAME = Estimate(1.0, 1.0, 1.0)


class Memory(Protocol):
    """Where attempts are kept; the ledger is one."""

    def recall(self, key: str) -> Attempt | None:
        """Return what came of the same attempt before."""
        ...

    def write_attempt(self, attempt: Attempt) -> Attempt:
        """Keep an attempt and return it with its id."""
        ...

    def write_event(self, event: Event) -> Event:
        """Keep what is no attempt, such as a technique that was not tried."""
        ...

    def golden_uses(self, golden_sha256: str) -> int:
        """Return how often a golden set has judged."""
        ...


def optimize(
    model: Path,
    *,
    store: ArtifactStore,
    goal: Goal,
    calibration: Golden | None = None,
    golden: Golden | None = None,
    memory: Memory | None = None,
    hardware: str = "",
    recipe: Buildable | None = None,
    networks: tuple[str, ...] = (),
    forecast: Forecast | None = None,
    weigh: Weigh | None = None,
    in_use: ModelPlan | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> OptimizationDocument:
    """Return what was tried with a model, and which variant to use.

    Args:
        model: The model file.
        store: Keeps every file that is made.
        goal: What is asked for.
        calibration: Items for the ranges of int8, and to compare answers on; labels are not looked at.
        golden: Items with labels that decide; None: no other variant than the model as given can be recommended.
        memory: Keeps attempts; None: they are told and forgotten.
        hardware: Fingerprint of this machine.
        recipe: How the model is made and trained; None: nothing is trained.
        networks: That the pipeline's module registered for the torch engine; where none is, it is not tried.
        forecast: Says what a faster model would make of a recorded run; None: what is expected is told of the model alone.
        weigh: (variant, batch) -> the memory that it needs, bytes; None: nothing is known of memory.
        in_use: The `[model]` table of the Plan in use; where that is another variant than the model as given, what is
            recommended must be faster than it. None: the model as given is in use.
        say: Told what is going on, one line at a time.

    Raises:
        EngineError: If the model cannot be opened, or what the Plan uses.
        SettingsError: If it does not exist, or the calibration and golden sets share items or sources.
    """
    check(model.is_file(), "model file", str(model), "a file that exists")
    check_disjoint({"--data": calibration, "--golden": golden})
    original = store.add(model)
    incumbent = find_incumbent(in_use, original, goal.threads) if in_use else None
    subject = Subject(
        original=original, store=store, calibration=calibration, threads=goal.threads, flags=cpu_flags(),
        engines=installed_engines(), recipe=recipe, recipe_key=source_hash(recipe) if recipe else "", say=say,
        input_sizes=goal.input_sizes, also=goal.also, networks=networks, target=goal.target, incumbent=incumbent,
        stop=goal.is_over_budget,
        scales_before=calibration is not None and all(one.scaled for one in (calibration, golden) if one is not None),
    )  # fmt: skip
    for spec in (subject.baseline(), *([incumbent.spec] if incumbent else [])):
        _check_fits(spec, [one for one in (calibration, golden) if one is not None])
    if goal.robustness and golden is not None:
        _check_robustness(subject, golden, goal)
    untrained = Questions(_ALPHA if _is_ladder_all(subject) else _ALPHA / 2, MOST_UNTRAINED)
    search = _Search(subject, goal, golden, memory, hardware, say, untrained, forecast, weigh)
    search.say_sample_size(untrained, "variants of the model as given")
    with contextlib.suppress(KeyboardInterrupt):
        search.run()
        search.find_layouts()
        search.run_off()
        search.interrupted = False
    return search.document()


def _is_ladder_all(subject: Subject) -> bool:
    """Return whether the ladder and its repairs are the only family of tests, so that they may use all of alpha."""
    return subject.recipe is None and not subject.input_sizes and not subject.also


def _check_fits(spec: VariantSpec, sets: Sequence[Golden]) -> None:
    """Raise EngineError if a variant cannot be opened, SettingsError if it does not take the items of a set."""
    model = spec.open()
    for one in sets:
        check_inputs(one.inputs, model.inputs, one.name)
        try:
            model(fed(one.at(spec.model.input_side)[:1]))
        except SettingsError:
            raise
        except Exception as error:  # engines raise their own types
            name = Path(spec.model.artifact or "").name
            raise SettingsError(
                f"{name} does not take the items of {one.name}, {in_words(one.inputs)}: {error}"
            ) from None


def _check_robustness(subject: Subject, golden: Golden, goal: Goal) -> None:
    """Raise SettingsError where spoiled images cannot be asked: after hours of search nothing could be accepted."""
    why = why_no_robustness(subject.baseline().open(), golden, Policy(batch=goal.batch, output=goal.output))
    if why is not None:
        raise SettingsError(f"--robustness cannot be asked: {why}; leave it out")


@dataclass(slots=True)
class _Search:
    subject: Subject
    goal: Goal
    golden: Golden | None
    memory: Memory | None
    hardware: str
    say: Callable[[str], object]
    untrained: Questions
    """About the ladder and its repairs."""
    forecast: Forecast | None = None
    weigh: Weigh | None = None
    attempts: list[Attempt] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    baseline: VariantSide | None = None
    in_use: Attempt | None = None
    """The judgement of what the Plan uses, where that is not the model as given."""
    winner: str | None = None
    """Of those that tied, by the run-off; None: there was none."""
    run_offs: tuple[RunOff, ...] = ()
    laid_out: list[Attempt] = field(default_factory=list)
    is_laid_out: bool = False
    """Whether each variant that may be the fastest in its own layout was timed in it."""
    others: Questions | None = None
    """About smaller models and trained ones; None until it is known how many there are."""
    kept: KeptAnswers = field(default_factory=KeptAnswers)
    """What the model as given answered."""
    weighed: dict[str, int | None] = field(default_factory=dict)
    """Memory that variants need, by their text."""
    interrupted: bool = True
    """Until the search has come to its end."""

    def run(self) -> None:
        """Climb the ladder, confirm the fastest first, and repair what fails."""
        incumbent = self.subject.incumbent
        if incumbent is not None:
            self._judge_in_use(incumbent)
        unconverted = UNCONVERTED if self.subject.recipe is not None else ()
        given = (AS_GIVEN,) if incumbent else ()
        since = time.monotonic()
        for technique in (*given, *LADDER, FP16, *GPU, *unconverted):
            if self.goal.is_time_to_ask(
                since
            ):  # else a slow machine times candidates until there is no time to judge one
                self._ask_ladder(self.goal.is_over_budget)
                since = time.monotonic()
            self._try_technique(technique)
        self._ask_ladder()
        # What the golden set was not asked about is not known to be wrong.
        if any(attempt.technique == "int8" and _fails_by_answers(attempt) for attempt in self.attempts):
            self._repair()
        else:
            self._remember(REPAIRS, "int8 was not tried, or is not wrong", "an int8 that is wrong")
        self._try_what_answers_otherwise()

    def _ask_ladder(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Ask about what the ladder gave so far, the fastest first, each once."""
        for attempt in self._waiting(self.attempts, self.untrained):
            if stop():
                return
            if not was_asked(attempt):
                self._confirm(attempt, self.untrained)

    def _try_what_answers_otherwise(self) -> None:
        """Try smaller and retrained models; stop at the fastest one that passes."""
        num_held_back = self._num_held_back()
        techniques = (*smaller_models(self.subject), *self._what_trains())
        tried, since = dict[str, Attempt](), time.monotonic()
        for technique in techniques:
            if tried and self.goal.is_time_to_ask(since):
                rest = "half of what was left of the budget is used up, and the other half is for the golden set"
                self._skip(technique, rest, f"more --budget, or {self.goal.going_on}, which goes on")
                continue
            tried.update({attempt.candidate: attempt for attempt in self._try_technique(technique)})
        known = [attempt for attempt in tried.values() if attempt.candidate not in self.untrained.asked]
        family = [attempt for attempt in known if was_asked(attempt) or self._is_worth_confirming(attempt)]
        if not family:
            return
        # What the golden set said of the ladder must not change their number: the share would not hold.
        most = most_questions(family, each=self.goal.objective == "size") + num_held_back
        questions = self.others = Questions(_ALPHA - self.untrained.share, most)
        self.say_sample_size(questions, "smaller models and trained ones")
        for attempt in self._waiting(family, questions):
            why = self._why_not_confirm(attempt)
            if why is None:
                self._confirm(attempt, questions)
            else:
                self._leave_unasked(attempt, why)

    def _num_held_back(self) -> int:
        """Return how many more questions there might have been, had the golden set said something else of int8."""
        return int(QAT.why_not(self.subject) is None and self._why_no_qat() is not None)

    def _waiting(self, tried: Sequence[Attempt], questions: Questions) -> list[Attempt]:
        """Return those to ask about, the fastest first.

        Among them is what was accepted before with a larger share of the error than a question has now.
        """
        before = [attempt for attempt in tried if attempt.is_recalled and was_asked(attempt)]
        again = [self._as_before_asked(attempt) for attempt in before if not questions.stands(attempt)]
        worth = [attempt for attempt in tried if self._is_worth_confirming(attempt)]
        for attempt in again:
            self._put(attempt)
        return sorted([*worth, *again], key=self._rank, reverse=True)

    def _what_trains(self) -> tuple[Technique, ...]:
        """Return what can be tried with a recipe; what cannot is told."""
        if self.subject.recipe is None:
            self._remember(
                (QAT, *TRAINED, *UNCONVERTED), NO_RECIPE, "MODULE:ATTRIBUTE of a recipe in the place of the model"
            )
            return ()
        why = self._why_no_qat()
        if why is None:
            return (QAT, *TRAINED)
        self._skip(QAT, why, "an int8, and an int8-equalized, that are wrong")
        return TRAINED

    def _leave_unasked(self, attempt: Attempt, why: str) -> None:
        self._settle(msgspec.structs.replace(attempt, says=f"{UNASKED}{why}; {attempt.says}"), write=True)

    def _why_no_qat(self) -> str | None:
        """Return why int8 need not be trained for; None if training may win something."""
        known = [attempt for attempt in self.attempts if attempt.technique in INT8_AT_FULL_SPEED]
        accepted = next((attempt for attempt in known if attempt.verdict == "accept"), None)
        if accepted is not None:
            return f"{named_attempt(accepted)} is accepted: int8 at its full speed, without training"
        if known and not any(map(_fails_by_answers, known)):
            return "int8 was not turned down for what it answers"
        return None

    def _why_not_confirm(self, attempt: Attempt) -> str | None:
        """Return why a smaller or trained candidate is no use, whatever the golden set would say; None if it may be."""
        for other in self.attempts:
            same = answering(other) == answering(attempt) and other.candidate != attempt.candidate
            if same and other.verdict != "accept" and (was_asked(other) or other.gate == "accuracy"):
                return f"the same file was not accepted on {_engine(other)}"
            faster = self._rank(other) >= self._rank(attempt) and self.goal.objective != "size"
            if other.verdict == "accept" and faster:
                merit = "cheap" if self.goal.objective == "cost" else "fast"
                return f"{named_attempt(other)} is accepted and as {merit}"
        return None

    def _repair(self) -> None:
        """Try what keeps int8's speed before what costs some of it; the first repair that is accepted is enough."""
        for technique in REPAIRS:
            tried = self._try_technique(technique)
            for attempt in self._waiting(tried, self.untrained):
                self._confirm(attempt, self.untrained)
            if any(attempt.verdict == "accept" for attempt in self.attempts if attempt.technique == technique.name):
                later = REPAIRS[REPAIRS.index(technique) + 1 :]
                self._remember(later, f"{technique.name} is accepted", f"a {technique.name} that is wrong")
                return

    # --- one technique, one candidate

    def _try_technique(self, technique: Technique) -> list[Attempt]:
        spent, more = self.goal.budget_is_used_up, f"more --budget, or {self.goal.going_on}, which goes on"
        if self.goal.is_over_budget():
            self._skip(technique, spent, more)
            return []
        tried: list[Attempt] = []
        try:
            why = technique.why_not(self.subject)
            if why is not None:
                self._skip(technique, why)
                return []
            for candidate in technique.tried_on(self.subject):
                if self.subject.incumbent is not None and self.subject.incumbent.is_candidate(candidate):
                    used = f"{_named(candidate)} is what the Plan uses"
                    self._skip(technique, used, "another variant in the Plan, or none (without --plan)")
                    continue
                if self.goal.is_over_budget():
                    self._skip(technique, f"{_named(candidate)} and what follows: {spent}", more)
                    break
                tried.append(self._judge(candidate))
        except (EngineError, MissingExtra) as error:
            self._skip(technique, str(error))
        return tried

    def _skip(self, technique: Technique, why: str, until: str = "") -> None:
        until = until or getattr(why, "until", "")
        why = str(why)  # an `Obstacle` is one of its own, which no document takes
        self.skipped.append(Skipped(technique=technique.name, why=why))
        self.say(f"{technique.name}: not tried: {why}")
        self._remember([technique], why, until)

    def _remember(self, techniques: Sequence[Technique], why: str, until: str) -> None:
        """Write down that techniques were not tried, why, and what would change that; what is the rule is not told."""
        if self.memory is None:
            return
        for technique in techniques:
            self.memory.write_event(
                Event(
                    kind="skip", model=self.subject.original.sha256, technique=technique.name, says=why,
                    would_change=until or "what it says is missing; every search looks anew", hardware=self.hardware,
                )
            )  # fmt: skip

    def _merit(self, attempt: Attempt) -> Estimate | None:
        """Return what is to be made better, over what is in use."""
        return attempt.cpu if self.goal.objective == "cost" else attempt.speedup

    def _rank(self, attempt: Attempt) -> float:
        merit = self._merit(attempt)
        return merit.mid if merit else 0.0

    def _judge(self, candidate: Candidate) -> Attempt:
        """Ask the cheap gates, or recall what they said."""
        key = self._key(candidate.artifact, candidate.spec)
        known = self._recall(key)
        # What was left open without the golden set is asked again: it may have been a noisy minute.
        if known is not None and (known.verdict != "inconclusive" or known.drop is not None):
            self._keep_baseline(known.validation.a)
            # Paths are those of today: the ledger's folder may have been moved.
            attempt = msgspec.structs.replace(
                known,
                is_recalled=True,
                candidate=candidate.spec.text,
                settings=variant_settings(candidate.spec.model),
                artifact=candidate.artifact,
            )
            self.say(f"{_named(candidate)}: known from {known.id}: {known.verdict}: {known.says}")
            self._put(attempt)
            return attempt
        began = time.monotonic()
        self.say(f"{_named(candidate)}: {candidate.hypothesis}")
        if candidate.refuted is None:
            policy = self._policy(candidate.kind)
            given, used = self.subject.baseline(), self.subject.in_use()
            document = ask_cheap_gates(
                given, used, candidate.spec, self._search_set(), policy, kept=self.kept, settled=self._is_settled
            )
        else:
            document = _refuted(self.subject.in_use(), candidate, self.goal)
        if document.interrupted:
            raise KeyboardInterrupt
        if candidate.refuted is None:
            self._keep_baseline(document.a)
        attempt = self._attempt(candidate, document, time.monotonic() - began, key)
        # Accepted it is only by the golden set; until then nobody writes down that it is open.
        self._settle(attempt, write=attempt.verdict == "reject" or not self._is_worth_confirming(attempt))
        return self.attempts[-1]

    def _keep_baseline(self, side: VariantSide) -> None:
        """Keep the first side that tells of what is in use, and rather one whose memory is known."""
        if self.baseline is None or (self.baseline.memory_bytes is None and side.memory_bytes is not None):
            self.baseline = side

    def _recall(self, key: str) -> Attempt | None:
        return self.memory.recall(key) if self.memory and not self.goal.again else None

    def _judge_in_use(self, incumbent: Incumbent) -> None:
        """Ask the golden set about what the Plan uses: it may have lost something against the model as given already."""
        key = self._key(incumbent.artifact, incumbent.spec)
        known = self._recall(key)
        if known is not None:
            settings = {"artifact": incumbent.artifact, "settings": variant_settings(incumbent.spec.model)}
            self.in_use = msgspec.structs.replace(known, is_recalled=True, candidate=incumbent.spec.text, **settings)
            return
        began = time.monotonic()
        self.say(f"what the Plan uses: {incumbent.spec.text}")
        document = validate_variants(
            self.subject.baseline(), incumbent.spec, self.golden, self._policy("trained", self.untrained.alpha),
            gates=_CONFIRMING if self.golden else ("static",), kept=self.kept,
        )  # fmt: skip
        if document.interrupted:
            raise KeyboardInterrupt
        verdict, blamed = _verdict_of(document.gates)
        attempt = Attempt(
            created_unix_seconds=time.time(), model=self.subject.original.sha256, technique=IN_USE, kind="lossless",
            hypothesis="what the Plan uses, which others must beat", candidate=incumbent.spec.text,
            settings=variant_settings(incumbent.spec.model), artifact=incumbent.artifact, verdict=verdict, gate=blamed,
            says=document.gates[-1].says, speedup=_SAME, drop=_estimate(_of(document, "accuracy"), "low", "drop", "high"),
            seconds=time.monotonic() - began, validation=document, hardware=self.hardware, key=key,
            asked=self._asked(self.untrained.alpha if self.golden else 0.0),
        )  # fmt: skip
        self.say(f"what the Plan uses: {verdict}: {attempt.says}")
        self.in_use = self._priced(attempt)
        if self.golden is not None and self.memory:
            self.in_use = self.memory.write_attempt(self.in_use)

    def _settle(self, attempt: Attempt, *, write: bool) -> None:
        attempt = self._priced(attempt)
        if write and self.memory:
            attempt = self.memory.write_attempt(attempt)
        self.say(f"{named_attempt(attempt)}: {attempt.verdict}: {attempt.says}")
        self._put(attempt)

    def _put(self, attempt: Attempt) -> None:
        """Keep an attempt, in the place of one of the same variant: two techniques may make the very same file."""
        others = [other for other in self.attempts if other.candidate != attempt.candidate]
        self.attempts[:] = [*others, attempt]

    def _attempt(self, candidate: Candidate, document: ValidationDocument, seconds: float, key: str) -> Attempt:
        gate = next((gate for gate in document.gates if gate.outcome == "rejected"), None)
        speed = _of(document, "speed")
        speedup, cpu = _estimate(speed, "low", "ratio", "high"), _estimate(speed, "cpu_low", "cpu_ratio", "cpu_high")
        slow = self._is_too_slow(candidate, speedup, cpu)
        if gate is not None:
            verdict, says = "reject", gate.says
        elif slow and speed is not None:
            verdict, gate, says = "reject", speed, f"{speed.says}{self._of_cpu(cpu)}: no gain worth a change"
        else:
            verdict = "inconclusive"
            says = f"{speed.says}{self._of_cpu(cpu)}" if speed else document.says
        return Attempt(
            created_unix_seconds=time.time(),
            model=self.subject.original.sha256,
            technique=candidate.technique,
            kind=candidate.kind,
            hypothesis=candidate.hypothesis,
            candidate=candidate.spec.text,
            settings=variant_settings(candidate.spec.model),
            artifact=candidate.artifact,
            verdict=verdict,  # type: ignore[arg-type]
            gate=gate.name if gate else None,
            says=says,
            predicted=expected(candidate.expects, self.forecast),
            speedup=speedup,
            cpu=cpu,
            seconds=seconds,
            validation=document,
            hardware=self.hardware,
            key=key,
            asked=self._asked(),
        )

    def _asked(self, alpha: float = 0.0) -> Asked:
        calibration, golden, used = self.subject.calibration, self.golden, self.subject.incumbent
        return Asked(
            max_drop=self.goal.max_drop, max_slice_drop=self.goal.max_slice_drop, alpha=alpha,
            metric=self.goal.metric.name,
            robustness=self.goal.robustness, pipeline=self.goal.pipeline,
            data=calibration.name if calibration else "", data_sha256=calibration.sha256 if calibration else "",
            golden=golden.name if golden else "", golden_sha256=golden.sha256 if golden else "",
            versions=find_versions(), machine=machine_in_words(find_hardware()),
            against={**variant_settings(used.spec.model), "sha256": used.artifact.sha256} if used else {},
        )  # fmt: skip

    def _priced(self, attempt: Attempt) -> Attempt:
        price = self.goal.price_per_hour
        return attempt if price is None else msgspec.structs.replace(attempt, money=attempt.seconds * price / 3600)

    def _is_settled(self, speed: Speed) -> bool:
        """Return whether it is known that a candidate is worth asking about, or that it is not."""
        least, found = _LEAST_SPEEDUP, speed.cpu if self.goal.objective == "cost" else speed
        if self.goal.objective == "cost" and speed.high < 1.0:
            return True
        return found is not None and (found.low > least or found.high <= least)

    def _of_cpu(self, cpu: Estimate | None) -> str:
        if self.goal.objective != "cost":
            return ""
        return f", {less_cpu(cpu)}" if cpu else ", its CPU time could not be measured"

    def _is_too_slow(self, candidate: Candidate, speedup: Estimate | None, cpu: Estimate | None) -> bool:
        """Return whether a candidate is surely not better at what is asked for, and nothing else speaks for it."""
        if self.goal.objective == "cost":
            slower = speedup is not None and speedup.high < 1.0
            return slower or (cpu is not None and cpu.high <= _LEAST_SPEEDUP)
        smaller = candidate.artifact.num_bytes < self.subject.file_in_use.num_bytes
        if self.goal.objective == "size" and smaller:
            return False
        return speedup is not None and speedup.high <= _LEAST_SPEEDUP

    def _key(self, artifact: Artifact, spec: VariantSpec) -> str:
        model = spec.model
        decides = [
            self.subject.original.sha256, artifact.sha256, model.engine, model.threads, dict(model.options),
            self.goal.batch, self.goal.max_drop, self.goal.threads, self.goal.objective, self.hardware,
            *(() if model.input_side is None else (model.input_side,)),
            self.subject.calibration.sha256 if self.subject.calibration else "",
            self.golden.sha256 if self.golden else "",
            deciding_versions(model.engine), *network_code(model),
            *(() if self.goal.metric.is_default else (self.goal.metric.name, self.goal.metric.source)),
            *(("robustness",) if self.goal.robustness else ()),
            *((self.goal.max_slice_drop,) if self.goal.max_slice_drop != MAX_SLICE_DROP else ()),
            *(self.subject.incumbent.decides if self.subject.incumbent else ()),
        ]  # fmt: skip
        return hashlib.sha256(msgspec.json.encode(decides, order="sorted")).hexdigest()[:16]

    def _policy(self, kind: str, alpha: float = _ALPHA) -> Policy:
        return Policy(
            max_drop=self.goal.max_drop,
            max_slice_drop=self.goal.max_slice_drop,
            metric=self.goal.metric,
            robustness=self.goal.robustness,
            batch=self.goal.batch,
            alpha=alpha,
            retrained=kind == "trained",
            output=self.goal.output,
        )

    def _search_set(self) -> Golden | None:
        """Return the items on which candidates are compared before the golden set is asked; their labels are not looked at.

        Labels would make of a large difference a note: here nobody asks for the accuracy, so it must be small.
        """
        given = self.subject.calibration or self.golden
        if given is None:
            return None
        return given.unlabelled(spread(len(given), PARITY_ITEMS))

    # --- the golden set

    def say_sample_size(self, questions: Questions, of: str) -> None:
        """Say what the golden set can show of a family of candidates, before any of them is asked about."""
        told = sample_size_told(len(self.golden), self._policy("lossy", questions.alpha)) if self.golden else ""
        if told:
            self.say(f"{of}: {told}, for {counted(questions.most, 'candidate')} may be asked about")

    def _is_worth_confirming(self, attempt: Attempt) -> bool:
        if attempt.verdict != "inconclusive" or attempt.is_recalled:
            return False
        if self.golden is None and not self._is_as_given(attempt):
            return False
        smaller = attempt.artifact.num_bytes < self.subject.file_in_use.num_bytes
        if self.goal.objective == "size" and smaller:
            return True
        merit = self._merit(attempt)
        return merit is not None and merit.low > _LEAST_SPEEDUP

    def _is_as_given(self, attempt: Attempt) -> bool:
        """Return whether it is the model as it was given: answers are held against its own, so nobody need be asked."""
        return attempt.candidate == self.subject.baseline().text

    def _why_not_ask(self, attempt: Attempt, questions: Questions) -> str | None:
        """Return why the golden set is not asked about a candidate; None if it is."""
        spent = self.goal.budget_is_used_up if self.goal.is_over_budget() else None
        return questions.why_not(attempt.candidate) or spent

    def _as_before_asked(self, attempt: Attempt) -> Attempt:
        """Return what is known of a candidate without what the golden set said of it."""
        gates = tuple(gate for gate in attempt.validation.gates if gate.name not in ("accuracy", "robustness"))
        speed = _of(attempt.validation, "speed")
        validation = msgspec.structs.replace(
            attempt.validation, gates=gates, verdict="inconclusive", golden="", golden_sha256="", worst=(), slices=(),
            num_slices=0,
        )  # fmt: skip
        return msgspec.structs.replace(
            attempt, verdict="inconclusive", gate=None, drop=None, is_recalled=False, validation=validation,
            says=f"{speed.says}{self._of_cpu(attempt.cpu)}" if speed else "",
        )  # fmt: skip

    def _confirm(self, attempt: Attempt, questions: Questions) -> None:
        """Ask the golden set."""
        if self._is_as_given(attempt):
            # The golden set was not asked: it may be the set that answers were compared on, and is used up by none of that.
            own = msgspec.structs.replace(attempt.validation, golden_sha256="")
            accepted = msgspec.structs.replace(attempt, verdict="accept", drop=_NO_DROP, validation=own)
            self._settle(self._weighed(accepted, self.subject.baseline()), write=True)
            return
        why = self._why_not_ask(attempt, questions)
        if why is not None:
            self._leave_unasked(attempt, why)
            return
        questions.asked.add(attempt.candidate)
        began = time.monotonic()
        spec = VariantSpec(attempt.candidate, ModelPlan(**attempt.settings))
        policy = self._policy(attempt.kind, questions.alpha)
        document = validate_variants(
            self.subject.baseline(), spec, self.golden, policy, gates=_CONFIRMING, kept=self.kept
        )
        if document.interrupted:
            raise KeyboardInterrupt
        asked = [gate for gate in document.gates if gate.name in ("accuracy", "robustness")]
        accuracy = _of(document, "accuracy")
        verdict, blamed = _verdict_of(asked)
        judged = msgspec.structs.replace(
            attempt,
            verdict=verdict,
            gate=blamed,
            says="; ".join([attempt.says, *(gate.says for gate in asked or document.gates)]),
            drop=_estimate(accuracy, "low", "drop", "high"),
            seconds=attempt.seconds + time.monotonic() - began,
            asked=self._asked(questions.alpha),
            validation=msgspec.structs.replace(
                attempt.validation, gates=(*attempt.validation.gates, *asked), verdict=verdict, golden=document.golden,
                golden_sha256=document.golden_sha256, num_items=document.num_items, metric=document.metric,
                worst=document.worst, slices=document.slices,
                num_slices=document.num_slices,
                warnings=tuple(dict.fromkeys((*attempt.validation.warnings, *document.warnings))),
            ),
        )  # fmt: skip
        self._settle(self._weighed(judged, spec), write=True)

    def _weighed(self, attempt: Attempt, spec: VariantSpec) -> Attempt:
        """Return an attempt that may still be used with the memory that it needs; for others a process is too much."""
        if self.weigh is None or self.golden is None or attempt.verdict == "reject":
            return attempt
        first, second = (
            msgspec.structs.replace(side, memory_bytes=self._memory_of(one))
            for side, one in ((attempt.validation.a, self.subject.in_use()), (attempt.validation.b, spec))
        )
        self._keep_baseline(first)
        return msgspec.structs.replace(
            attempt, validation=msgspec.structs.replace(attempt.validation, a=first, b=second)
        )

    def _memory_of(self, spec: VariantSpec) -> int | None:
        """Return the memory that a variant needs, asked once."""
        if spec.text not in self.weighed and self.weigh is not None and self.golden is not None:
            self.weighed[spec.text] = self.weigh(spec, fed(self.golden.at(spec.model.input_side)[: self.goal.batch]))
        return self.weighed[spec.text]

    # --- the last rung

    def find_layouts(self) -> None:
        """Look for workers, threads and batch of each variant that its own layout could make the fastest, and keep them."""
        first, items = self.goal.layout, self._search_set()
        if first is None or items is None or self.goal.objective in ("size", "cost"):
            return
        rung = LayoutRung(
            subject=self.subject, first=first, cores=self.goal.cores, objective=self.goal.objective, items=items,
            hardware=self.hardware, say=self.say,
        )  # fmt: skip
        variants = {attempt.candidate: attempt for attempt in self.attempts}
        near = near_fastest([self._start(), *self._better()])
        for point in near:
            if self.goal.is_over_budget():
                return
            found = self._layout_of(rung, variants.get(point.name))
            if found is not None:
                self.laid_out.append(found)
        self.is_laid_out = len(self.laid_out) == len(near)

    def _layout_of(self, rung: LayoutRung, variant: Attempt | None) -> Attempt | None:
        """Return the layout of a variant, or of the model as given, as the ledger knows it or as it is found now."""
        name = f"layout of {named_attempt(variant) if variant else self.subject.called}"
        known = self._recall(rung.key(variant))
        if known is not None:
            self.say(f"{name}: known from {known.id}: {known.verdict}: {known.says}")
            return rung.recalled(known, variant)
        self.say(name)
        with noticing() as is_interrupted:
            found = rung.climb(variant, is_interrupted)
            if is_interrupted():
                raise KeyboardInterrupt
        if found is None:
            return None
        self.say(f"{name}: {found.verdict}: {found.says}")
        found = self._priced(msgspec.structs.replace(found, asked=self._asked()))
        return self.memory.write_attempt(found) if self.memory else found

    # --- what came of it

    def _better(self) -> list[Point]:
        """Return what is accepted and surely better than what is in use, all in one layout."""
        points = [_point(attempt) for attempt in self.attempts if attempt.verdict == "accept" and attempt.speedup]
        return [point for point in points if _is_better(point, self._start(), self.goal.objective)]

    def _chosen(self) -> Point | None:
        """Return the best variant; None: keep the model as it is.

        Each is taken in its own layout, or all are in the Plan's: what one gains by its layout says nothing of another whose
        layout could not be timed.
        """
        rivals = self._rivals()
        chosen = next((point for point in rivals if point.name == self.winner), None)
        chosen = chosen or best(rivals, self.goal.objective)
        return None if chosen is None or chosen.name == self._start().name else chosen

    def _rivals(self) -> list[Point]:
        """Return those of whom the best is used, with what they gain."""
        better = self._better()
        if not self.is_laid_out:
            return better
        wholes = {one.of: one.whole.ratio if one.whole else _SAME for one in self.laid_out}
        start = self._start()
        points = [(point, "" if point is start else point.name) for point in (start, *better)]
        return [replace(point, speedup=wholes[name]) for point, name in points if name in wholes]

    # --- of those that tie

    def run_off(self) -> None:
        """Hold variants that tie directly against each other, each in its own layout where that was looked for."""
        rivals, items = self._rivals(), self._search_set()
        if self.goal.objective == "size" or not rivals or items is None or self.goal.is_over_budget():
            return
        known = {attempt.candidate: attempt for attempt in self.attempts}
        layouts = {one.of or self._start().name: one for one in self.laid_out} if self.is_laid_out else {}
        pairs = Pairs(self.subject, known, layouts, items, self.goal.batch, self.say)
        with noticing() as is_interrupted:
            run_off = RunOffs(
                partial(pairs.measure, stop=is_interrupted), pairs.named, by_cpu=self.goal.objective == "cost"
            )
            winner = run_off.best(tied(rivals, self.goal.objective))
            if is_interrupted():
                raise KeyboardInterrupt
        self.winner, self.run_offs = winner.name, tuple(run_off.held)
        for one in self.run_offs:
            self.say(one.says)
            self._remember_run_off(one, known.get(one.chosen))

    def _remember_run_off(self, found: RunOff, chosen: Attempt | None) -> None:
        if self.memory is None:
            return
        self.memory.write_event(
            Event(
                kind="run-off", attempt=chosen.id if chosen else "", model=self.subject.original.sha256,
                technique=chosen.technique if chosen else "", says=found.says, hardware=self.hardware, speedup=found.ratio,
            )
        )  # fmt: skip

    @property
    def layout(self) -> Attempt | None:
        """Of what is chosen."""
        chosen = self._chosen()
        return next((one for one in self.laid_out if one.of == (chosen.name if chosen else "")), None)

    def _start(self) -> Point:
        return Point(
            name="baseline", kind="lossless", speedup=_SAME, cpu=_SAME, num_bytes=self.subject.file_in_use.num_bytes,
            drop=(self.in_use.drop if self.in_use else None) or _NO_DROP,
            memory_bytes=self.baseline.memory_bytes if self.baseline else None,
        )  # fmt: skip

    def _num_shared(self) -> int:
        """Return among how many questions the probability of a wrong acceptance was shared."""
        return self.untrained.most + (self.others.most if self.others else 0)

    def document(self) -> OptimizationDocument:
        """Return what is known so far."""
        points = [_point(attempt) for attempt in self.attempts if attempt.verdict == "accept" and attempt.speedup]
        start, chosen = self._start(), self._chosen()
        uses = self.memory.golden_uses(self.golden.sha256) if self.memory and self.golden else 0
        found = OptimizationDocument(
            baseline=self.baseline or VariantSide(name=self.subject.in_use().text, variant={}, open_seconds=0.0),
            in_use=self.in_use,
            model=self.subject.original,
            objective=self.goal.objective,
            max_drop=self.goal.max_drop,
            batch=self.goal.batch,
            golden=self.golden.name if self.golden else "",
            golden_uses=uses,
            attempts=tuple(self.attempts),
            skipped=tuple(self.skipped),
            layout=self.layout,
            laid_out=tuple(self.laid_out),
            run_offs=self.run_offs,
            front=tuple(point.name for point in front([start, *points])),
            recommended=chosen.name if chosen else None,
            says="",
            interrupted=self.interrupted,
        )
        words = Words(found, self.goal, self.is_laid_out, self._num_shared())
        warnings = words.warnings(len(self.golden or ()), has_data=self.subject.calibration is not None)
        return msgspec.structs.replace(found, says=words.says(), warnings=tuple(warnings))


def _refuted(baseline: VariantSpec, candidate: Candidate, goal: Goal) -> ValidationDocument:
    """Return the document of a candidate that is known to be no good before any gate was asked."""
    says = candidate.refuted or ""
    return ValidationDocument(
        a=VariantSide(name=baseline.text, variant={}, open_seconds=0.0),
        b=VariantSide(name=candidate.spec.text, variant={}, open_seconds=0.0),
        verdict="reject", says=says, gates=(Gate(name="accuracy", outcome="rejected", says=says),), batch=goal.batch,
        golden="", num_items=0,
    )  # fmt: skip


def _is_better(point: Point, start: Point, objective: str) -> bool:
    """Return whether a variant is surely better than the model as given at what is asked for."""
    if objective == "size":
        return is_smaller(point, start)
    return merit(point, objective).low > 1.0 and (objective != "cost" or point.speedup.high >= 1.0)


def _point(attempt: Attempt) -> Point:
    assert attempt.speedup is not None
    return Point(
        name=attempt.candidate,
        kind=attempt.kind,
        speedup=attempt.speedup,
        cpu=attempt.cpu,
        drop=attempt.drop or _NO_DROP,
        num_bytes=attempt.artifact.num_bytes,
        memory_bytes=attempt.validation.b.memory_bytes,
    )


def _verdict_of(
    asked: Sequence[Gate],
) -> tuple[Literal["accept", "reject", "inconclusive"], GateName | None]:
    """Return what the gates of the golden set come to, and the one that rejects it or leaves it open."""
    rejected = next((gate for gate in asked if gate.outcome == "rejected"), None)
    open_one = next((gate for gate in asked if gate.outcome in OPEN), None)
    if rejected is not None:
        return "reject", rejected.name
    if open_one is not None or not any(gate.name == "accuracy" and gate.outcome == "passed" for gate in asked):
        return "inconclusive", (open_one.name if open_one else "accuracy")
    return "accept", None


def _fails_by_answers(attempt: Attempt) -> bool:
    """Return whether it was turned down, or left open by the golden set, for what it answers; now or before."""
    return attempt.verdict != "accept" and (
        attempt.gate in ("parity", "accuracy", "robustness") or attempt.drop is not None
    )


def _of(document: ValidationDocument, name: str) -> Gate | None:
    return next((gate for gate in document.gates if gate.name == name), None)


def _estimate(gate: Gate | None, low: str, mid: str, high: str) -> Estimate | None:
    values = [gate.values.get(key) if gate else None for key in (low, mid, high)]
    numbers = [value for value in values if value is not None]
    return Estimate(*numbers) if len(numbers) == 3 else None


def _named(candidate: Candidate) -> str:
    return f"{candidate.technique} on {candidate.spec.model.engine}"


def _engine(attempt: Attempt) -> str:
    return str(attempt.settings.get("engine", ""))

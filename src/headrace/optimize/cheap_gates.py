"""The gates that every candidate passes first: seconds each, on items whose labels are not used.

Does it open, is it really int8, does it answer alike, how fast is it. Answers are compared with the model as given, speed with
what is in use. What the ledger knows is recalled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.optimize.attempt_log import AttemptLog
from headrace.optimize.conditions import Conditions
from headrace.optimize.pipeline_speedup import PipelineSpeedup, predict_speedup
from headrace.optimize.search_words import cpu_words, name_candidate
from headrace.optimize.techniques import Candidate
from headrace.runs.formats.optimization import Attempt
from headrace.runs.formats.outcomes import Acceptance
from headrace.runs.formats.variants import Gate, GateName, ValidationDocument, VariantSide
from headrace.validate.answer_cache import AnswerCache
from headrace.validate.golden import Golden
from headrace.validate.model_speed import Settled
from headrace.validate.policy import Policy
from headrace.validate.variant_spec import VariantSpec, variant_settings
from headrace.validate.variants import CHEAP_GATES, validate_variants


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapGates:
    """Judges one candidate."""

    conditions: Conditions
    log: AttemptLog
    kept: AnswerCache
    """What the model as given answered."""
    pipeline: PipelineSpeedup | None = None
    """Says what a faster model would make of a recorded run; None: no run was given."""

    def judge(self, candidate: Candidate) -> Attempt:
        """Return what the gates say of a candidate, now or before.

        Raises:
            KeyboardInterrupt: If it was interrupted.
        """
        key = self.conditions.key(candidate.artifact, candidate.spec)
        known = self.log.recall(key)
        # What was left open without the golden set is judged again: it may have been a noisy minute.
        if known is not None and (known.verdict != "inconclusive" or known.drop is not None):
            return self._recall(candidate, known)
        began = time.monotonic()
        self.log.say(f"{name_candidate(candidate)}: {candidate.hypothesis}")
        document = self._run(candidate)
        if document.interrupted:
            raise KeyboardInterrupt
        if candidate.refuted is None:
            self.log.keep_baseline(document.a)
        attempt = self._attempt(candidate, document, began, key)
        # Only the golden set accepts; until then the open attempt is not written.
        is_final = attempt.verdict == "reject" or not self.conditions.is_worth_testing(attempt)
        return self.log.decide(attempt, write=is_final)

    def _recall(self, candidate: Candidate, known: Attempt) -> Attempt:
        self.log.keep_baseline(known.validation.a)
        # Paths are those of today: the ledger's folder may have been moved.
        attempt = msgspec.structs.replace(
            known, is_recalled=True, candidate=candidate.spec.text, settings=variant_settings(candidate.spec.model),
            artifact=candidate.artifact,
        )  # fmt: skip
        self.log.say(f"{name_candidate(candidate)}: known from {known.id}: {known.verdict}: {known.says}")
        self.log.add(attempt)
        return attempt

    def _run(self, candidate: Candidate) -> ValidationDocument:
        subject, goal = self.conditions.subject, self.conditions.goal
        if candidate.refuted is not None:
            return _refute(subject.in_use(), candidate, candidate.refuted, goal.batch)
        return run_cheap_gates(
            subject.baseline(), subject.in_use(), candidate.spec, self.conditions.find_unlabelled_items(),
            self.conditions.policy(candidate.kind), kept=self.kept, settled=goal.is_settled,
        )  # fmt: skip

    def _attempt(self, candidate: Candidate, document: ValidationDocument, began: float, key: str) -> Attempt:
        conditions, goal = self.conditions, self.conditions.goal
        speed = document.find_gate("speed")
        speedup = document.interval("speed", "low", "ratio", "high")
        cpu = document.interval("speed", "cpu_low", "cpu_ratio", "cpu_high")
        timed = f"{speed.says}{cpu_words(goal.objective, cpu)}" if speed else document.says
        gate = next((gate for gate in document.gates if gate.outcome == "rejected"), None)
        verdict: Acceptance = "inconclusive"
        if gate is not None:
            verdict, timed = "reject", gate.says
        elif speed is not None and goal.is_no_gain(speedup, cpu, is_smaller=conditions.is_smaller(candidate.artifact)):
            verdict, gate, timed = "reject", speed, f"{timed}: no gain worth a change"
        return conditions.attempt(
            candidate.spec, candidate.artifact, document, began, technique=candidate.technique, kind=candidate.kind,
            hypothesis=candidate.hypothesis, verdict=verdict, gate=gate.name if gate else None, says=timed,
            predicted=predict_speedup(candidate.expected, self.pipeline), speedup=speedup, cpu=cpu, key=key,
        )  # fmt: skip


def _refute(baseline: VariantSpec, candidate: Candidate, why: str, batch: int) -> ValidationDocument:
    """Return the document of a candidate that is known to be no good before any gate."""
    return ValidationDocument(
        a=VariantSide(name=baseline.text, variant={}, open_seconds=0.0),
        b=VariantSide(name=candidate.spec.text, variant={}, open_seconds=0.0),
        verdict="reject", says=why, gates=(Gate(name="accuracy", outcome="rejected", says=why),), batch=batch,
        golden="", num_items=0,
    )  # fmt: skip


def run_cheap_gates(
    given: VariantSpec,
    used: VariantSpec,
    candidate: VariantSpec,
    items: Golden | None,
    policy: Policy,
    gates: Sequence[GateName] = CHEAP_GATES,
    kept: AnswerCache | None = None,
    settled: Settled | None = None,
) -> ValidationDocument:
    """Return what the cheap gates say: answers compared with the model as given, speed with the variant in use.

    Args:
        given: The model as it was given.
        used: What runs today; `given` itself where that is it.
        candidate: The one that is judged.
        items: That are answered; None: made up.
        policy: What is asked.
        gates: Those of the cheap gates to ask.
        kept: What the model as given answered before; None: it is asked anew.
        settled: As `measure_speed` takes it.
    """
    if used.text == given.text:
        return validate_variants(given, candidate, items, policy, gates=gates, kept=kept, settled=settled)
    untimed = [gate for gate in gates if gate != "speed"]
    answers = validate_variants(given, candidate, items, policy, gates=untimed, kept=kept)
    if answers.verdict == "reject" or answers.interrupted or "speed" not in gates:
        return answers
    timed = validate_variants(used, candidate, items, policy, gates=("speed",), settled=settled)
    return msgspec.structs.replace(
        timed, gates=(*answers.gates, *timed.gates), warnings=(*answers.warnings, *timed.warnings), layers=answers.layers,
        diverges_at=answers.diverges_at,
    )  # fmt: skip

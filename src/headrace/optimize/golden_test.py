"""The test on the golden set, which alone accepts a candidate; the alpha budget gives its level."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.base.plan import ModelPlan
from headrace.ledger.remedies import UNASKED
from headrace.optimize.alpha_budget import AlphaBudget, is_tested
from headrace.optimize.attempt_log import AttemptLog
from headrace.optimize.conditions import Conditions
from headrace.optimize.incumbent import IN_USE, Incumbent
from headrace.optimize.pareto import NO_DROP, SAME_SPEED
from headrace.optimize.search_words import cpu_words
from headrace.runs.formats.optimization import Attempt
from headrace.runs.formats.outcomes import Acceptance
from headrace.runs.formats.variants import Gate, GateName, ValidationDocument
from headrace.validate.answer_cache import AnswerCache
from headrace.validate.items import Feed, fed
from headrace.validate.variant_spec import VariantSpec, variant_settings
from headrace.validate.variants import OPEN

#: Gates of this test: what must hold besides, and those of the golden set.
_GATES: tuple[GateName, ...] = ("static", "accuracy", "robustness")
Weigh = Callable[[VariantSpec, Feed], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenTest:
    """Tests candidates, each once."""

    conditions: Conditions
    log: AttemptLog
    kept: AnswerCache
    """What the model as given answered."""
    evaluate: Callable[..., ValidationDocument]
    """As `validate_variants`."""
    weigh: Weigh | None = None
    """(variant, batch) -> the memory that it needs, bytes; None: nothing is known of memory."""
    _weighed: dict[str, int | None] = field(default_factory=dict, init=False)
    """Memory that variants need, by their text."""

    def order(self, tried: Sequence[Attempt], budget: AlphaBudget) -> list[Attempt]:
        """Return those to test, the fastest first.

        Among them is what was accepted before at a larger alpha than a test has now.
        """
        before = [attempt for attempt in tried if attempt.is_recalled and is_tested(attempt)]
        again = [self._drop_test(attempt) for attempt in before if not budget.accepts_earlier(attempt)]
        worth = [attempt for attempt in tried if self.conditions.is_worth_testing(attempt)]
        for attempt in again:
            self.log.add(attempt)
        return sorted([*worth, *again], key=self.conditions.goal.rank_of, reverse=True)

    def _drop_test(self, attempt: Attempt) -> Attempt:
        """Return what is known of a candidate without what the golden set said of it."""
        gates = tuple(gate for gate in attempt.validation.gates if gate.name not in ("accuracy", "robustness"))
        speed = attempt.validation.find_gate("speed")
        validation = msgspec.structs.replace(
            attempt.validation, gates=gates, verdict="inconclusive", golden="", golden_sha256="", worst=(), slices=(),
            num_slices=0,
        )  # fmt: skip
        cpu = cpu_words(self.conditions.goal.objective, attempt.cpu)
        return msgspec.structs.replace(
            attempt, verdict="inconclusive", gate=None, drop=None, is_recalled=False, validation=validation,
            says=f"{speed.says}{cpu}" if speed else "",
        )  # fmt: skip

    def run(self, attempt: Attempt, budget: AlphaBudget) -> None:
        """Accept, reject or leave open a candidate.

        Raises:
            KeyboardInterrupt: If it was interrupted.
        """
        if self.conditions.is_as_given(attempt):
            # It needs no test, so the set is not used up by it.
            own = msgspec.structs.replace(attempt.validation, golden_sha256="")
            accepted = msgspec.structs.replace(attempt, verdict="accept", drop=NO_DROP, validation=own)
            self.log.decide(self._weigh(accepted, self.conditions.subject.baseline()), write=True)
            return
        why = self.why_not(attempt, budget)
        if why is not None:
            self.leave_out(attempt, why)
            return
        budget.tested.add(attempt.candidate)
        began = time.monotonic()
        spec = VariantSpec(attempt.candidate, ModelPlan(**attempt.settings))
        document = self._evaluate(spec, attempt.kind, budget.alpha, _GATES)
        gates = [gate for gate in document.gates if gate.name in ("accuracy", "robustness")]
        verdict, blamed = verdict_of(gates)
        judged = msgspec.structs.replace(
            attempt, verdict=verdict, gate=blamed,
            says="; ".join([attempt.says, *(gate.says for gate in gates or document.gates)]),
            drop=document.interval("accuracy", "low", "drop", "high"),
            seconds=attempt.seconds + time.monotonic() - began, asked=self.conditions.record(budget.alpha),
            validation=msgspec.structs.replace(
                attempt.validation, gates=(*attempt.validation.gates, *gates), verdict=verdict, golden=document.golden,
                golden_sha256=document.golden_sha256, num_items=document.num_items, metric=document.metric,
                worst=document.worst, slices=document.slices, num_slices=document.num_slices,
                warnings=tuple(dict.fromkeys((*attempt.validation.warnings, *document.warnings))),
            ),
        )  # fmt: skip
        self.log.decide(self._weigh(judged, spec), write=True)

    def why_not(self, attempt: Attempt, budget: AlphaBudget) -> str | None:
        """Return why a candidate is not tested; None if it is."""
        goal = self.conditions.goal
        return budget.why_not(attempt.candidate) or (goal.budget_is_used_up if goal.is_over_budget() else None)

    def leave_out(self, attempt: Attempt, why: str) -> None:
        """Write down that a candidate is not tested."""
        self.log.decide(msgspec.structs.replace(attempt, says=f"{UNASKED}{why}; {attempt.says}"), write=True)

    def judge_in_use(self, incumbent: Incumbent, alpha: float) -> None:
        """Test what the Plan uses: it may have lost something against the model as given already."""
        log, golden = self.log, self.conditions.golden
        key, settings = self.conditions.key(incumbent.artifact, incumbent.spec), variant_settings(incumbent.spec.model)
        known = log.recall(key)
        if known is not None:
            log.in_use = msgspec.structs.replace(
                known, is_recalled=True, candidate=incumbent.spec.text, artifact=incumbent.artifact, settings=settings
            )
            return
        began = time.monotonic()
        log.say(f"what the Plan uses: {incumbent.spec.text}")
        document = self._evaluate(incumbent.spec, "trained", alpha, _GATES if golden else ("static",))
        verdict, blamed = verdict_of(document.gates)
        attempt = self.conditions.attempt(
            incumbent.spec, incumbent.artifact, document, began, alpha=alpha if golden else 0.0, technique=IN_USE,
            kind="lossless", hypothesis="what the Plan uses, which others must beat", verdict=verdict, gate=blamed,
            says=document.gates[-1].says, speedup=SAME_SPEED, key=key,
            drop=document.interval("accuracy", "low", "drop", "high"),
        )  # fmt: skip
        log.say(f"what the Plan uses: {verdict}: {attempt.says}")
        log.in_use = log.write(attempt, is_kept=golden is not None)

    def _evaluate(self, spec: VariantSpec, kind: str, alpha: float, gates: Sequence[GateName]) -> ValidationDocument:
        policy = self.conditions.policy(kind, alpha)
        given = self.conditions.subject.baseline()
        document = self.evaluate(given, spec, self.conditions.golden, policy, gates=gates, kept=self.kept)
        if document.interrupted:
            raise KeyboardInterrupt
        return document

    def _weigh(self, attempt: Attempt, spec: VariantSpec) -> Attempt:
        """Return an attempt that may still be used with the memory that it needs; others are not worth a process."""
        if self.weigh is None or self.conditions.golden is None or attempt.verdict == "reject":
            return attempt
        first, second = (
            msgspec.structs.replace(side, memory_bytes=self._memory_of(one))
            for side, one in ((attempt.validation.a, self.conditions.subject.in_use()), (attempt.validation.b, spec))
        )
        self.log.keep_baseline(first)
        return msgspec.structs.replace(
            attempt, validation=msgspec.structs.replace(attempt.validation, a=first, b=second)
        )

    def _memory_of(self, spec: VariantSpec) -> int | None:
        """Return the memory that a variant needs, measured once."""
        golden = self.conditions.golden
        if spec.text not in self._weighed and self.weigh is not None and golden is not None:
            items = golden.scale_to(spec.model.input_side)[: self.conditions.goal.batch]
            self._weighed[spec.text] = self.weigh(spec, fed(items))
        return self._weighed[spec.text]


def verdict_of(gates: Sequence[Gate]) -> tuple[Acceptance, GateName | None]:
    """Return what the gates of the golden set come to, and the one that rejects it or leaves it open."""
    rejected = next((gate for gate in gates if gate.outcome == "rejected"), None)
    open_one = next((gate for gate in gates if gate.outcome in OPEN), None)
    if rejected is not None:
        return "reject", rejected.name
    if open_one is not None or not any(gate.name == "accuracy" and gate.outcome == "passed" for gate in gates):
        return "inconclusive", (open_one.name if open_one else "accuracy")
    return "accept", None


def fails_by_answers(attempt: Attempt) -> bool:
    """Return whether it was rejected, or left open by the golden set, for what it answers; now or before."""
    return attempt.verdict != "accept" and (
        attempt.gate in ("parity", "accuracy", "robustness") or attempt.drop is not None
    )

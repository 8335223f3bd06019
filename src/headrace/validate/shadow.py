"""What came of running a candidate beside the model in use, on the traffic that really comes.

A golden set is what somebody chose once; traffic is what it is. Nobody knows the right answers there, so what is tested is
whether both give the same: a changed answer may have been wrong before, so that the share of changed answers bounds the harm.
What is the same is decided by what answers mean: classes, detections, text, masks, embeddings (`meaning_choice`). A kind of
answer that is surely lost, such as one class, is a reason to roll back however rare it is (`sure_difference`).
The test may be looked at at any time (`noninferiority`), and so may the times of calls, pair by pair on the same batch
(`median_sequence`). They are no fair race: the candidate runs at the lowest priority beside a pipeline that uses the same
cores. What is faster there is faster; what is slower there may be so for that alone, so that it is a reason to keep what is in
use and to look, never to reject.
"""

from __future__ import annotations

import math
import threading
from typing import Any, Literal

import numpy as np

from headrace.base.formatting import pluralize
from headrace.base.meaning import NOTHING_DECLARED, Declared
from headrace.base.units import format_duration
from headrace.pipeline.shadow import Failures
from headrace.runs.formats.shadow import ShadowDocument
from headrace.validate.agreement import Agreement
from headrace.validate.failure_rate import MOST_FAILING, judge_failures
from headrace.validate.first_answers import begin_agreement
from headrace.validate.meanings import Detections
from headrace.validate.median_sequence import median_interval
from headrace.validate.noninferiority import DropFinding, judge_drop
from headrace.validate.parity import has_broken, num_broken
from headrace.validate.sure_difference import SureDifference

Advice = Literal["promote", "keep", "roll back"]

#: Batches of which the times are kept: bounded; where one stops does not matter to the interval.
_MOST_TIMES = 4096
_MOST_ITEMS = 1_000_000
NO_FAILURES = Failures()


class ShadowRecord:
    """Collects what both answered; thread-safe. `add` is a `Compare` of `headrace.pipeline.shadow`.

    Args:
        candidate: The variant, in words.
        max_disagreement: Share of changed answers that is acceptable.
    """

    def __init__(self, candidate: str, max_disagreement: float) -> None:
        self._candidate = candidate
        self._margin = max_disagreement
        self._changed: list[np.ndarray] = []
        self._num_items = 0
        self._num_batches = 0
        self._times: list[float] = []
        self._seconds: list[tuple[float, float]] = []
        self._broken = 0
        self._agreement: Agreement | None = None
        self._unknown = ""
        self._difference: SureDifference | None = None
        self._lock = threading.Lock()

    def add(
        self,
        incumbent: Any,
        candidate: Any,
        incumbent_seconds: float,
        candidate_seconds: float,
        declared: Declared = NOTHING_DECLARED,
    ) -> np.ndarray:
        """Note one batch that both answered, and return (items,) 1.0 where the candidate gives another answer.

        Raises:
            ValueError: If the candidate's answers cannot be held against the others.
        """
        with self._lock:
            if self._agreement is None:
                self._agreement, self._unknown = begin_agreement(incumbent, declared)
                self._difference = SureDifference(self._agreement.meaning, self._agreement.name)
                self._agreement.on_parts = self._difference.add
            changed = self._agreement.add(incumbent, candidate)
            # Of detections whole calls: an image alone has an axis of items no more.
            count = has_broken if isinstance(self._agreement.meaning, Detections) else num_broken
            self._num_batches += 1
            self._broken += max(0, count(candidate) - count(incumbent))
            if self._num_items < _MOST_ITEMS:
                self._changed.append(changed)
                self._num_items += len(changed)
            if len(self._times) < _MOST_TIMES and incumbent_seconds > 0 and candidate_seconds > 0:
                self._times.append(math.log(incumbent_seconds / candidate_seconds))
                self._seconds.append((incumbent_seconds, candidate_seconds))
        return changed

    def document(self, num_passed_by: int = 0, failures: Failures = NO_FAILURES) -> ShadowDocument:
        """Return what is known so far, and what to do.

        Args:
            num_passed_by: Batches that the candidate did not see.
            failures: Of its calls.
        """
        with self._lock:
            changed = np.concatenate(self._changed) if self._changed else np.empty(0)
            times, seconds, broken = list(self._times), list(self._seconds), self._broken
            agreement, unknown = self._agreement, self._unknown
            lost = self._difference.explain() if self._difference else None
            doubt = self._difference.explain_doubt() if self._difference else None
            num_calls = self._num_batches + failures.num
        found = judge_drop(-changed, self._margin)
        ratio = median_interval(times)
        speed = None if ratio is None else (math.exp(ratio.low), math.exp(ratio.mid), math.exp(ratio.high))
        share = f"{found.drop:.2%} of {found.num_items:,} answers changed, {self._margin:.2%} are allowed"
        if agreement is not None:
            share += f" (compared as {agreement.meaning.name})"
        failing = judge_failures(failures.num, num_calls)
        told = _format_failures(failures, num_calls, failing)
        advice, says = _advice(broken, found, share, speed, may_fail=failing == "not known")
        if unknown and found.drop > 0 and not broken:
            advice, says = "keep", f"{share}; {unknown}"
        elif advice != "roll back" and lost:
            advice, says = "roll back", f"{lost}; {share}"
        elif advice != "roll back" and doubt:
            advice, says = "keep", f"{says}; {doubt}"
        if failures.has_stopped or failing == "more":
            advice, says = "roll back", told
        elif told:
            says += f"; {told}"
        if speed is not None:
            says += (
                f"; a call takes {format_duration(float(np.median([b for _, b in seconds])))} beside the pipeline, at the "
                f"lowest priority, against {format_duration(float(np.median([a for a, _ in seconds])))}: {speed[1]:.2f} times "
                f"as fast ({speed[0]:.2f} to {speed[2]:.2f})"
            )
        return ShadowDocument(
            candidate=self._candidate,
            num_items=found.num_items,
            num_passed_by=num_passed_by,
            disagreement=found.drop,
            low=max(0.0, found.low),
            high=found.high,
            max_disagreement=self._margin,
            broken=broken,
            num_failed=failures.num,
            speed=speed,
            advice=advice,
            says=says,
        )


def _format_failures(failures: Failures, num_calls: int, failing: str) -> str:
    """Return in words what of its calls failed; nothing where none did."""
    if not failures.num:
        return ""
    said = f"the candidate failed in {failures.num:,} of {pluralize(num_calls, 'call')}, at last with: {failures.last}"
    if failures.has_stopped:
        return f"{said}; it was called no more after so many in a row"
    known = {"more": "more than that for sure", "less": "less for sure", "not known": "more or less is not known"}
    return f"{said}; {MOST_FAILING:.1%} are allowed, {known[failing]}"


def _advice(
    broken: int, found: DropFinding, share: str, speed: tuple[float, float, float] | None, *, may_fail: bool
) -> tuple[Advice, str]:
    """Return what to do, and why: a candidate is promoted that surely answers alike and surely takes less time.

    Args:
        broken: Answers that hold a NaN or an infinity.
        found: Of the changed answers.
        share: The same in words.
        speed: Low, median, high.
        may_fail: Whether it fails and may do so more often than is allowed.
    """
    if broken:
        return "roll back", f"{broken} of its answers hold a NaN or an infinity"
    if found.outcome == "rejected":
        return "roll back", f"{share}: more than that for sure"
    if found.outcome == "inconclusive":
        more = f"about {found.more_items:,} more would tell" if found.more_items else "more items would tell"
        return "keep", f"{share}: not decided, {more}"
    if may_fail:
        return "keep", f"{share}: less for sure"
    if speed is None:
        return "keep", f"{share}: less for sure; too few calls were timed to tell whether it is faster"
    if speed[0] <= 1.0:
        kind = "slower here" if speed[2] < 1.0 else "not surely faster"
        return "keep", f"{share}: less for sure; but {kind}, and beside a pipeline nobody can tell by how much"
    return "promote", f"{share}: less for sure; and faster for sure"

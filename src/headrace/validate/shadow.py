"""What came of running a candidate beside the model in use, on the traffic that really comes.

A golden set is what somebody chose once; traffic is what it is. Nobody knows the right answers there, so what is tested is
whether both give the same: a changed answer may have been wrong before, so that the share of changed answers bounds the harm.
Detections are the same where each finds what the other is sure of (`same_detections`).
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

from headrace.base.units import format_duration
from headrace.base.words import counted
from headrace.pipeline.shadow import Failures
from headrace.runs.formats.shadow import ShadowDocument
from headrace.validate.detections import LAYOUTS
from headrace.validate.failures import MOST_FAILING, judge_failures
from headrace.validate.median_sequence import median_interval
from headrace.validate.noninferiority import Decision, Finding, judge_drop
from headrace.validate.parity import BANDS, compare_outputs, has_broken, num_broken, top_1
from headrace.validate.same_detections import SURE, changed_detections

Advice = Literal["promote", "keep", "roll back"]

#: Batches of which the times are kept: bounded; where one stops does not matter to the interval.
_MOST_TIMES = 4096
_MOST_ITEMS = 1_000_000
#: Where answers are no scores, one further off than this is another answer.
_SAME = 5 * BANDS["int8"]
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
        self._of_detections = False
        self._lock = threading.Lock()

    def add(self, incumbent: Any, candidate: Any, incumbent_seconds: float, candidate_seconds: float) -> None:
        """Note one batch that both answered."""
        detections = changed_detections(incumbent, candidate)
        changed = _changed(incumbent, candidate) if detections is None else detections
        # Of detections whole calls: an image alone has an axis of items no more.
        count = num_broken if detections is None else has_broken
        with self._lock:
            self._num_batches += 1
            self._of_detections = detections is not None
            self._broken += max(0, count(candidate) - count(incumbent))
            if self._num_items < _MOST_ITEMS:
                self._changed.append(changed)
                self._num_items += len(changed)
            if len(self._times) < _MOST_TIMES and incumbent_seconds > 0 and candidate_seconds > 0:
                self._times.append(math.log(incumbent_seconds / candidate_seconds))
                self._seconds.append((incumbent_seconds, candidate_seconds))

    def document(self, num_passed_by: int = 0, failures: Failures = NO_FAILURES) -> ShadowDocument:
        """Return what is known so far, and what to do.

        Args:
            num_passed_by: Batches that the candidate did not see.
            failures: Of its calls.
        """
        with self._lock:
            changed = np.concatenate(self._changed) if self._changed else np.empty(0)
            times, seconds, broken = list(self._times), list(self._seconds), self._broken
            num_calls = self._num_batches + failures.num
        found = judge_drop(-changed, self._margin)
        ratio = median_interval(times)
        speed = None if ratio is None else (math.exp(ratio.low), math.exp(ratio.mid), math.exp(ratio.high))
        share = f"{found.drop:.2%} of {found.num_items:,} answers changed, {self._margin:.2%} are allowed"
        if self._of_detections:
            share += (
                f" (matched as detections: what the one is sure of, score {SURE:g} or more, the other does not find)"
            )
        failing = judge_failures(failures.num, num_calls)
        told = _told(failures, num_calls, failing)
        advice, says = _advice(broken, found, share, speed, may_fail=failing == "not known")
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


def _told(failures: Failures, num_calls: int, failing: str) -> str:
    """Return in words what of its calls failed; nothing where none did."""
    if not failures.num:
        return ""
    said = f"the candidate failed in {failures.num:,} of {counted(num_calls, 'call')}, at last with: {failures.last}"
    if failures.has_stopped:
        return f"{said}; it was called no more after so many in a row"
    known = {"more": "more than that for sure", "less": "less for sure", "not known": "more or less is not known"}
    return f"{said}; {MOST_FAILING:.1%} are allowed, {known[failing]}"


def _advice(
    broken: int, found: Finding, share: str, speed: tuple[float, float, float] | None, *, may_fail: bool
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
    if found.decision is Decision.REJECT:
        return "roll back", f"{share}: more than that for sure"
    if found.decision is Decision.INCONCLUSIVE:
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


def _changed(incumbent: Any, candidate: Any) -> np.ndarray:
    """Return (items,) 1.0 where the two give different answers."""
    found = compare_outputs(incumbent, candidate)
    if found.shapes:
        raise ValueError(
            f"it answers in another shape: {'; '.join(found.shapes)}. Only detections can be matched whatever their number, "
            f"and they are read from {LAYOUTS}"
        )
    first, second = top_1(incumbent), top_1(candidate)
    if first is not None and second is not None:
        return np.asarray(first != second, float)
    return np.full(found.num_items, float(found.worst_l2 > _SAME))

"""What came of running a candidate beside the model in use, on the traffic that really comes.

A golden set is what somebody chose once; traffic is what it is. Nobody knows the right answers there, so what is tested is
whether both give the same: a changed answer may have been wrong before, so that the share of changed answers bounds the harm.
Detections are the same where each finds what the other is sure of (`same_detections`).
The test may be looked at at any time (`noninferiority`).
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from headrace.base.units import format_duration
from headrace.runs.formats.shadow import ShadowDocument
from headrace.validate.detections import LAYOUTS
from headrace.validate.intervals import FEWEST_PAIRS, centre, paired_interval
from headrace.validate.noninferiority import Decision, judge_drop
from headrace.validate.parity import BANDS, compare_outputs, has_broken, num_broken, top_1
from headrace.validate.same_detections import SURE, changed_detections

#: Batches of which the times are kept: enough for an interval, and bounded.
_MOST_TIMES = 4096
_MOST_ITEMS = 1_000_000
#: Where answers are no scores, one further off than this is another answer.
_SAME = 5 * BANDS["int8"]


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
            self._of_detections = detections is not None
            self._broken += max(0, count(candidate) - count(incumbent))
            if self._num_items < _MOST_ITEMS:
                self._changed.append(changed)
                self._num_items += len(changed)
            if len(self._times) < _MOST_TIMES and incumbent_seconds > 0 and candidate_seconds > 0:
                self._times.append(math.log(incumbent_seconds / candidate_seconds))
                self._seconds.append((incumbent_seconds, candidate_seconds))

    def document(self, num_passed_by: int = 0, failure: str = "") -> ShadowDocument:
        """Return what is known so far, and what to do.

        Args:
            num_passed_by: Batches that the candidate did not see.
            failure: What it raised last.
        """
        with self._lock:
            changed = np.concatenate(self._changed) if self._changed else np.empty(0)
            times, seconds, broken = list(self._times), list(self._seconds), self._broken
        found = judge_drop(-changed, self._margin)
        ratio = paired_interval(times) if len(times) >= FEWEST_PAIRS else None
        speed = None if ratio is None else (math.exp(ratio.low), math.exp(centre(times)), math.exp(ratio.high))
        share = f"{found.drop:.2%} of {found.num_items:,} answers changed, {self._margin:.2%} are allowed"
        if self._of_detections:
            share += (
                f" (matched as detections: what the one is sure of, score {SURE:g} or more, the other does not find)"
            )
        if failure:
            advice, says = "reject", f"the candidate failed: {failure}"
        elif broken:
            advice, says = "reject", f"{broken} of its answers hold a NaN or an infinity"
        elif found.decision is Decision.REJECT:
            advice, says = "reject", f"{share}: more than that for sure"
        elif found.decision is Decision.INCONCLUSIVE:
            more = f"about {found.more_items:,} more would tell" if found.more_items else "more items would tell"
            advice, says = "wait", f"{share}: not decided, {more}"
        else:
            advice, says = "promote", f"{share}: less for sure"
        if speed is not None:
            says += (
                f"; a call takes {format_duration(float(np.median([b for _, b in seconds])))} beside the pipeline, against "
                f"{format_duration(float(np.median([a for a, _ in seconds])))}"
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
            speed=speed,
            advice=advice,  # type: ignore[arg-type]
            says=says,
        )


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

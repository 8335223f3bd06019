"""The accuracy gate for what is counted item by item and worth something only added up: mAP of boxes, IoU of masks.

Both variants answer the whole golden set, and what each answer counts for is settled once. A draw of the items then only adds
up: thousands of draws take seconds. One set of draws serves the whole set and each class; each slice of the set has its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.formatting import pluralize
from headrace.runs.formats.variants import SliceResult, WorstItem
from headrace.validate import measuring
from headrace.validate.detections import Boxes, true_boxes
from headrace.validate.golden_gate import MOST_WORST, GateResult, GoldenGate, set_says, set_values
from headrace.validate.lost_detections import fewer_found, num_found, worst_detections
from headrace.validate.lost_pixels import item_overlaps, worst_masks
from headrace.validate.metrics import OfDraws, Recount
from headrace.validate.parity import has_broken
from headrace.validate.segmentation import read_classes
from headrace.validate.set_noninferiority import FEWEST_DRAWS, SetFinding, decide_set, draw
from headrace.validate.slices import worst_of

Array = np.ndarray
Calls = Callable[[], Iterator[Any]]
Again = Callable[[Array], tuple[Any, Any] | None]
"""(places of items) -> what both answer to them, each as of one call; None if it was interrupted."""

#: An incumbent worth less finds next to nothing: then classes, boxes or preprocessing are another's, and no drop shows.
_LEAST_VALUE = 0.05
#: Parts share it, as in `slices`.
_ALPHA = 0.05
#: A part of fewer items is not judged: draws of so few tell little about others.
FEWEST_IN_PART = 20


@dataclass(slots=True, kw_only=True)
class PooledGate(GoldenGate):
    """Judges one pair of variants.

    Args:
        recount: Of the metric.
        again: Asks both about some items once more, whose masks are drawn; None: no masks are.
    """

    recount: Recount
    again: Again | None = None

    def judge(self, a: Calls, b: Calls) -> GateResult:
        """Return what the gate says.

        Raises:
            SettingsError: If truth or answers are not what the metric reads.
        """
        name, absent = self.policy.metric.name, [one for one in self.recount.needs if one not in self.golden.truth]
        if absent:
            needs = " and ".join(f"truth_{one}" for one in self.recount.needs)
            told = f'{name} needs {needs} in an .npz file, or "boxes" or "mask" in labels.jsonl'
            return self.conclude("skipped", f"not known: {told}, and {self.golden.name} has none")
        first, second = self.kept.once("accuracy", lambda: self._ask(a)), self._ask(b)
        if first is None or second is None:
            return self.conclude("inconclusive", "interrupted")
        if second[1] > first[1]:
            says = f"{pluralize(second[1], 'call')} of B give a NaN or an infinity, of A {first[1]}"
            return self.conclude("rejected", says, {"broken": float(second[1])})
        judged = self._judge_answers(*(self.recount.of_draws(kept, self.golden.truth) for kept, _ in (first, second)))
        if self.recount.any_order:
            return self._add_lost(judged, first[0], second[0])
        judged.worst = self._worst_masks(first[0], second[0])
        return judged

    def _add_lost(self, judged: GateResult, a: list[Boxes], b: list[Boxes]) -> GateResult:
        """Return it with the share of right detections that is lost, and the items that lost most."""
        truth = true_boxes(self.golden.truth)
        found_a, found_b = (np.array(list(map(num_found, truth, one))) for one in (a, b))
        fewer = fewer_found(found_a, found_b, self.golden.sources)
        if fewer is not None:
            told = dict(zip(("fewer_found_low", "fewer_found", "fewer_found_high"), fewer, strict=True))
            judged.gate = msgspec.structs.replace(judged.gate, values={**judged.gate.values, **told})
        judged.worst = worst_detections(
            truth, a, b, found_a - found_b, most=MOST_WORST, files=self.golden.files or (), name=self.class_name
        )
        return judged

    def _worst_masks(self, a: list[Array], b: list[Array]) -> tuple[WorstItem, ...]:
        """Return the items whose masks lost most. Masks of a whole set need not fit into memory: these are asked for again."""
        first, second = item_overlaps(a), item_overlaps(b)
        places = np.argsort(second - first, kind="stable")[:MOST_WORST]
        places = places[first[places] > second[places]]
        answers = self.again(places) if self.again and len(places) and not self.is_interrupted() else None
        if answers is None:
            return ()
        named_a, named_b = map(read_classes, answers)
        assert named_a is not None, "they were counted before"
        assert named_b is not None, "they were counted before"
        masks = (self.golden.truth["mask"][places], named_a, named_b)
        return worst_masks(
            places.tolist(), first, second, masks=masks, files=self.golden.files or (), name=self.class_name
        )

    def _ask(self, calls: Calls) -> tuple[list[Any], int] | None:
        """Return what is kept of each item, and how many calls gave what is no number; None if it was interrupted."""
        kept: list[Any] = []
        broken = 0
        for answers in calls():
            places = slice(len(kept), len(kept) + self.policy.batch)
            broken += has_broken(answers)
            kept += self.recount.kept(answers, {one: self.golden.truth[one][places] for one in self.recount.needs})
        return None if self.is_interrupted() or len(kept) < len(self.golden) else (kept, broken)

    def _judge_answers(self, a: OfDraws, b: OfDraws) -> GateResult:
        policy, size = self.policy, len(self.golden)
        if not len(a.classes):
            raise SettingsError(
                f"{self.golden.name}: nothing is marked in any item; {policy.metric.name} is of nothing"
            )

        def values(places: Array) -> tuple[Array, Array]:
            counts = np.bincount(places, minlength=size)
            first, second = a(counts), b(counts)
            return tuple(np.append(_mean(one), one) for one in (first, second))  # type: ignore[return-value]

        drawn = draw(values, size, self.golden.sources, stop=self.is_interrupted)
        if self.is_interrupted():
            return self.conclude("inconclusive", "interrupted")
        found = decide_set(drawn, 0, policy.max_drop, policy.alpha)
        told, says = set_values(found, policy.alpha), set_says(found, policy, size)
        if found.a < _LEAST_VALUE:
            doubt = f"A itself finds next to nothing: {self.recount.conventions}, and preprocessing must be the model's"
            return self.conclude("inconclusive", f"{doubt} ({says})", told)
        classes = {place: a.images_with(place) for place in range(len(a.classes))}
        judged = {place: items for place, items in classes.items() if len(items) >= FEWEST_IN_PART}
        slices = self._slices()
        alpha = _ALPHA / max(1, len(judged) + len(slices))
        parts = [
            (
                f"class {self.class_name(a.classes[place])}",
                len(items),
                decide_set(drawn, place + 1, policy.max_slice_drop, alpha),
            )
            for place, items in judged.items()
        ]
        of_slices = [
            (name, len(items), self._judge_slice(a, b, items, alpha, len(slices))) for name, items in slices.items()
        ]
        self._note_undrawn([name for name, _, one in of_slices if one.draws < FEWEST_DRAWS], len(slices))
        parts += of_slices
        if len(judged) < len(classes):
            few = [str(self.class_name(a.classes[place])) for place in classes if place not in judged]
            self.warnings.append(
                f"{len(few)} of {len(classes)} classes are in fewer than {FEWEST_IN_PART} items, and not looked at alone: "
                + ", ".join(few[:8])
            )
        every = tuple(_result(*one) for one in parts if one[2].draws >= FEWEST_DRAWS)
        lost = worst_of(every)
        if found.outcome != "rejected" and lost is not None:
            told["slice_drop"] = lost.drop
            says = (
                f"in the part `{lost.name}` ({pluralize(lost.num_items, 'item')}) it drops by {100 * lost.drop:.1f} points, "
                f"{100 * policy.max_slice_drop:g} are allowed; over all: {says}"
            )
            said = self.conclude("rejected", says, told, {"max_slice_drop": policy.max_slice_drop})
        else:
            said = self.conclude(found.outcome, says, told)
        said.slices = every
        return said

    def _slices(self) -> dict[str, Array]:
        """Return the places of the items of each slice that is large enough."""
        every = {
            f"{name} {value}": np.flatnonzero(values == value)
            for name, values in self.golden.slices.items()
            for value in np.unique(values)
        }
        return {name: items for name, items in every.items() if len(items) >= FEWEST_IN_PART}

    def _judge_slice(self, a: OfDraws, b: OfDraws, items: Array, alpha: float, num_slices: int) -> SetFinding:
        def values(places: Array) -> tuple[float, float]:
            counts = np.bincount(items[places], minlength=len(self.golden))
            return _mean(a(counts)), _mean(b(counts))

        sources = None if self.golden.sources is None else self.golden.sources[items]
        seconds = measuring.current().slice_seconds / num_slices
        drawn = draw(values, len(items), sources, stop=self.is_interrupted, seconds=seconds)
        return decide_set(drawn, 0, self.policy.max_slice_drop, alpha)

    def _note_undrawn(self, names: list[str], num_slices: int) -> None:
        if names:
            self.warnings.append(
                f"{len(names)} of {num_slices} slices were not looked at alone, for nothing is marked in them, or "
                f"{measuring.current().slice_seconds:.0f} s for all slices were too few for {FEWEST_DRAWS} draws of each: "
                + ", ".join(names[:8])
            )


def _result(name: str, num_items: int, found: SetFinding) -> SliceResult:
    """Return a finding about a part as a report has it."""
    a, b = (value if math.isfinite(value) else None for value in (found.a, found.b))
    drop = found.drop if math.isfinite(found.drop) else 0.0
    return SliceResult(
        name=name, num_items=num_items, a=a, b=b, drop=drop, low=found.low, high=found.high, outcome=found.outcome
    )


def _mean(values: Array) -> float:
    """Return the mean over classes that the draw has; NaN if it has none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")

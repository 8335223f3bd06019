"""The last gate of a variant by itself: are its answers as good as the incumbent's, within a margin?

Both answer the whole golden set. Where items have scores (right or not, or a number from 0 to 1) they are compared item by
item; where only the set has a value, by drawing items again. Where nobody knows what is right the two must agree by what their
answers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.formatting import pluralize
from headrace.base.meaning import Meaning
from headrace.runs.formats.variants import SliceResult, WorstItem
from headrace.validate.agreement import Agreement, make_namer
from headrace.validate.answer_cache import AnswerCache
from headrace.validate.detections import are_detections
from headrace.validate.golden import Golden
from headrace.validate.golden_gate import MOST_WORST, GateResult, GoldenGate, set_says, set_values
from headrace.validate.label_checks import doubt_of_labels
from headrace.validate.metrics import Truth, score_outputs
from headrace.validate.noninferiority import DropFinding, judge_drop, largest_discordance
from headrace.validate.parity import has_broken, join_answers, num_broken, num_classes, top_1
from headrace.validate.policy import Policy
from headrace.validate.pooled_accuracy import Again, PooledGate
from headrace.validate.set_noninferiority import judge_set
from headrace.validate.slices import FEWEST_SOURCES, drop_by_source, find_too_small, slices_of, worst_of

Calls = Callable[[], Iterator[Any]]


@dataclass(slots=True)
class _Answers:
    """What a variant answered to the golden set."""

    first: np.ndarray | None
    """(items,) classes; None where the answers are no scores."""
    scores: np.ndarray | None
    """(items,) by the metric; None where it has none for single items."""
    outputs: Any
    """Of all items; None where the metric does not need them together."""
    broken: int
    """Items with a NaN or an infinity."""
    num_classes: int


def judge_accuracy(
    a: Calls,
    b: Calls,
    golden: Golden,
    policy: Policy,
    *,
    names: list[str] | None,
    is_interrupted: Callable[[], bool],
    kept: AnswerCache | None = None,
    again: Again | None = None,
    meaning: Meaning | None = None,
) -> GateResult:
    """Return whether B's answers to a golden set are as good as A's.

    Args:
        a: Gives A's answers, batch by batch, in the order of the set.
        b: The same of B.
        golden: What both answer.
        policy: What is asked of B.
        names: Of the classes in the order of the output; None: not known.
        is_interrupted: Asked between batches.
        kept: What A answered to this set, asked by this policy's metric and batch; None: nothing is known.
        again: Asks both about some items once more, so that the worst masks can be drawn; None: they are not.
        meaning: Of the answers, fitted, by which they are compared where nothing is labelled; None: not known.

    Raises:
        SettingsError: If the metric does not fit the answers.
    """
    kept = kept or AnswerCache(0)
    if policy.metric.recount is not None and not golden.is_made_up:
        return PooledGate(
            golden=golden, policy=policy, names=names, is_interrupted=is_interrupted, kept=kept,
            recount=policy.metric.recount, again=again,
        ).judge(a, b)  # fmt: skip
    return _Gate(
        golden=golden, policy=policy, names=names, is_interrupted=is_interrupted, kept=kept, meaning=meaning
    ).judge(a, b)


@dataclass(slots=True, kw_only=True)
class _Gate(GoldenGate):
    """Asks item by item, or the set as a whole."""

    meaning: Meaning | None = None

    def judge(self, a: Calls, b: Calls) -> GateResult:
        golden, metric = self.golden, self.policy.metric
        if golden.is_made_up:
            return self.conclude("skipped", "not known: there is no golden set; give one with --golden")
        if metric.needs_classes and golden.labels is None and not metric.is_default:
            return self.conclude("skipped", f"not known: {metric.name} needs labels, and {golden.name} has none")
        if metric.is_default and golden.labels is None and {"boxes", "mask"} & set(golden.truth):
            says = (
                f"not known: {golden.name} has boxes or masks and no labels; score them with --metric map, map50 or iou"
            )
            return self.conclude("skipped", says)
        if metric.is_default and golden.labels is None and self.meaning is not None:
            return self._judge_meaning(a, b)
        first, second = self.kept.once("accuracy", lambda: self._answers(a)), self._answers(b)
        if self.is_interrupted() or first is None or second is None:
            return self.conclude("inconclusive", "interrupted")
        if second.broken > first.broken:
            says = f"{second.broken} of {len(golden)} answers of B hold a NaN or an infinity, of A {first.broken}"
            return self.conclude("rejected", says, {"broken": float(second.broken)})
        if metric.needs_classes and (first.first is None or second.first is None):
            return self.conclude(
                "skipped",
                "not known: the answers are no scores of classes; give what is true with --metric map, map50 or iou, or "
                "your own as MODULE:FUNCTION",
            )
        if first.scores is None or second.scores is None:
            return self._judge_set(first, second)
        return self._judge_items(first, second)

    # --- asking

    def _judge_meaning(self, a: Calls, b: Calls) -> GateResult:
        """Return whether both answer the same, by what the answers mean."""
        assert self.meaning is not None
        first = self.kept.once(("accuracy", repr(self.meaning)), lambda: self._read(a))
        second = self._read(b)
        if first is None or second is None:
            return self.conclude("inconclusive", "interrupted")
        if second[1] > first[1]:
            says = f"{pluralize(second[1], 'call')} of B give a NaN or an infinity, of A {first[1]}"
            return self.conclude("rejected", says, {"broken": float(second[1])})
        agreement = Agreement(self.meaning, make_namer(self.names))
        changed = agreement.add_read(first[0], second[0])
        why = agreement.explain_difference_of_parts()
        if why is not None:
            return self.conclude("rejected", f"{why} ({agreement.says()})", {"agreement": agreement.mean})
        before, after = (_Answers(None, one, None, 0, 0) for one in (np.zeros_like(changed), changed))
        return self._judge_items(before, after)

    def _read(self, calls: Calls) -> tuple[list[Any], int] | None:
        """Return the answer to each item, and how many calls gave what is no number; None if it was interrupted."""
        assert self.meaning is not None
        read: list[Any] = []
        broken = 0
        for answers in calls():
            broken += has_broken(answers)
            read += self.meaning.read(answers)
        return None if self.is_interrupted() or len(read) < len(self.golden) else (read, broken)

    def _answers(self, calls: Calls) -> _Answers | None:
        """Return what a variant answered; None if it was interrupted."""
        firsts: list[np.ndarray | None] = []
        scores: list[np.ndarray] = []
        outputs: list[Any] = []
        broken = classes = start = 0
        for answers in calls():
            found, size = top_1(answers), _size(answers)
            if are_detections(answers):  # of one item they come without an axis of items
                size = min(self.policy.batch, len(self.golden) - start)
                broken += has_broken(answers)
            else:
                broken += num_broken(answers)
            firsts.append(found)
            classes = num_classes(answers)
            if self.policy.metric.needs_all:
                outputs.append(answers)
            elif found is not None:
                scores.append(self._scores(answers, slice(start, start + size), found))
            start += size
        if self.is_interrupted() or start < len(self.golden):
            return None
        known = [one for one in firsts if one is not None]
        first = np.concatenate(known) if known and len(known) == len(firsts) else None
        if not self.policy.metric.needs_all:
            return _Answers(first, np.concatenate(scores) if scores else None, None, broken, classes)
        together = join_answers(outputs)
        if self.policy.metric.needs_classes and first is None:
            return _Answers(None, None, None, broken, classes)
        value = score_outputs(self.policy.metric, together, self._truth(slice(None)), start)
        return _Answers(first, None if isinstance(value, float) else value, together, broken, classes)

    def _scores(self, answers: Any, places: slice, found: np.ndarray) -> np.ndarray:
        if self.policy.metric.is_default and self.golden.labels is None:
            return found.astype(float)  # classes: compared with one another
        value = score_outputs(self.policy.metric, answers, self._truth(places), len(found))
        return np.broadcast_to(value, len(found))

    def _truth(self, places: slice | np.ndarray) -> Truth:
        labels = {} if self.golden.labels is None else {"labels": self.golden.labels[places]}
        return {**labels, **{name: array[places] for name, array in self.golden.truth.items()}}

    # --- item by item

    def _judge_items(self, a: _Answers, b: _Answers) -> GateResult:
        policy, margin, labels = self.policy, self.policy.max_drop, self.golden.labels
        assert a.scores is not None
        assert b.scores is not None
        agreement = policy.metric.is_default and labels is None
        differences = -np.not_equal(a.scores, b.scores).astype(float) if agreement else b.scores - a.scores
        # In a random order: files are sorted by class, and the first class alone says nothing of the others.
        found = judge_drop(np.random.default_rng(0).permutation(differences), margin, policy.alpha, is_all=True)
        means = None if agreement else (float(a.scores.mean()), float(b.scores.mean()))
        values = {
            "drop": found.drop, "low": found.low, "high": found.high, "discordance": found.discordance,
            "a": means[0] if means else None, "b": means[1] if means else None, "alpha": policy.alpha,
        }  # fmt: skip
        limits: dict[str, float] = {}
        worst = self._worst(a, b, differences)
        if labels is not None and policy.metric.needs_classes and a.first is not None:
            doubt = doubt_of_labels(labels, a.first, a.num_classes)
            if doubt is not None:
                return self.conclude("inconclusive", doubt, values)
        outcome, says = found.outcome, self._says(found, means)
        slices = self._slices(differences, None if agreement else (a.scores, b.scores))
        if outcome != "rejected":
            hidden = self._find_hidden_drop(slices, says, values, limits)
            if hidden is not None:
                return self.conclude("rejected", hidden, values, limits, worst, slices)
        self._note_sources(differences, values)
        return self.conclude(outcome, says, values, limits, worst, slices)

    def _slices(self, differences: np.ndarray, scores: tuple[np.ndarray, np.ndarray] | None) -> tuple[SliceResult, ...]:
        return tuple(slices_of(differences, self._parts(), self.policy.max_slice_drop, scores))

    def _find_hidden_drop(
        self, slices: Iterable[SliceResult], says: str, values: dict[str, float | None], limits: dict[str, float]
    ) -> str | None:
        """Return in words the part of the set in which B surely drops too much; None if there is none."""
        most, hidden = self.policy.max_slice_drop, worst_of(slices)
        if hidden is None:
            small = find_too_small(self._parts(), most)
            if small:
                named = ", ".join(f"{name} ({num})" for name, num in small[:4]) + (" ..." if len(small) > 4 else "")
                self.warnings.append(
                    f"{pluralize(len(small), 'part')} of the golden set could not show a drop even if B were wrong throughout: "
                    f"{named} items; more would"
                )
            return None
        values["slice_drop"], limits["max_slice_drop"] = hidden.drop, most
        return (
            f"in the part `{hidden.name}` ({pluralize(hidden.num_items, 'item')}) it drops by {100 * hidden.drop:.1f} points, "
            f"{100 * most:g} are allowed; over all: {says}"
        )

    def _parts(self) -> dict[str, np.ndarray]:
        """Return what the golden set is divided by: its classes, and its own slices."""
        labels, names = self.golden.labels, self.names
        if labels is not None and names is not None and len(set(names)) == len(names):  # two of one name stay two
            labels = np.array([self.class_name(label) for label in labels])
        classes = {} if labels is None else {"class": labels}
        return {**classes, **self.golden.slices}

    def _note_sources(self, differences: np.ndarray, values: dict[str, float | None]) -> None:
        if self.golden.sources is None:
            return
        interval = drop_by_source(differences, self.golden.sources)
        if interval is None:
            self.warnings.append(
                f"the golden set is from fewer than {FEWEST_SOURCES} sources: it says little about others"
            )
            return
        values["source_low"], values["source_high"] = interval
        if interval[1] > self.policy.max_drop:
            self.warnings.append(
                f"with whole sources drawn anew it is {100 * interval[0]:+z.2f} to {100 * interval[1]:+z.2f} points: it hangs "
                "on a few of them; take items from more"
            )

    def _worst(self, a: _Answers, b: _Answers, differences: np.ndarray) -> tuple[WorstItem, ...]:
        """Return the items that lost most, as far as any lost."""
        order = np.argsort(differences, kind="stable")[:MOST_WORST]
        return tuple(
            WorstItem(
                item=int(place),
                file=self.golden.files[place] if self.golden.files else "",
                label="" if self.golden.labels is None else self.class_name(self.golden.labels[place]),
                a="" if a.first is None else self.class_name(a.first[place]),
                b="" if b.first is None else self.class_name(b.first[place]),
                loss=float(-differences[place]),
            )
            for place in order
            if differences[place] < 0
        )

    def _says(self, found: DropFinding, means: tuple[float, float] | None) -> str:
        metric, margin, alpha = self.policy.metric, self.policy.max_drop, self.policy.alpha
        if means is None:
            what = (
                f"another {'first ' if self._is_of_classes() else ''}answer for {found.discordance:.2%} of {found.num_items:,} "
                "items (labels would tell which is right)"
            )
        elif metric.is_default:
            what = f"{means[1]:.2%} right against {means[0]:.2%}, of {found.num_items:,} items"
        else:
            what = f"{metric.name} {means[1]:.4f} against {means[0]:.4f}, of {found.num_items:,} items"
        points = (
            f"drop {100 * found.drop:+z.2f} points ({100 * found.low:+z.2f} to {100 * found.high:+z.2f}, "
            f"{100 * (1 - alpha):.3g} % on both sides together)"
        )
        limit = f"{100 * margin:g} points are allowed"
        if found.outcome != "inconclusive":
            return f"{what}; {points}; {limit}, decided after {found.decided_after:,} items ({100 * alpha:.2g} % on its side)"
        enough = 100 * largest_discordance(margin, found.num_items, alpha)
        more = (
            f"about {found.more_items:,} more would decide it"
            if found.more_items
            else "no number of such items would decide it"
        )
        return (
            f"{what}; {points}; {limit}: undecided, {more} (so many can show it only up to {enough:.2g} % of differing "
            "answers)"
        )

    def _is_of_classes(self) -> bool:
        return self.meaning is None or self.meaning.name == "classes"

    # --- as a set

    def _judge_set(self, a: _Answers, b: _Answers) -> GateResult:
        policy, golden, metric = self.policy, self.golden, self.policy.metric

        def value(places: np.ndarray) -> tuple[float, float]:
            truth = self._truth(places)
            first, second = (score_outputs(metric, _take(one.outputs, places), truth, len(places)) for one in (a, b))
            return float(np.mean(first)), float(np.mean(second))

        found = judge_set(
            value, len(golden), golden.sources, policy.max_drop, policy.alpha, stop=self.is_interrupted
        )  # fmt: skip
        if self.is_interrupted():
            return self.conclude("inconclusive", "interrupted")
        values, says = set_values(found, policy.alpha), set_says(found, policy, len(golden))
        worst: tuple[WorstItem, ...] = ()
        slices: tuple[SliceResult, ...] = ()
        if a.first is not None and b.first is not None and golden.labels is not None:
            before, after = (np.equal(first, golden.labels).astype(float) for first in (a.first, b.first))
            worst = self._worst(a, b, after - before)
            limits: dict[str, float] = {}
            slices = self._slices(after - before, (before, after))
            if found.outcome != "rejected":
                hidden = self._find_hidden_drop(slices, says, values, limits)
                if hidden is not None:
                    return self.conclude("rejected", hidden, values, limits, worst, slices)
        else:
            self.warnings.append(
                f"{metric.name} has a value for the whole set alone: no part of it was looked at by itself"
            )
        return self.conclude(found.outcome, says, values, worst=worst, slices=slices)


def _size(outputs: Any) -> int:
    return len(next(iter(outputs.values()))) if isinstance(outputs, Mapping) else len(outputs)


def _take(outputs: Any, places: np.ndarray) -> Any:
    if isinstance(outputs, Mapping):
        return {name: array[places] for name, array in outputs.items()}
    return outputs[places]

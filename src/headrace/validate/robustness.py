"""Whether a candidate bears spoiled images worse than the incumbent does.

First answers are held against what is right, or without labels against the incumbent's: each kind of spoiling is a part of the
set like a class or the dark third, a drop beyond the wider margin that is sure rejects, and the probability of a false alarm is
shared among the kinds.

Other answers (boxes, text, masks, embeddings) are compared with the incumbent's by what they mean, as the parity gate does it.
Only the items count whose spoiling the incumbent itself bears, answering them as it does unspoiled: what two right variants
read in a line that nobody can read differs, and tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cv2
import numpy as np

from headrace.base.formatting import pluralize
from headrace.base.meaning import Meaning
from headrace.base.protocols import Model
from headrace.runs.formats.outcomes import Outcome
from headrace.validate.agreement import Agreement, explain_unknown
from headrace.validate.answer_cache import AnswerCache
from headrace.validate.corruptions import CORRUPTIONS, Pixels, corrupt
from headrace.validate.golden import Golden, spread
from headrace.validate.items import Feed, Items, describe_items, fed, main_array, replace_main
from headrace.validate.meaning_choice import find_meaning
from headrace.validate.meanings import Classes
from headrace.validate.noninferiority import judge_drop
from headrace.validate.parity import top_1
from headrace.validate.policy import Policy

_ALPHA = 0.05
#: Fewer items that the incumbent bears say nothing of a kind.
_FEWEST_BORNE = 8
#: Items that are answered to learn what answers mean.
_FITTED = 64
Call = Callable[[Feed], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """What was found."""

    outcome: Outcome
    says: str
    values: dict[str, float | None]
    """{`KIND_a`, `KIND_b`, `KIND_drop`}: shares of right answers, or without labels the share of changed ones as the drop.

    Of answers that are compared by their meaning also `KIND_agreement`, the mean over their parts, and `KIND_items`, those that
    the incumbent bears.
    """


def judge_robustness(
    models: tuple[Call, Call],
    golden: Golden,
    policy: Policy,
    *,
    items: int,
    stop: Callable[[], bool] = lambda: False,
    kept: AnswerCache | None = None,
    sides: tuple[int | None, int | None] = (None, None),
    meaning: Meaning | None = None,
) -> Robustness:
    """Return how two variants answer images that were spoiled.

    Args:
        models: Incumbent and candidate.
        golden: Its items are spoiled, at most so many, spread evenly; of several inputs the picture.
        policy: Its batch, and its margin for parts of the set.
        items: At most so many.
        stop: Asked before each kind.
        kept: What the incumbent answered to this set, asked by this policy's batch; None: nothing is known.
        sides: `input_side` of each; spoiled images are scaled to it, for cameras spoil them before the pipeline does.
        meaning: Of the answers, fitted to the incumbent's; None: not known.
    """
    pixels = _pixels(golden)
    if isinstance(pixels, str):
        return Robustness(outcome="skipped", says=pixels, values={})
    kept, places = kept or AnswerCache(0), spread(len(golden), items)
    chosen = golden.inputs[places]
    if meaning is None or isinstance(meaning, Classes):
        labels = None if golden.labels is None else golden.labels[places]
        judged: _ByMeaning | _ByFirsts = _ByFirsts(policy, labels, len(places))
    else:
        judged = _ByMeaning(policy, meaning, chosen, models[0])
    for kind in CORRUPTIONS:
        if stop():
            return Robustness(outcome="inconclusive", says="interrupted", values=judged.values)
        spoiled = replace_main(chosen, corrupt(main_array(chosen), kind, pixels))
        taken = [
            spoiled if side is None else _scale_items(spoiled, golden.scale_to(side)[places], pixels) for side in sides
        ]
        what = ("robustness", kind, items, judged.reads)
        first: Any = kept.once(what, partial(judged.answers, models[0], taken[0]))
        try:
            second: Any = judged.answers(models[1], taken[1])
        except ValueError as error:
            return Robustness(outcome="rejected", says=f"of {kind}, B's answers: {error}", values=judged.values)
        if first is None or second is None:
            return Robustness(outcome="skipped", says=_explain_no_scores(models[0], chosen), values={})
        judged.add(kind, first, second)
    return judged.summarize()


@dataclass(slots=True)
class _ByFirsts:
    """Compares first answers."""

    policy: Policy
    labels: np.ndarray | None
    num_items: int
    values: dict[str, float | None] = field(default_factory=dict)
    reads: str = ""
    failed: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def answers(self, model: Call, items: Items) -> np.ndarray | None:
        """Return the class of each item; None if the answers are no scores."""
        return _firsts(model, items, self.policy.batch)

    def add(self, kind: str, first: np.ndarray, second: np.ndarray) -> None:
        """Compare the answers to one kind."""
        if self.labels is None:
            differences = -np.not_equal(first, second).astype(float)
        else:
            a, b = (np.equal(one, self.labels).astype(float) for one in (first, second))
            differences = b - a
            self.values[f"{kind}_a"], self.values[f"{kind}_b"] = float(a.mean()), float(b.mean())
        drop = float(-differences.mean())
        self.values[f"{kind}_drop"] = drop
        self.told.append(f"{kind} {100 * drop:+z.1f}")
        alpha = _ALPHA / len(CORRUPTIONS)
        mixed = np.random.default_rng(0).permutation(differences)  # files are sorted by class, and the test looks early
        if judge_drop(mixed, self.policy.max_slice_drop, alpha, is_all=True).outcome == "rejected":
            self.failed.append(kind)

    def summarize(self) -> Robustness:
        """Return what all kinds came to."""
        limit = f"{100 * self.policy.max_slice_drop:g} are allowed"
        points = f"drop in points on {pluralize(self.num_items, 'spoiled item')}: {', '.join(self.told)}; {limit}"
        if self.failed:
            says = f"B bears {', '.join(self.failed)} worse than A: {points}"
            return Robustness(outcome="rejected", says=says, values=self.values)
        return Robustness(outcome="passed", says=points, values=self.values)


class _ByMeaning:
    """Compares what answers mean, on the items whose spoiling the incumbent bears."""

    def __init__(self, policy: Policy, meaning: Meaning, items: Items, incumbent: Call) -> None:
        self.values: dict[str, float | None] = {}
        self.reads = repr(meaning)
        self._policy = policy
        self._meaning = meaning
        self._clean = self.answers(incumbent, items)
        self._failed: list[str] = []
        self._told: list[str] = []

    def answers(self, model: Call, items: Items) -> list[Any]:
        """Return the answer to each item.

        Raises:
            ValueError: If what the model gives cannot be read.
        """
        return [one for outputs in _outputs(model, items, self._policy.batch) for one in self._meaning.read(outputs)]

    def add(self, kind: str, first: Sequence[Any], second: Sequence[Any]) -> None:
        """Compare the answers to one kind."""
        meaning = self._meaning
        borne = [meaning.same(clean, one) >= meaning.least for clean, one in zip(self._clean, first, strict=True)]
        self.values[f"{kind}_items"] = float(sum(borne))
        if sum(borne) < _FEWEST_BORNE:
            return
        agreement = Agreement(meaning, alpha=_ALPHA / len(CORRUPTIONS))
        agreement.add_read(
            *([one for one, is_borne in zip(each, borne, strict=True) if is_borne] for each in (first, second))
        )
        self.values[f"{kind}_drop"], self.values[f"{kind}_agreement"] = agreement.changed, agreement.mean
        self._told.append(f"{kind} {agreement.mean:.3f} ({sum(borne)})")
        why = agreement.explain_difference()
        if why is not None:
            self._failed.append(f"{kind} ({why})")

    def summarize(self) -> Robustness:
        """Return what all kinds came to."""
        if not self._told:
            says = (
                f"not known: of {pluralize(len(self._clean), 'spoiled item')} A itself answers fewer than {_FEWEST_BORNE} of "
                "any kind as it does unspoiled; give more items, or such that the model reads well"
            )
            return Robustness(outcome="inconclusive", says=says, values=self.values)
        says = f"agreement of {self._meaning.name} on spoiled items that A bears: {', '.join(self._told)}"
        if self._failed:
            says = f"B bears worse than A: {'; '.join(self._failed)}; {says}"
            return Robustness(outcome="rejected", says=says, values=self.values)
        return Robustness(outcome="passed", says=says, values=self.values)


def explain_no_robustness(model: Model, golden: Golden, policy: Policy) -> str | None:
    """Return why spoiled images of a set cannot be asked of a model; None if they can."""
    pixels = _pixels(golden)
    if isinstance(pixels, str):
        return pixels
    some = golden.inputs[spread(len(golden), _FITTED)]
    answers = list(_outputs(model, some, policy.batch))
    if find_meaning(answers, policy.output, model.metadata) is not None or top_1(answers[0]) is not None:
        return None
    return _explain_no_scores(model, some)


def _explain_no_scores(model: Call, items: Items) -> str:
    return f"not known: the answers are no scores of classes, and {explain_unknown(model(fed(items[:1])))}"


def _pixels(golden: Golden) -> Pixels | str:
    """Return how items are pictures, or why they cannot be spoiled and compared."""
    found = Pixels.find(main_array(golden.inputs))
    return f"not known: {describe_items(golden.inputs)} are no pictures" if found is None else found


def _scale_items(given: Items, smaller: Items, pixels: Pixels) -> Items:
    """Return spoiled images in the size in which a model takes the same images, unspoiled."""
    items, shape = main_array(given), main_array(smaller).shape[1:]
    height, width = shape[1:] if pixels.channels_first else shape[:2]
    # OpenCV scales no float16; and beyond a half, where a decoder averages, lines between pixels would leave some of them out.
    taken = items.astype(np.float32) if items.dtype == np.float16 else items
    last = [np.moveaxis(item, 0, 2) if pixels.channels_first else item for item in taken]
    how = cv2.INTER_AREA if 2 * height <= last[0].shape[0] else cv2.INTER_LINEAR
    scaled = [
        cv2.resize(np.ascontiguousarray(one), (width, height), interpolation=how).reshape(height, width, -1)
        for one in last
    ]
    array = np.stack([np.moveaxis(one, 2, 0) if pixels.channels_first else one for one in scaled]).astype(items.dtype)
    return replace_main(smaller, array)


def _outputs(model: Call, items: Items, batch: int) -> Iterator[Any]:
    for at in range(0, len(items), batch):
        yield model(fed(items[at : at + batch]))


def _firsts(model: Call, items: Items, batch: int) -> np.ndarray | None:
    found = [top_1(outputs) for outputs in _outputs(model, items, batch)]
    known = [one for one in found if one is not None]
    return np.concatenate(known) if len(known) == len(found) else None

"""The meanings that headrace knows: classes, detections, text, masks, embeddings, numbers, and several outputs at once.

A module names its own: `output = hr.Detections()`. What a meaning leaves open, such as which class of a text is the blank, is
settled by answers of the model in use, and both variants are read by it.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from headrace.base.meaning import Gist, Meaning
from headrace.validate.box_heads import Head, head_of
from headrace.validate.detections import OVERLAP, Boxes, detections_in, overlaps_of
from headrace.validate.parity import name_outputs, scores_of, split_items
from headrace.validate.segmentation import read_classes

Array = np.ndarray
Part = tuple[Hashable, float]
Scale = Literal["probabilities", "labels", "logits"]
"""What scores are: they add up to 1; each for itself from 0 to 1; any numbers."""

#: Score from which on a detector is sure; the other must give the same object half of it.
SURE = 0.5
#: Where it is sure of fewer objects than this, the threshold that detectors are usually used with counts.
_FEW_OBJECTS, _LESS_SURE = 8, 0.25
#: Detections with a lower score are not read.
_LEAST_SCORE = 0.05
#: Of a mask: classes that cover less of an image, in pixels and as a share, are no regions.
_FEWEST_PIXELS, _LEAST_REGION = 16, 0.002
#: Confidences of a text that differ by more are other ones.
_CONFIDENCE = 0.25
#: Of the size of a channel: what does not change needs some scale too.
_LEAST_SPREAD = 0.01
#: Of the largest spread of an output: below it there is rounding.
_LEAST_CHANNEL = 1e-4
#: Numbers that nobody can interpret mean the same where they are equal but for rounding.
_EQUAL = 1e-3


def scale_of(scores: Array) -> Scale:
    """Return what (..., classes) scores are."""
    known = scores[np.isfinite(scores).all(axis=-1)]
    if not known.size or known.min() < -1e-3 or known.max() > 1 + 1e-3:
        return "logits"
    return "probabilities" if np.allclose(known.sum(axis=-1), 1, atol=2e-2) else "labels"


def probabilities(scores: Array, scale: Scale) -> Array:
    """Return (..., classes) float64 from 0 to 1."""
    numbers = scores.astype(np.float64)
    if scale != "logits":
        return numbers
    raised = np.exp(numbers - numbers.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Classes(Meaning):
    """The class of an item: (items, classes) scores, or (items,) whole numbers.

    Args:
        scale: What the scores are; None: found out. `labels` are scores of an item that may be of several classes.
    """

    scale: Scale | None = None
    name = "classes"

    def fitted(self, answers: Sequence[Any]) -> Meaning:
        """Return it with the scale known."""
        arrays = [_scores(one) for one in answers]
        if self.scale or arrays[0].dtype.kind in "iub":
            return self
        return replace(self, scale=scale_of(np.concatenate(arrays)))

    def read(self, outputs: Any) -> Sequence[Any]:
        """Return (classes,) probabilities, or the number of the class."""
        scores = _scores(outputs)
        return list(scores if scores.dtype.kind in "iub" else probabilities(scores, self.scale or "logits"))

    def same(self, a: Any, b: Any) -> float:
        """Return 0 for another class, else 1 less the difference of the scores; of several classes the least of them."""
        return min(agreement for _, agreement in self.parts(a, b))

    def parts(self, a: Any, b: Any) -> Iterable[Part]:
        """Give the class, or the classes of which one is sure."""
        if not np.ndim(a):
            return [(int(a), float(a == b))]
        if self.scale == "labels":
            off = 1 - np.abs(a - b).clip(0, 1)
            sure = np.flatnonzero(np.maximum(a, b) >= SURE)
            return [(int(one), float(off[one])) for one in sure] or [("none", float(off.min()))]
        first, second = int(a.argmax()), int(b.argmax())
        return [(first, max(0.0, 1 - abs(float(a[first] - b[second]))) if first == second else 0.0)]

    def gist(self, answer: Any) -> Gist:
        """Return the class with the largest score; of several classes the surest is as sure as the least sure decision."""
        if not np.ndim(answer):
            return Gist(int(answer))
        best = int(np.argmax(answer))
        if self.scale == "labels":
            return Gist(best, float(np.abs(np.asarray(answer) - SURE).min() + SURE))
        return Gist(best, float(answer[best]))


def _scores(outputs: Any) -> Array:
    if not isinstance(outputs, Mapping):
        found = np.asarray(outputs)
    elif len(outputs) == 1:
        found = np.asarray(next(iter(outputs.values())))
    else:
        named = scores_of(outputs)
        if named is None:
            raise ValueError(f"classes are read from one (items, classes) output; there are {', '.join(outputs)}")
        found = named
    whole = found.dtype.kind in "iub" and found.ndim == 1
    if not whole and not (found.dtype.kind == "f" and found.ndim == 2):
        raise ValueError(
            f"classes are read from (items, classes) scores; the model gives {found.dtype}{list(found.shape)}"
        )
    return found


@dataclass(frozen=True)
class Detections(Meaning):
    """Boxes with a class and a score.

    Args:
        layout: `yolov8` (items, 4 + classes, n), `yolov5` (items, n, 5 + classes), `rows` (items, n, 4 + classes), all of
            centre, width and height; None: found out, with what suppresses doubles itself, and pairs of boxes and scores.
        sure: Score from which on an object counts; the other must give it half of that. None: 0.5, or where the model in use
            hardly finds anything by that, 0.25.
    """

    layout: Literal["yolov8", "yolov5", "rows"] | None = None
    sure: float | None = None
    head: Head | None = field(default=None, repr=False)
    name = "detections"
    usual = 0.75
    most_changed = 0.5

    def fitted(self, answers: Sequence[Any]) -> Meaning:
        """Return it with the layout known.

        Raises:
            ValueError: If the answers have none that is known.
        """
        head = self.head if self.layout is None else Head(self.layout)
        if head is None and detections_in(answers[0]) is None:
            head = head_of(answers)
            if head is None:
                raise ValueError(
                    f"no boxes can be read from {_describe_outputs(answers[0])}; name the layout: Detections(layout=...)"
                )
        settled = replace(self, head=head)
        if self.sure is not None:
            return settled
        num = sum(int((found.scores >= SURE).sum()) for one in answers for found in settled.read(one))
        return replace(settled, sure=SURE if num >= _FEW_OBJECTS else _LESS_SURE)

    def read(self, outputs: Any) -> Sequence[Boxes]:
        """Return what is found in each item.

        Raises:
            ValueError: If the outputs have another layout.
        """
        found = self.head.read(outputs, _LEAST_SCORE) if self.head is not None else detections_in(outputs)
        if found is None:
            raise ValueError(f"no boxes can be read from {_describe_outputs(outputs)}")
        return found

    def same(self, a: Boxes, b: Boxes) -> float:
        """Return how well the worst object is found by the other; 1 where there is none."""
        return min((agreement for _, agreement in self.parts(a, b)), default=1.0)

    def parts(self, a: Boxes, b: Boxes) -> Iterator[Part]:
        """Give of each object that one is sure of the overlap with the other's box, less what their scores differ by."""
        sure = self._least_sure()
        yield from _match_boxes(_select_above(a, sure), _select_above(b, sure / 2))
        yield from _match_boxes(_select_above(b, sure), _select_above(a, sure / 2))

    def gist(self, answer: Boxes) -> Gist:
        """Return the surest object, all that count, and how far the least sure decision was from the threshold."""
        sure = self._least_sure()
        shown = _select_above(answer, sure)
        boxes = tuple(
            (int(kind), float(score), tuple(map(float, box)))
            for kind, score, box in zip(shown.classes, shown.scores, shown.boxes, strict=True)
        )
        nearest = float(np.abs(answer.scores - sure).min()) if len(answer.scores) else 1.0
        return Gist(boxes[0][0] if boxes else None, min(1.0, 0.5 + nearest), boxes)

    def _least_sure(self) -> float:
        return SURE if self.sure is None else self.sure


def _select_above(found: Boxes, score: float) -> Boxes:
    order = np.argsort(-found.scores, kind="stable")
    order = order[found.scores[order] >= score]
    return Boxes(found.boxes[order], found.classes[order], found.scores[order])


def _match_boxes(wanted: Boxes, found: Boxes) -> Iterator[Part]:
    """Give of each wanted box how well one of its own among those found fits, by COCO's rule: best scores choose first."""
    overlaps = overlaps_of(wanted.boxes, found.boxes)
    overlaps[wanted.classes[:, None] != found.classes] = 0.0
    for number, row in enumerate(overlaps):
        kind, best = int(wanted.classes[number]), int(row.argmax()) if row.size else -1
        if best < 0 or row[best] < OVERLAP:
            yield kind, 0.0
            continue
        off = abs(float(wanted.scores[number] - found.scores[best]))
        yield kind, max(OVERLAP, float(row[best]) * (1 - min(1.0, off)))
        overlaps[:, best] = 0.0  # taken


@dataclass(frozen=True)
class Text(Meaning):
    """A line of text, as a recogniser with CTC gives it: (items, steps, characters) scores.

    Args:
        blank: Number of the character that stands for none; None: the first or the last one, whichever comes more often.
    """

    blank: int | None = None
    scale: Scale = "logits"
    name = "text"
    least = 1.0
    usual = 0.95

    def fitted(self, answers: Sequence[Any]) -> Meaning:
        """Return it with the blank known."""
        arrays = [_get_only(one) for one in answers]
        best = np.concatenate([one.argmax(axis=-1).ravel() for one in arrays])
        last = arrays[0].shape[-1] - 1
        blank = (last if (best == last).sum() > (best == 0).sum() else 0) if self.blank is None else self.blank
        return replace(self, blank=blank, scale=scale_of(arrays[0]))

    def read(self, outputs: Any) -> Sequence[tuple[list[int], float]]:
        """Return the characters of each line, repeated ones put together and blanks left out, and their mean score."""
        return [self._line(one) for one in probabilities(_get_only(outputs), self.scale)]

    def _line(self, scores: Array) -> tuple[list[int], float]:
        best = scores.argmax(axis=1)
        kept = (best != (self.blank or 0)) & np.append(True, best[1:] != best[:-1])
        return best[kept].tolist(), float(scores.max(axis=1)[kept].mean()) if kept.any() else 1.0

    def same(self, a: Any, b: Any) -> float:
        """Return 1 for the same characters with a like score, else the share of like ones, below 1."""
        if a[0] == b[0]:
            return 1.0 if abs(a[1] - b[1]) <= _CONFIDENCE else 0.5
        return min(0.99, difflib.SequenceMatcher(None, a[0], b[0], autojunk=False).ratio())

    def gist(self, answer: Any) -> Gist:
        """Return how sure the line is; it names no class."""
        return Gist(None, float(answer[1]))

    def parts(self, a: Any, b: Any) -> Iterator[Part]:
        """Give each character of the first, and of the second what the first does not have."""
        if a[0] == b[0]:
            agreement = self.same(a, b)
            yield from ((one, agreement) for one in a[0] or ["none"])
            return
        for how, low, high, start, stop in difflib.SequenceMatcher(None, a[0], b[0], autojunk=False).get_opcodes():
            yield from ((one, float(how == "equal")) for one in a[0][low:high])
            if how == "insert":
                yield from ((one, 0.0) for one in b[0][start:stop])


@dataclass(frozen=True)
class Mask(Meaning):
    """The class of each pixel: (items, classes, h, w) scores, (items, 1, h, w) of one class, or whole numbers (items, h, w)."""

    scale: Scale = "logits"
    name = "masks"
    usual = 0.85

    def fitted(self, answers: Sequence[Any]) -> Meaning:
        """Return it with the scale of a single class known."""
        first = _get_only(answers[0])
        return replace(self, scale=scale_of(first[..., None])) if first.dtype.kind == "f" else self

    def read(self, outputs: Any) -> Sequence[Array]:
        """Return (h, w) whole numbers, the class of each pixel."""
        scores = _get_only(outputs)
        if scores.ndim == 4 and scores.shape[1] == 1 and scores.dtype.kind == "f":
            return list((scores[:, 0] >= (0.0 if self.scale == "logits" else 0.5)).astype(np.uint8))
        named = read_classes(outputs)
        if named is None:
            raise ValueError(
                f"masks are read from (items, classes, h, w); the model gives {_describe_outputs(outputs)}"
            )
        return list(named)

    def same(self, a: Array, b: Array) -> float:
        """Return the mean over the classes of the intersection over union."""
        return float(np.mean([agreement for _, agreement in self.parts(a, b)]))

    def parts(self, a: Array, b: Array) -> list[Part]:
        """Return the intersection over union of each class that either names."""
        most = int(max(a.max(), b.max())) + 1
        first, second, both = (np.bincount(one.ravel(), minlength=most) for one in (a, b, a[a == b]))
        large = np.flatnonzero(np.maximum(first, second) >= max(_FEWEST_PIXELS, _LEAST_REGION * a.size))
        large = large if len(large) else np.flatnonzero(np.maximum(first, second))
        return [(int(one), float(both[one] / (first[one] + second[one] - both[one]))) for one in large]


@dataclass(frozen=True)
class Embedding(Meaning):
    """(items, n) numbers, of which the direction and the length count."""

    name = "embeddings"
    least = 0.85
    usual = 0.8
    most_changed = 0.05

    def read(self, outputs: Any) -> Sequence[Array]:
        """Return (n,) float64."""
        array = _get_only(outputs)
        return list(array.reshape(len(array), -1).astype(np.float64))

    def same(self, a: Array, b: Array) -> float:
        """Return the cosine, times the shorter length over the longer one."""
        first, second = np.linalg.norm(a), np.linalg.norm(b)
        if not first or not second:
            return float(first == second)
        cosine = float(a @ b / (first * second))
        return max(0.0, cosine) * float(min(first, second) / max(first, second))

    def parts(self, a: Array, b: Array) -> list[Part]:
        """Return of each large number of the first how near the second is."""
        large = np.flatnonzero(np.abs(a) >= np.sqrt(np.square(a).mean()))
        off = np.abs(a[large] - b[large]) / np.maximum(np.abs(a[large]), 1e-30)
        return [(int(one), max(0.0, 1 - float(by))) for one, by in zip(large, off, strict=True)]


@dataclass(frozen=True)
class Numbers(Meaning):
    """Numbers of any unit, each channel held against its own spread over the answers of the model in use.

    Channels are the second axis, or the last one where that is shorter.

    Args:
        tolerance: Largest root mean square difference within an item, as a share of that spread; the worst channel counts.
        is_known: Whether it was declared; if not, nothing but rounding may differ.
    """

    tolerance: float = 0.25
    is_known: bool = True
    spreads: Mapping[str, Array] = field(default_factory=dict, repr=False)
    name = "numbers"

    @property
    def least(self) -> float:  # type: ignore[override]
        """Of the agreement of an item."""
        return 1 - (self.tolerance if self.is_known else _EQUAL)

    def fitted(self, answers: Sequence[Any]) -> Numbers:
        """Return it with the spread of each channel known.

        Raises:
            ValueError: If there is another number of channels from call to call.
        """
        named = [split_items(one) for one in answers]
        spreads = {}
        for name in named[0]:
            arrays = [_channels(one[name]) for one in named]
            if len({array.shape[1] for array in arrays}) > 1:
                raise ValueError(f"{name} has another number of channels from call to call")
            rows = np.concatenate([array.swapaxes(0, 1).reshape(array.shape[1], -1) for array in arrays], axis=1)
            rows = np.where(np.isfinite(rows), rows, 0.0)
            spread = np.maximum(rows.std(axis=1), _LEAST_SPREAD * np.sqrt(np.square(rows).mean(axis=1)))
            spreads[name] = np.maximum(spread, max(_LEAST_CHANNEL * float(spread.max(initial=0.0)), 1e-30))
        return replace(self, spreads=spreads)

    def read(self, outputs: Any) -> Sequence[dict[str, Array]]:
        """Return {output: (channels, numbers)}."""
        each = {name: _channels(array) for name, array in split_items(outputs).items()}
        return [{name: rows[item] for name, rows in each.items()} for item in range(len(next(iter(each.values()))))]

    def same(self, a: dict[str, Array], b: dict[str, Array]) -> float:
        """Return 1 less the difference of the worst channel in units of its spread."""
        return min(agreement for _, agreement in self.parts(a, b))

    def parts(self, a: dict[str, Array], b: dict[str, Array]) -> Iterator[Part]:
        """Give each channel."""
        yield from ((kind, max(0.0, 1 - off)) for kind, off in self._compare_channels(a, b))

    def furthest(self, a: dict[str, Array], b: dict[str, Array]) -> float:
        """Return the difference of the worst channel in units of its spread."""
        return max(off for _, off in self._compare_channels(a, b))

    def _compare_channels(self, a: dict[str, Array], b: dict[str, Array]) -> Iterator[Part]:
        for (name, first), second in zip(a.items(), b.values(), strict=True):
            off = np.nan_to_num(second - first, nan=0.0, posinf=0.0, neginf=0.0)
            by = np.sqrt(np.square(off).mean(axis=1)) / self.spreads.get(name, 1.0)
            yield from ((f"{name}[{channel}]", float(one)) for channel, one in enumerate(by))


def _channels(array: Array) -> Array:
    """Return (items, channels, numbers) float64."""
    numbers = np.asarray(array).astype(np.float64)
    if numbers.ndim < 2:
        return numbers.reshape(-1, 1, 1)
    if numbers.ndim > 2 and numbers.shape[-1] < numbers.shape[1]:
        numbers = np.moveaxis(numbers, -1, 1)
    return numbers.reshape(len(numbers), numbers.shape[1], int(np.prod(numbers.shape[2:])))


@dataclass(frozen=True)
class Several(Meaning):
    """A meaning for each of several outputs, by its name."""

    outputs: Mapping[str, Meaning]
    name = "several outputs"

    @property
    def is_known(self) -> bool:  # type: ignore[override]
        """Whether all are."""
        return all(one.is_known for one in self.outputs.values())

    def fitted(self, answers: Sequence[Any]) -> Meaning:
        """Return it with all fitted.

        Raises:
            ValueError: If the model has other outputs.
        """
        each = [self._name_outputs(one) for one in answers]
        return replace(
            self, outputs={name: one.fitted([own[name] for own in each]) for name, one in self.outputs.items()}
        )

    def read(self, outputs: Any) -> Sequence[dict[str, Any]]:
        """Return {output: answer}."""
        named = self._name_outputs(outputs)
        each = {name: one.read(named[name]) for name, one in self.outputs.items()}
        return [dict(zip(each, rows, strict=True)) for rows in zip(*each.values(), strict=True)]

    def same(self, a: dict[str, Any], b: dict[str, Any]) -> float:
        """Return 1 if all outputs agree as far as each must, else the least agreement."""
        found = {name: one.same(a[name], b[name]) for name, one in self.outputs.items()}
        alike = all(agreement >= self.outputs[name].least for name, agreement in found.items())
        return 1.0 if alike else min(0.49, *found.values())

    def parts(self, a: dict[str, Any], b: dict[str, Any]) -> Iterator[Part]:
        """Give the parts of each output."""
        for name, one in self.outputs.items():
            yield from ((f"{name} {kind}", agreement) for kind, agreement in one.parts(a[name], b[name]))

    def _name_outputs(self, outputs: Any) -> Mapping[str, Array]:
        named = name_outputs(outputs)
        if not set(self.outputs) <= set(named):
            raise ValueError(
                f"an output is declared that there is not: {', '.join(self.outputs)}; the model gives {', '.join(named)}"
            )
        return named


def _get_only(outputs: Any) -> Array:
    """Return the only output.

    Raises:
        ValueError: If there are several.
    """
    each = list(name_outputs(outputs).values())
    if len(each) != 1:
        raise ValueError(f"one output is expected; the model gives {_describe_outputs(outputs)}")
    return each[0]


def _describe_outputs(outputs: Any) -> str:
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in name_outputs(outputs).items())

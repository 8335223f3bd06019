"""A result -> the class that it names, how sure it is of it, and its boxes.

Arrays, as a model gives them, are read by what the module's `output` declares or what they look like (`base.meaning`): whoever
makes a `ResultReader` passes in who knows that. All else is read by the names that people use: "cat", ["cat", 0.93],
{"label": "cat", "score": 0.93}, {"boxes": [...], "labels": [...], "scores": [...]}, or a list of such objects. A result of
which nothing is known is of one nameless class, and is shown as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.formatting import encodable
from headrace.base.meaning import NOTHING_DECLARED, Declared, Meaning
from headrace.runs.formats.review import AnswerBox
from headrace.stages.placement import Placement

#: Of answers, the most probable words, the first that is there counts.
_CLASS = ("label", "class", "name", "class_name", "category", "kind", "answer", "prediction")
_CERTAINTY = ("score", "confidence", "probability", "certainty", "prob", "conf")
_BOX = ("box", "bbox", "xyxy", "rect")
_LISTS = frozenset({"boxes", "detections", "objects", "predictions", "results"})
#: Of a name: more is text and no class.
_LONGEST_NAME = 80
_MOST_BOXES = 100
_NUM_FIRST = 16
#: Made once: this is asked for each item.
_NAMED = (str, bool, int, np.integer, np.bool_)
_WHOLE, _NUMBERS, _LIST_TYPES = (int, np.integer), (int, float, np.number), (list, tuple, np.ndarray)
_NO_NAMES = (float, np.floating, list, dict)
#: Coordinates up to this are shares of the picture, not pixels.
_LARGEST_SHARE = 1.5

#: Returns what answers mean, given the answers of some calls.
MeaningOf = Callable[[Sequence[Any], Declared], Meaning]


@dataclass(frozen=True, slots=True)
class Read:
    """What is known of an answer."""

    name: str = ""
    """Of the class; empty: none."""
    certainty: float | None = None
    boxes: tuple[AnswerBox, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """Where pixels of an answer are in the picture that is kept."""

    placement: Placement | None = None
    """Of the image in what the model takes; None: not known, so that boxes in pixels cannot be drawn."""
    is_original: bool = False
    """Whether the picture is the image that came, not what the model takes."""

    def share_of_input(self, corners: Sequence[float]) -> dict[str, float]:
        """Return x1, y1, x2, y2 in pixels of the model's input as shares of the picture; empty: not known."""
        if max(corners) <= _LARGEST_SHARE or self.placement is None:
            return _as_shares(corners, None)
        if self.is_original:
            return _as_shares(self.placement.to_image(np.array(corners, float)), self.placement.image)
        return _as_shares(corners, self.placement.size)

    def share_of_image(self, corners: Sequence[float]) -> dict[str, float]:
        """Return x1, y1, x2, y2 in pixels of the image that came as shares of the picture; empty: not known."""
        if max(corners) <= _LARGEST_SHARE or self.placement is None:
            return _as_shares(corners, None)
        if self.is_original:
            return _as_shares(corners, self.placement.image)
        return _as_shares(self.placement.to_input(np.array(corners, float)), self.placement.size)


NO_FRAME = Frame()


def _as_shares(corners: Any, size: tuple[int, int] | None) -> dict[str, float]:
    """Return corners divided by (height, width); None: they are shares already, or nobody knows of what."""
    if size is None and max(corners) > _LARGEST_SHARE:
        return {}
    height, width = size or (1, 1)
    x1, y1, x2, y2 = (float(one) for one in corners)
    return {"x1": x1 / width, "y1": y1 / height, "x2": x2 / width, "y2": y2 / height}


class ResultReader:
    """Reads the results of one task.

    Args:
        declared: What is known of the model's answers.
        names: Of the classes, in the order of the model's output; empty: not known.
        meaning_of: Knows what arrays mean; None: nobody does.
    """

    def __init__(
        self,
        declared: Declared = NOTHING_DECLARED,
        names: Sequence[str] = (),
        meaning_of: MeaningOf | None = None,
    ) -> None:
        self.names = tuple(map(encodable, names))
        self._declared = declared
        self._meaning_of = meaning_of
        self._meaning: Meaning | None = None
        self._first: list[Any] = []

    def __call__(self, result: Any, frame: Frame = NO_FRAME) -> Read:
        """Return what a result comes to; whatever it is, nothing is raised.

        Args:
            result: As the last stage made it.
            frame: Of the picture.
        """
        try:
            read = self._read_arrays(result, frame)
            return read or self._read_names(result, frame)
        except Exception:  # a result may be anything, and a meaning the user's own
            return Read()

    def _read_arrays(self, result: Any, frame: Frame) -> Read | None:
        """Return what an array, or several by their names, mean; None if they are none, or nobody knows."""
        outputs = _as_call(result)
        if outputs is None or self._meaning_of is None:
            return None
        if len(self._first) < _NUM_FIRST:  # what a meaning leaves open is settled by the first answers
            self._first.append(outputs)
            self._meaning = self._meaning_of(self._first, self._declared)
        assert self._meaning is not None
        if not self._meaning.is_known:
            return None
        gist = self._meaning.gist(self._meaning.read(outputs)[0])
        boxes = tuple(
            AnswerBox(name=self._name(kind), score=score, **shares)
            for kind, score, corners in gist.boxes[:_MOST_BOXES]
            if (shares := frame.share_of_input(corners))
        )
        return Read("" if gist.kind is None else self._name(gist.kind), _ratio(gist.certainty), boxes)

    def _read_names(self, result: Any, frame: Frame) -> Read:
        if isinstance(result, dict):
            return self._read_object(result, frame)
        if isinstance(result, _NAMED):
            return Read(self._name(result))
        if isinstance(result, list | tuple) and result:
            if all(isinstance(one, Mapping) for one in result):
                return self._read_several(result, frame)
            if len(result) == 2 and isinstance(result[0], str) and _is_number(result[1]):
                return Read(self._name(result[0]), _ratio(result[1]))
        return Read()

    def _read_object(self, result: Mapping[str, Any], frame: Frame) -> Read:
        if not _LISTS.isdisjoint(result):
            for found in (_list_rows(result), *(result[key] for key in result if key in _LISTS)):
                if _is_list(found) and all(isinstance(one, Mapping) for one in found):
                    return self._read_several(found, frame)
        return Read(self._name(_first(result, _CLASS)), _ratio(_first(result, _CERTAINTY)))

    def _read_several(self, found: Sequence[Mapping[str, Any]], frame: Frame) -> Read:
        """Return the surest of several objects, and how sure the least sure one is."""
        objects = [(self._name(_first(one, _CLASS)), _ratio(_first(one, _CERTAINTY)), one) for one in found]
        objects.sort(key=lambda one: -(one[1] or 0.0))
        boxes = tuple(
            AnswerBox(name=name, score=score, **shares)
            for name, score, one in objects[:_MOST_BOXES]
            if _is_corners(corners := _first(one, _BOX)) and (shares := frame.share_of_image(corners))
        )
        scores = [score for _, score, _ in objects if score is not None]
        return Read(objects[0][0] if objects else "", min(scores, default=None), boxes)

    def _name(self, kind: Any) -> str:
        """Return what a class is called; empty for what is no class."""
        if isinstance(kind, _WHOLE) and not isinstance(kind, bool):
            return self.names[kind] if 0 <= kind < len(self.names) else str(int(kind))
        if kind is None or isinstance(kind, _NO_NAMES):
            return ""
        text = encodable(str(kind))
        return text if len(text) <= _LONGEST_NAME else ""


def _as_call(result: Any) -> Any:
    """Return one result as the answers to a call of one item; None if it is no array."""
    if isinstance(result, np.ndarray):
        return result[None]
    if isinstance(result, dict) and result and all(isinstance(one, np.ndarray) for one in result.values()):
        return {str(name): one[None] for name, one in result.items()}
    return None


def _first(result: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((result[key] for key in keys if key in result), None)


def _list_rows(result: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Return an object for each row of boxes and labels that stand beside one another; None if there are none."""
    kinds, boxes = _as_list(result.get("labels", result.get("classes"))), _as_list(result.get("boxes"))
    if boxes is None or kinds is None or len(boxes) != len(kinds):
        return None
    scores = _as_list(result.get("scores")) or [None] * len(kinds)
    return [{"label": a, "score": b, "box": c} for a, b, c in zip(kinds, scores, boxes, strict=False)]


def _as_list(value: Any) -> list[Any] | None:
    return list(value) if _is_list(value) else None


def _is_list(value: Any) -> bool:
    return isinstance(value, _LIST_TYPES)


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _is_corners(value: Any) -> bool:
    return _is_list(value) and len(value) == 4 and all(_is_number(one) and math.isfinite(one) for one in value)


def _ratio(value: Any) -> float | None:
    """Return a certainty; None if it is none."""
    if not _is_number(value) or not math.isfinite(value) or not 0 <= value <= 1:
        return None
    return float(value)

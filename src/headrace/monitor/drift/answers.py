"""What a prediction says of itself: its class, how certain it is, how many objects it found, or that there is no answer.

Results are whatever a module returns. The usual forms are known here; of others nothing is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.monitor.drift.statistics import CLASS

_LABELS = ("label", "class", "class_name", "category", "answer", "name")
_SCORES = ("score", "confidence", "probability")
_OBJECTS = ("boxes", "detections", "objects", "predictions", "instances")
#: Longer names of classes are text, not classes.
_MOST_CHARACTERS = 40
_MOST_CLASSES = 20_000


@dataclass(slots=True)
class Answer:
    """What one result says."""

    means: dict[str, float] = field(default_factory=dict)
    counts: list[str] = field(default_factory=list)


def read_answer(result: Any) -> Answer:
    """Return what is known of a result."""
    answer = Answer(counts=["answers"])
    try:
        _read(result, answer)
    except Exception:  # a result may be anything: a list that is half numbers, a score that no float holds
        return Answer(counts=["answers"])
    return answer


def _read(result: Any, answer: Answer) -> None:
    # The forms that most modules return first: whether a type is a Mapping or a Sequence takes Python a while.
    if isinstance(result, tuple | list):
        _sequence(result, answer)
    elif isinstance(result, dict):
        _mapping(result, answer)
    elif result is None or (isinstance(result, str) and not result):
        answer.counts.append("abstained")
    elif isinstance(result, bool | str | int | np.integer | np.bool_):
        _class(result, answer)
    elif isinstance(result, float | np.floating):
        answer.means["answer"] = float(result)
    elif isinstance(result, np.ndarray):
        _array(result, answer)
    elif isinstance(result, bytes | bytearray | memoryview):
        return
    elif isinstance(result, Mapping):
        _mapping(result, answer)
    elif isinstance(result, Sequence):
        _sequence(result, answer)


def _class(label: Any, answer: Answer) -> None:
    name = str(label)
    if len(name) <= _MOST_CHARACTERS:
        answer.counts.append(CLASS + name)
    else:
        answer.means["length"] = math.log10(len(name))


def _mapping(result: Mapping[Any, Any], answer: Answer) -> None:
    if not result:
        answer.counts.append("abstained")
        return
    objects = next((result[key] for key in _OBJECTS if key in result), None)
    if objects is not None and hasattr(objects, "__len__"):
        _objects(objects, answer)
    label = next((result[key] for key in _LABELS if key in result), None)
    if isinstance(label, str | int | bool | np.integer):
        _class(label, answer)
    score = next((result[key] for key in _SCORES if key in result), None)
    if isinstance(score, float | int | np.floating):
        answer.means["top_score"] = float(score)
    if len(answer.counts) == 1 and not answer.means and all(value is None for value in result.values()):
        answer.counts.append("abstained")


def _sequence(result: Sequence[Any], answer: Answer) -> None:
    if not len(result):
        answer.counts.append("abstained")
        return
    first = result[0]
    if len(result) == 2 and isinstance(first, str | int) and isinstance(result[1], float):
        _class(first, answer)
        answer.means["top_score"] = result[1]
    elif isinstance(first, Mapping):
        _objects(result, answer)
    elif isinstance(first, float | int) and len(result) <= _MOST_CLASSES:
        _array(np.asarray(result, float), answer)


def _objects(objects: Any, answer: Answer) -> None:
    answer.means["boxes"] = float(len(objects))
    if not len(objects):
        answer.counts.append("abstained")
    scores = [
        float(one[key])
        for one in objects
        if isinstance(one, Mapping)
        for key in _SCORES
        if isinstance(one.get(key), float)
    ]
    if scores:
        answer.means["top_score"] = max(scores)


def _array(result: np.ndarray, answer: Answer) -> None:
    if result.size == 0:
        answer.counts.append("abstained")
    elif result.ndim == 0:
        _read(result.item(), answer)
    elif result.ndim == 2 and 5 <= result.shape[1] <= 8:
        answer.means["boxes"] = float(len(result))
    elif result.ndim == 1 and 2 <= len(result) <= _MOST_CLASSES and np.issubdtype(result.dtype, np.floating):
        if abs(float(result.sum()) - 1) < 1e-2 and float(result.min()) >= 0:
            _class(int(result.argmax()), answer)
            answer.means["top_score"] = float(result.max())
        else:
            answer.means["answer"] = float(result.mean())

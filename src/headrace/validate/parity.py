"""Whether two variants answer alike, number by number, before anybody asks how fast or how right they are.

References:
    Measured on one machine (ResNet-18 and MobileNetV2, AVX-512 and AMX): relative L2 of bfloat16 0.3 to 0.4 %, of int8 0.5 to
    1.4 %, of float32 on another runtime below 1e-5. The bands below leave room for a factor of three and more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.validate.detections import are_detections

#: Relative L2 from which on the answers of one item differ by more than its precision explains.
BANDS = {"f32": 1e-4, "f16": 1e-2, "bf16": 2e-2, "int8": 5e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """How far the answers of B are from those of A."""

    num_items: int
    relative_l2: float
    """|B - A| / |A| over all outputs of an item, median of the items."""
    worst_l2: float
    """Of the worst item."""
    cosine: float
    """Least of all items."""
    flips: float | None
    """Share of the items whose largest output is another one; None where an output is no vector of scores."""
    broken_a: int
    """Items with a NaN or an infinity among the answers."""
    broken_b: int
    shapes: tuple[str, ...]
    """Outputs that are not of the same shape, in words; the rest is not known then."""


def compare_outputs(a: Any, b: Any) -> Parity:
    """Return how alike two variants' answers to the same items are.

    Args:
        a: Array (items, ...), or {name: array} where a model has several outputs.
        b: The same of the other.
    """
    firsts, seconds = name_outputs(a), name_outputs(b)
    problems = shape_problems(firsts, seconds)
    num_items = len(next(iter(firsts.values()))) if firsts else 0
    if problems:
        return Parity(
            num_items=num_items, relative_l2=np.inf, worst_l2=np.inf, cosine=-1.0, flips=None, broken_a=0, broken_b=0,
            shapes=problems,
        )  # fmt: skip
    first, second = _flat(firsts), _flat(seconds)
    whole_a, whole_b = np.isfinite(first).all(axis=1), np.isfinite(second).all(axis=1)
    both = whole_a & whole_b
    relative, cosine = _distances(first[both], second[both])
    return Parity(
        num_items=num_items,
        relative_l2=float(np.median(relative)) if len(relative) else np.inf,
        worst_l2=float(relative.max()) if len(relative) else np.inf,
        cosine=float(cosine.min()) if len(cosine) else -1.0,
        flips=_flips(firsts, seconds),
        broken_a=int((~whole_a).sum()),
        broken_b=int((~whole_b).sum()),
        shapes=(),
    )


def name_outputs(outputs: Any) -> Mapping[str, np.ndarray]:
    """Return outputs by their names; of an array alone `output`."""
    each = outputs if isinstance(outputs, Mapping) else {"output": outputs}
    return {name: np.asarray(array) for name, array in each.items()}


def split_items(outputs: Any) -> Mapping[str, np.ndarray]:
    """Return outputs by their names, each (items, ...); as of one item where they do not all have as many (a state, say)."""
    each = name_outputs(outputs)
    if all(array.ndim for array in each.values()) and len({len(array) for array in each.values()}) == 1:
        return each
    return {name: array[None] for name, array in each.items()}


def join_answers(answers: Sequence[Any]) -> Any:
    """Return the answers to several batches as those to one.

    Raises:
        ValueError: If their shapes differ beyond the number of items.
    """
    if isinstance(answers[0], Mapping):
        return {name: np.concatenate([one[name] for one in answers]) for name in answers[0]}
    return np.concatenate(answers)


def scores_of(outputs: Any) -> np.ndarray | None:
    """Return (items, classes) scores; None if the answers are none.

    Scores are the only output, or the only one of two axes and floating numbers, with at least two classes. Those of detections
    are of boxes, in any order.
    """
    if are_detections(outputs):
        return None
    scores = [array for array in name_outputs(outputs).values() if array.ndim == 2 and array.dtype.kind == "f"]
    return scores[0] if len(scores) == 1 and scores[0].shape[1] >= 2 else None


def top_1(outputs: Any) -> np.ndarray | None:
    """Return (items,) int64: the place of the largest score of each item; None if the answers are no scores."""
    scores = scores_of(outputs)
    return None if scores is None else np.asarray(scores.argmax(axis=1))


def num_classes(outputs: Any) -> int:
    """Return how many scores an item has; 0 if the answers are no scores."""
    scores = scores_of(outputs)
    return 0 if scores is None else scores.shape[1]


def num_broken(outputs: Any) -> int:
    """Return how many items have a NaN or an infinity among their answers."""
    return int((~np.isfinite(_flat(split_items(outputs))).all(axis=1)).sum())


def has_broken(outputs: Any) -> bool:
    """Return whether any answer is a NaN or an infinity, whatever the outputs' shapes."""
    return any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in name_outputs(outputs).values())


def shape_problems(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Return in words which outputs are not of the same shape."""
    if len(a) != len(b):
        return (f"A has {len(a)} outputs ({', '.join(a)}), B {len(b)} ({', '.join(b)})",)
    pairs = zip(a.items(), b.items(), strict=True)
    return tuple(
        f"output {name}: A {list(one.shape)}, B {list(other.shape)}"
        for (name, one), (_, other) in pairs
        if one.shape != other.shape
    )


def _flat(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return (items, numbers) float64 of all outputs; whole numbers (labels) are left out where there are others."""
    floating = [array for array in outputs.values() if array.dtype.kind == "f"] or list(outputs.values())
    return np.concatenate(
        [array.reshape(len(array), math.prod(array.shape[1:])).astype(np.float64) for array in floating], axis=1
    )


def _distances(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    size_a, size_b = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    off = np.linalg.norm(b - a, axis=1)
    relative = np.where(off == 0, 0.0, off / np.maximum(size_a, 1e-30))
    cosine = np.where(off == 0, 1.0, (a * b).sum(axis=1) / np.maximum(size_a * size_b, 1e-30))
    return relative, cosine


def _flips(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float | None:
    first, second = top_1(a), top_1(b)
    return None if first is None or second is None or not len(first) else float((first != second).mean())

"""Which meaning a model's answers have: what the user declares, else what the file says, else what the answers look like.

What nobody can tell is compared as numbers, channel by channel, and nothing is switched or promoted by that alone.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.meaning import NOTHING_DECLARED, Declared, Meaning, Output
from headrace.validate.box_heads import head_of
from headrace.validate.detections import detections_in
from headrace.validate.meanings import Classes, Detections, Embedding, Mask, Numbers, Several, Text, scale_of
from headrace.validate.parity import name_outputs

Array = np.ndarray

#: Of the metadata's text: more are no names of classes.
_LONGEST_NAMES = 1_000_000
#: Share of the steps of a text that are blank, at least.
_BLANKS = 0.15
_FEWEST_CHARACTERS = 8
#: Share of the pixels of a mask of one class that are sure of it, or of the contrary.
_SURE_PIXELS = 0.9
_SMALLEST_MASK = 8
#: Ultralytics' tasks whose answers hold more than boxes.
_MORE_THAN_BOXES = ("segment", "pose", "obb")

DECLARE = (
    "declare it: `output = hr.Detections()` in the Module (or hr.Classes, hr.Text, hr.Mask, hr.Embedding, hr.Numbers, or your "
    "own hr.Meaning)"
)


def meaning_of(answers: Sequence[Any], declared: Declared = NOTHING_DECLARED) -> Meaning:
    """Return what answers mean, fitted to them.

    Args:
        answers: Of the model in use, call by call; at least one.
        declared: By the user, and by the model's file.

    Raises:
        ValueError: If they are not what is declared.
    """
    output = declared.output
    if isinstance(output, Mapping):
        output = Several(dict(output))
    if output is None:
        return (_guess_outputs(answers, declared.metadata) or Numbers(is_known=False)).fitted(answers)
    try:
        fitted = output.fitted(answers)
        fitted.read(answers[0])
    except Exception as error:  # may be the user's own code
        raise ValueError(f"{output.name}: {error}") from error
    return fitted


def find_meaning(answers: Sequence[Any], output: Output, metadata: Mapping[str, str]) -> Meaning | None:
    """Return what answers mean, fitted to them; None if that is not known.

    Args:
        answers: Of the model in use, call by call; at least one.
        output: What the user declares.
        metadata: Of the model's file.

    Raises:
        SettingsError: If they are not what the user declares.
    """
    try:
        found = meaning_of(answers, Declared(output, metadata))
    except (ValueError, SettingsError) as error:
        if output is not None:
            raise SettingsError(f"the answers are not what the module's output declares: {error}") from error
        return None  # whoever asks for a metric is told what it reads
    return found if found.is_known else None


def class_names(metadata: Mapping[str, str]) -> list[str] | None:
    """Return what the classes are called, in the order of the output, where the model's file says so.

    As a JSON list, or as Ultralytics writes them: a Python dict {0: 'person', ...}, of which nothing is executed.
    """
    text = metadata.get("names", "")
    if not text or len(text) > _LONGEST_NAMES:
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            names = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(names, dict):
            places = {str(key): name for key, name in names.items()}
            names = [places[str(place)] for place in range(len(places))] if _is_counted(places) else None
        return [str(name) for name in names] if isinstance(names, list) else None
    return None


def _is_counted(places: Mapping[str, Any]) -> bool:
    return set(places) == set(map(str, range(len(places))))


def _guess_outputs(answers: Sequence[Any], metadata: Mapping[str, str]) -> Meaning | None:
    """Return what outputs look like, all of them; None if one of them like nothing that is known."""
    names = class_names(metadata)
    num = None if names is None else len(names)
    if metadata.get("task", "detect") not in _MORE_THAN_BOXES:
        if all(detections_in(one) is not None for one in answers):
            return Detections()
        head = head_of(answers, num)
        if head is not None:
            return Detections(head=head)
    each = [name_outputs(one) for one in answers]
    found = {name: _guess_array([one[name] for one in each], num) for name in each[0]}
    if any(one is None for one in found.values()):
        return None
    known = {name: one for name, one in found.items() if one is not None}
    return next(iter(known.values())) if len(known) == 1 else Several(known)


def _is_label(array: Array) -> bool:
    return array.ndim == 1 and array.dtype.kind in "iub"


def _guess_array(arrays: Sequence[Array], num_classes: int | None) -> Meaning | None:
    """Return what one output looks like; None if it is like nothing that is known."""
    first = arrays[0]
    if _is_label(first):
        return Classes()
    if first.dtype.kind in "iub":
        return Mask() if first.ndim == 3 and min(first.shape[1:]) >= _SMALLEST_MASK else None
    if first.dtype.kind != "f" or any(one.ndim != first.ndim for one in arrays):
        return None
    looks = {2: _rows, 3: _lines, 4: _images}.get(first.ndim)
    return None if looks is None else looks(arrays, num_classes)


def _rows(arrays: Sequence[Array], num_classes: int | None) -> Meaning | None:
    """Return what (items, n) numbers are."""
    rows = np.concatenate(list(arrays))
    if rows.shape[1] < 2:
        return None
    is_unit = np.allclose(np.linalg.norm(rows.astype(np.float64), axis=1), 1, atol=1e-2)
    if is_unit and rows.shape[1] != num_classes and scale_of(rows) != "probabilities":
        return Embedding()
    return Classes()


def _lines(arrays: Sequence[Array], num_classes: int | None) -> Meaning | None:
    """Return whether (items, steps, characters) are scores of characters, many of which are blank."""
    first = arrays[0]
    if first.shape[2] < _FEWEST_CHARACTERS or first.shape[1] < 2:
        return None
    best = np.concatenate([one.argmax(axis=2).ravel() for one in arrays])
    blanks = max((best == 0).mean(), (best == first.shape[2] - 1).mean())
    rows = first[np.isfinite(first).all(axis=2)].astype(np.float64)
    sums = np.exp(rows).sum(axis=1) if len(rows) and rows.max() <= 1e-3 else rows.sum(axis=1)
    return Text() if blanks >= _BLANKS and len(sums) and np.allclose(sums, 1, atol=2e-2) else None


def _images(arrays: Sequence[Array], num_classes: int | None) -> Meaning | None:
    """Return whether (items, classes, h, w) are scores of pixels; three channels may be a picture."""
    first = arrays[0]
    if min(first.shape[2:]) < _SMALLEST_MASK:
        return None
    if first.shape[1] == 1:
        known = first[np.isfinite(first)]
        within = bool(known.size and known.min() >= -1e-3 and known.max() <= 1 + 1e-3)
        return Mask() if within and ((known < 0.1) | (known > 0.9)).mean() >= _SURE_PIXELS else None
    is_picture = first.shape[1] == 3 and num_classes != 3
    return Mask() if not is_picture or scale_of(np.moveaxis(first, 1, -1)) == "probabilities" else None

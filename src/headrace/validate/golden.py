"""A golden set: inputs that a model takes, with the right answers where they are known.

An `.npz` file with

    inputs        (items, ...)   what the model takes, preprocessed, of its type
    labels        (items,)       the number of the right class of each; may be missing
    sources       (items,)       photograph, camera or video that each is from; may be missing
    truth_NAME    (items, ...)   what else is true of each: truth_boxes and truth_classes, truth_mask, or for your own metric
    slice_NAME    (items,)       which part of the set each is in, such as slice_light: dark, bright; any number of them

or an `.npy` file with the inputs alone. A model with several inputs has an array for each in place of `inputs`, by its name:
image and scale_factor, input_ids and attention_mask. Files are read without pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.protocols import TensorSpec
from headrace.validate.golden_files import read_arrays
from headrace.validate.items import Items, NamedItems, name_items

#: Names of arrays in a file.
SOURCES, SLICE, TRUTH = "sources", "slice_", "truth_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """What both variants answer."""

    name: str
    inputs: Items
    """(items, ...)."""
    labels: np.ndarray | None
    """(items,) int64."""
    sha256: str
    """Of the inputs, labels, truth, slices and sources; empty for made-up ones."""
    is_made_up: bool = False
    """Noise, for want of data: tells broken from whole, and nothing about accuracy."""
    slices: Mapping[str, np.ndarray] = field(default_factory=dict)
    """{property: (items,) str}, the part of the set that each item is in."""
    sources: np.ndarray | None = None
    """(items,) str: what each item was cut from; None: not known of all."""
    some_sources: frozenset[str] = frozenset()
    """Those that are known, where those of other items are not."""
    truth: Mapping[str, np.ndarray] = field(default_factory=dict)
    """{name: (items, ...)}: what else is true of each item."""
    files: Sequence[str] = ()
    """Of each item; empty for arrays."""
    scaled: Callable[[int], Items] | None = None
    """(side) -> (items, ...): the same items as the pipeline prepares them for a model of that `input_side`; None: they are
    arrays, of one size."""
    _of_sides: dict[int, Items] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.inputs)

    def scale_to(self, side: int | None) -> Items:
        """Return (items, ...) as a model of that `input_side` takes them; None: as the module's input says.

        Raises:
            SettingsError: If items are arrays, which cannot be prepared again.
        """
        if side is None:
            return self.inputs
        if side not in self._of_sides:
            if self.scaled is None:
                raise SettingsError(
                    f"{self.name} holds items of one size, and input_side = {side} asks for another: give a folder of images "
                    "and the pipeline that prepares them, with --pipeline MODULE:ATTRIBUTE"
                )
            self._of_sides[side] = self.scaled(side)
        return self._of_sides[side]

    def drop_labels(self, places: np.ndarray) -> Golden:
        """Return the items at these places, without what is known of them."""
        whole = self.scaled
        return Golden(
            name=self.name, inputs=self.inputs[places], labels=None, sha256=self.sha256, is_made_up=self.is_made_up,
            scaled=None if whole is None else lambda side: self.scale_to(side)[places],
        )  # fmt: skip


def read_golden(path: Path, specs: Callable[[], Sequence[TensorSpec]] = tuple) -> Golden:
    """Return the golden set of a file.

    Args:
        path: Of the file.
        specs: Returns the inputs of the model that it is for; where they are several each has an array of its name. Only
            asked where the file has other arrays than `inputs` and what is known of them.

    Raises:
        SettingsError: If there is none, or it does not hold what is needed.
    """
    inputs, labels, parts = _read(path, specs)
    if labels is not None and labels.shape != (len(inputs),):
        raise SettingsError(
            f"{path}: labels have the shape {labels.shape}; expected ({len(inputs)},), one for each input"
        )
    if labels is not None and labels.dtype.kind not in "iu":
        raise SettingsError(
            f"{path}: labels are {labels.dtype}; expected whole numbers, the classes' places in the output"
        )
    labels = None if labels is None else labels.astype(np.int64)
    truth = {name.removeprefix(TRUTH): parts.pop(name) for name in list(parts) if name.startswith(TRUTH)}
    for name, values in truth.items():
        if not values.ndim or len(values) != len(inputs):
            raise SettingsError(
                f"{path}: {TRUTH}{name} is {values.dtype}{list(values.shape)}; expected ({len(inputs)}, ...)"
            )
    for name, values in parts.items():
        if values.shape != (len(inputs),) or values.dtype.kind not in "USiub":
            raise SettingsError(
                f"{path}: {name} is {values.dtype}{list(values.shape)}; expected ({len(inputs)},) names or whole numbers, one "
                "for each input"
            )
    sources = parts.pop(SOURCES).astype(str) if SOURCES in parts else None
    slices = {name.removeprefix(SLICE): values.astype(str) for name, values in parts.items()}
    return Golden(
        name=str(path), inputs=inputs, labels=labels, sha256=fingerprint(_digest(inputs), labels, truth, slices, sources),
        slices=slices, sources=sources, truth=truth,
    )  # fmt: skip


def _digest(inputs: Items) -> Any:
    if not isinstance(inputs, NamedItems):
        return hashlib.sha256(np.ascontiguousarray(inputs).tobytes())
    digest = hashlib.sha256()
    for name, array in sorted({**inputs.arrays, **inputs.same}.items()):
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest


def fingerprint(
    digest: Any,
    labels: np.ndarray | None,
    truth: Mapping[str, np.ndarray],
    slices: Mapping[str, np.ndarray],
    sources: np.ndarray | None,
) -> str:
    """Return the SHA-256 of a set, in which everything is that may decide a verdict.

    Args:
        digest: Of the inputs, from hashlib; it is updated.
        labels: As `Golden` has them, and so the others.
        truth: Arrays by their names.
        slices: Likewise.
        sources: Of the items.
    """
    if labels is not None:
        digest.update(np.ascontiguousarray(labels).tobytes())
    for name, array in sorted(truth.items()):
        digest.update(json.dumps([TRUTH, name, str(array.dtype), array.shape]).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    named = sorted(slices.items()) + ([] if sources is None else [(SOURCES, sources)])
    for name, values in named:
        digest.update(json.dumps([name, values.tolist()]).encode())
    return str(digest.hexdigest())


def spread(num_items: int, most: int) -> np.ndarray:
    """Return the places of a limited number of items, spread evenly over a set, which may be sorted by class."""
    return np.unique(np.linspace(0, num_items - 1, min(num_items, most)).round().astype(int))


def _read(
    path: Path, specs: Callable[[], Sequence[TensorSpec]]
) -> tuple[Items, np.ndarray | None, dict[str, np.ndarray]]:
    """Return inputs, labels, and the arrays that divide the set."""
    arrays = read_arrays(path)
    known = {name for name in arrays if name in ("labels", SOURCES) or name.startswith((SLICE, TRUTH))}
    taken = () if set(arrays) <= {"inputs", *known} and "inputs" in arrays else specs()
    parts = {name: arrays[name] for name in known - {spec.name for spec in taken if len(taken) > 1}}
    labels = parts.pop("labels", None)
    if len(taken) > 1:
        return name_items(arrays, taken, str(path)), labels, parts
    if "inputs" not in arrays:
        raise SettingsError(f"{path}: no array named inputs; it has {', '.join(arrays) or 'none'}")
    inputs = arrays["inputs"]
    if inputs.ndim < 1 or not len(inputs):
        raise SettingsError(
            f"{path}: inputs have the shape {inputs.shape}; expected (items, ...) with at least one item"
        )
    return inputs, labels, parts

"""Inputs made up for a model, where nobody gave any: noise of a type and size that the model takes.

A file says the type of each input and the length of some axes. Others are free, and a free axis takes not just any length: a
detector divides its image by 32, a recogniser of text lines is 48 pixels high, and with a length of 1 some engines crash. So
lengths come from the caller, another variant of the model, or the file's metadata. If none of these knows them, plausible ones
are tried on the model, in a process of its own (`trials`), until one is answered.

Whole numbers may be indices, so that a large one is out of range: small ones are tried after larger ones. The scalars that
speech models ask for are known by name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.plan import ModelPlan
from headrace.base.protocols import TensorSpec
from headrace.validate.golden import Golden
from headrace.validate.items import Items, NamedItems
from headrace.validate.trials import ModelTrial, try_calls

#: Lengths of axes, by input: {name: (length, ...)}, the first axis among them, which is the batch and not looked at.
Shapes = Mapping[str, tuple[int | str, ...]]

#: Height and width of images, in the order of trying: what classifiers and detectors are exported for, then lines of text.
_SIDES = (
    (224, 224), (320, 320), (640, 640), (48, 320), (32, 320), (256, 256), (512, 512), (128, 128), (64, 64), (32, 100),
)  # fmt: skip
#: Of any other free axis: tokens, frames, samples of sound.
_LENGTHS = (128, 512, 16000, 576, 256, 64, 16, 100, 8, 1)
#: Largest whole number, in the order of trying: bytes and tokens, then what every table and mask holds.
_LARGEST = (100, 1)
#: What scalars of these names mean is no secret; any other is 1.
_SCALARS = {"sr": 16000, "sample_rate": 16000, "sampling_rate": 16000}
_FRACTIONS = ("float32", "float64", "float16")
_WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True, slots=True)
class SyntheticInputs:
    """How to make up what a model takes."""

    specs: tuple[TensorSpec, ...]
    shapes: Shapes
    """Of every input, whole: no axis is free but the batch."""
    largest: int
    """Whole number."""
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    """Of each input; None: it has none."""

    @property
    def is_guessed(self) -> bool:
        """Whether the file leaves open how long an axis is, beside the batch."""
        return any(
            isinstance(axis, str) and number != self.batch_axes[spec.name]
            for spec in self.specs
            for number, axis in enumerate(spec.shape)
        )

    def feed(self, num_items: int) -> dict[str, np.ndarray]:
        """Return {input: array} for one call with this number of items, the same ones each time."""
        random = np.random.default_rng(0)
        return {spec.name: self._array(spec, num_items, random) for spec in self.specs}

    def make_golden(self, num_items: int) -> Golden:
        """Return noise as a golden set."""
        return Golden(name="noise", inputs=self._items(num_items), labels=None, sha256="", is_made_up=True)

    def _items(self, num_items: int) -> Items:
        feed = self.feed(num_items)
        if len(self.specs) == 1:
            return feed[self.specs[0].name]
        axes = {name: axis for name, axis in self.batch_axes.items() if axis is not None}
        each = {name: np.moveaxis(feed[name], axis, 0) for name, axis in axes.items()}
        return NamedItems(each, {name: feed[name] for name in feed if name not in axes}, axes)

    def _array(self, spec: TensorSpec, num_items: int, random: np.random.Generator) -> np.ndarray:
        shape = [int(axis) if not isinstance(axis, str) else 1 for axis in self.shapes[spec.name]]
        axis = self.batch_axes[spec.name]
        if axis is not None:
            shape[axis] = num_items
        kind = spec.numpy_type
        if kind in _FRACTIONS:
            return random.standard_normal(shape).astype(kind)
        if kind == "bool":
            return random.integers(0, 2, shape).astype(bool)
        if not shape:
            return np.asarray(_SCALARS.get(spec.name, 1), kind)
        return random.integers(0, self.largest + 1, shape).astype(kind)


def make_up(
    model: ModelPlan,
    specs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    known: Sequence[Shapes] = (),
) -> SyntheticInputs:
    """Return how to make up what a model takes, tried on it unless there is nothing to choose.

    Args:
        model: Which is tried.
        specs: Its inputs.
        metadata: Of its file.
        known: Shapes of its inputs by whoever knows them, the most certain first; free axes are words.

    Raises:
        SettingsError: If it takes what nothing sensible can be made up for, or nothing that was tried is answered.
    """
    for spec in specs:
        if spec.numpy_type not in (*_FRACTIONS, *_WHOLE, "bool"):
            raise SettingsError(
                f"input {spec.name} takes {spec.dtype}, for which nothing sensible can be made up; give --golden"
            )
    candidates = list(_candidates(specs, metadata, known))
    if len(candidates) == 1:
        return candidates[0]
    tried = try_calls(model, [one.feed(_batch(specs[0])) for one in candidates], until_whole=True)
    if tried.refused or tried.missing:
        raise SettingsError(f"{model.artifact} does not open: {tried.refused or tried.missing}")
    answered = [number for number, trial in enumerate(tried.calls) if trial.shapes is not None]
    if not answered:
        raise SettingsError(_explain_none_works(specs, candidates, tried.calls))
    whole = [number for number in answered if tried.calls[number].is_whole]
    return candidates[(whole or answered)[0]]


def _batch(spec: TensorSpec) -> int:
    """Return the batch size that a model is fixed to; 1 where it takes any."""
    return spec.shape[0] if spec.shape and isinstance(spec.shape[0], int) else 1


def _explain_none_works(
    specs: Sequence[TensorSpec], candidates: Sequence[SyntheticInputs], trials: Sequence[ModelTrial]
) -> str:
    """Return in words that nothing was answered, with the last attempt."""
    takes = ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in specs)
    return (
        f"the model takes {takes}, and none of {len(trials)} made-up inputs was answered (the last, of the shape "
        f"{[list(shape) for shape in candidates[len(trials) - 1].shapes.values()]}: {trials[-1].why}); give --golden"
    )


def _candidates(
    specs: Sequence[TensorSpec], metadata: Mapping[str, str], known: Sequence[Shapes]
) -> Iterator[SyntheticInputs]:
    """Give what may be made up, the likeliest first; one, where there is nothing to choose."""
    axes = {spec.name: _batch_axis(spec, is_first=spec is specs[0]) for spec in specs}
    fixed = {spec.name: _merge_shapes(spec, [one[spec.name] for one in known if spec.name in one]) for spec in specs}
    whole = any(spec.numpy_type in _WHOLE and spec.shape for spec in specs)
    sides = (*_sides_of(metadata), *_SIDES)
    images, others = _free(specs, fixed, axes, of_images=True), _free(specs, fixed, axes, of_images=False)
    seen = []
    for largest, side, length in itertools.product(
        _LARGEST if whole else _LARGEST[:1], sides if images else sides[:1], _LENGTHS if others else _LENGTHS[:1]
    ):
        shapes = {spec.name: _fill_shape(fixed[spec.name], axes[spec.name], side, length) for spec in specs}
        if (largest, shapes) not in seen:
            seen.append((largest, shapes))
            yield SyntheticInputs(tuple(specs), shapes, largest, axes)


def _batch_axis(spec: TensorSpec, *, is_first: bool) -> int | None:
    """Return the axis of the items: the first, or the second of a state that says how many layers it has before."""
    if not spec.shape:
        return None
    if is_first or isinstance(spec.shape[0], str):
        return 0
    return 1 if len(spec.shape) > 2 and isinstance(spec.shape[1], str) else None


def _merge_shapes(spec: TensorSpec, known: Sequence[tuple[int | str, ...]]) -> tuple[int | str, ...]:
    """Return a shape in which axes that others know are no longer free."""
    shape = list(spec.shape)
    for other in known:
        if len(other) == len(shape):
            shape = [axis if isinstance(axis, int) else better for axis, better in zip(shape, other, strict=True)]
    return tuple(shape)


def _free(specs: Sequence[TensorSpec], fixed: Shapes, axes: Mapping[str, int | None], *, of_images: bool) -> bool:
    """Return whether an axis is free, of an image or of something else."""
    return any(
        isinstance(axis, str) and number != axes[spec.name]
        for spec in specs
        for number, axis in enumerate(fixed[spec.name])
        if (len(spec.shape) == 4) == of_images
    )


def _fill_shape(
    shape: tuple[int | str, ...], batch_axis: int | None, side: tuple[int, int], length: int
) -> tuple[int | str, ...]:
    """Return a shape with its free axes filled; that of the batch stays as it is."""
    free = [number for number, axis in enumerate(shape) if isinstance(axis, str) and number != batch_axis]
    if len(shape) != 4:
        fill: Mapping[int, int] = dict.fromkeys(free, length)
    else:  # of three the first are the colours
        fill = dict(zip(free, (3, *side)[3 - len(free) :], strict=True))
    return tuple(fill.get(number, axis) for number, axis in enumerate(shape))


def _sides_of(metadata: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Give the size of images that a file's metadata name, as Ultralytics writes it."""
    try:
        said: Any = json.loads(metadata.get("imgsz", ""))
    except ValueError:
        return
    if isinstance(said, int):
        said = [said, said]
    if isinstance(said, list) and len(said) == 2 and all(isinstance(one, int) and one > 0 for one in said):
        yield said[0], said[1]

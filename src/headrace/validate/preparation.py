"""How a pipeline prepares images for one of its models: its own stages from decoding up to the model, opened once.

What comes before a model is the module's `input` and `preprocess`, or stages of the pipeline's own, a fan-out among them. What
`preprocess` hands past the model, such as the size of the image for `postprocess`, is left aside: of a tuple or list, the first
array is what the model gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from headrace.base.current_job import hands
from headrace.base.errors import SettingsError
from headrace.base.plan import ModelPlan, Plan
from headrace.base.records import Job
from headrace.stages.decode import DecodeStage, ResizeStage
from headrace.stages.module import Module, ProcessStage
from headrace.stages.placement import Placement
from headrace.stages.stage import Fan, Stage, StageContext

#: Of the picture whose shape is looked at: (height, width), as a camera has them.
_ANY_IMAGE = (480, 640)


@dataclass(frozen=True, slots=True)
class Prepared:
    """One image as a model gets it."""

    inputs: tuple[np.ndarray, ...]
    """One; after a fan-out as many as there were children."""
    look: tuple[float, float, float]
    """Pixels, mean brightness, and variance of the Laplacian (sharpness) of what was decoded."""
    placement: Placement | None
    """Where the image is in what the model gets; None: nothing was decoded, or there are several children."""


def find_stages_before_model(module: Module, stages: Sequence[Stage] = ()) -> tuple[Stage, ...]:
    """Return the stages that make of a file what a module's model gets.

    Args:
        module: Whose model it is.
        stages: Of the whole pipeline, for a module that does not decode itself.

    Raises:
        SettingsError: If nothing decodes images before it.
    """
    for whole in (module.stages(), stages):
        ends = [at for at, stage in enumerate(whole) if isinstance(stage, ProcessStage) and stage.module is module]
        before = whole[: ends[0]] if ends else ()
        starts = [place for place, stage in enumerate(before) if isinstance(stage, DecodeStage)]
        if starts:
            return tuple(before[starts[-1] :])
    raise SettingsError(
        f"{type(module).__name__}.input is no ImageInput, and no stage of the pipeline decodes images for it: a folder of "
        "images is no golden set for it; give an .npz file"
    )


_NO_JOB = Job(id="", payload=b"")


@dataclass(slots=True)
class _Item:
    """What is in the hands of whoever prepares it: user code may ask where its image is, and note where it put it."""

    placement: Placement | None = None

    @property
    def id(self) -> str:
        """Of no job: what is drawn by it is the same for every image."""
        return _NO_JOB.id

    @property
    def job(self) -> Job:
        """None of a queue: it has no name."""
        return _NO_JOB


class Preparation:
    """Prepares images, one by one.

    Args:
        stages: As `find_stages_before_model` returns them.
        side: `input_side` of the Plan that they follow; None: as the module's input says.
    """

    def __init__(self, stages: Sequence[Stage], side: int | None = None) -> None:
        plan = Plan(model=ModelPlan(input_side=side))
        self._calls = [(stage, stage.open(_context(stage, place, stages, plan))) for place, stage in enumerate(stages)]

    def __call__(self, data: bytes) -> Prepared:
        """Return what the model gets of a file.

        Raises:
            DecodeRejected: If it is no image that can be decoded.
            SettingsError: If what comes out is no array.
        """
        item = _Item()
        hands.items = (item,)
        try:
            return self._prepare(data, item)
        finally:
            hands.items = ()

    def _prepare(self, data: bytes, item: _Item) -> Prepared:
        values: list[Any] = [data]
        look, decoded = (0.0, 0.0, 0.0), (0, 0)
        for stage, call in self._calls:
            values = [made for value in values for made in _children(call(value))]
            if isinstance(stage, DecodeStage):
                decoded = values[0].shape[:2]
            if isinstance(stage, DecodeStage | ResizeStage):
                grey = cv2.cvtColor(values[0], cv2.COLOR_RGB2GRAY)
                pixels = float(decoded[0] * decoded[1])
                look = (pixels, float(grey.mean()), float(cv2.Laplacian(grey, cv2.CV_64F).var()))
        return Prepared(tuple(map(_model_input, values)), look, item.placement if len(values) == 1 else None)


def shape_of_any(stages: Sequence[Stage]) -> tuple[int, ...] | None:
    """Return the shape of an image of ordinary size as a model gets it; None where user code makes none of it."""
    height, width = _ANY_IMAGE
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    try:
        found = Preparation(stages)(cv2.imencode(".png", noise)[1].tobytes())
        return found.inputs[0].shape if found.inputs else None
    except Exception:  # whatever users' code raises on noise: then there is nothing to know
        return None


def _context(stage: Stage, place: int, stages: Sequence[Stage], plan: Plan) -> StageContext:
    def no_model(path: str | None = None) -> Any:
        raise SettingsError(f"stage {stage.name} opens a model before the model: make the golden set yourself, as .npz")

    following = stages[place + 1] if place + 1 < len(stages) else None
    return StageContext(stage=stage.name, worker=0, plan=plan, options={}, next_stage=following, open_model=no_model)


def _children(value: Any) -> Sequence[Any]:
    return value.children if isinstance(value, Fan) else [value]


def _model_input(value: Any) -> np.ndarray:
    """Return the array that a model gets of what was prepared."""
    if isinstance(value, tuple | list):
        value = next((one for one in value if isinstance(one, np.ndarray)), value)
    try:
        array = np.ascontiguousarray(value)
    except ValueError:  # of parts of several shapes
        array = np.empty((), object)
    if array.dtype.kind not in "fiub":
        raise SettingsError(
            f"what is prepared for the model is a {type(value).__name__} and no array of numbers; make the golden set "
            "yourself, as .npz"
        )
    return array

"""Which models a pipeline has for clients: one for each task, what it takes, and what it gives as far as that is known."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.pipeline.definition import Pipeline
from headrace.serve.http.request import as_unicode
from headrace.serve.oip.datatypes import BYTES, check_datatype, count_elements, name_of
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.messages import PRIORITY_LEVELS, Tensor
from headrace.stages.fetch import FetchStage
from headrace.stages.inputs import ArrayInput, ImageInput, Input, TextInput
from headrace.stages.module import ProcessStage
from headrace.stages.stage import Stage

#: The only version of every model: which Plan made a response stands in the response.
VERSION = "1"
#: Items that one request may hold.
MAX_ITEMS = 256
_PLATFORM = "headrace_pipeline"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What is known of an input or output."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """Of one item; -1 for axes of any length."""


@dataclass(slots=True)
class ServedModel:
    """One task of a pipeline, as a model. Thread-safe.

    Attributes:
        name: For clients.
        task: Of the jobs.
        input: What it takes.
        is_declared: Whether datatype and shape of `input` are known; if not, they are learned from the first request that it
            answers, and none is refused for them.
    """

    name: str
    task: str
    input: TensorInfo
    is_declared: bool = True
    _outputs: dict[str, TensorInfo] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def outputs(self) -> list[TensorInfo]:
        """What its responses held so far; nothing before the first."""
        return list(self._outputs.values())

    def check_input(self, name: str, datatype: str, shape: Sequence[int]) -> None:
        """Raise OipError unless it takes an input of this name, datatype and shape, the first axis of which are items."""
        said, wanted = f"input {name:.100}", self.input
        if name != wanted.name:
            raise OipError("oip.unknown_input", f"model {self.name} has no {said}; it takes {wanted.name}")
        check_datatype(datatype, said)
        count_elements(shape, said)
        if not shape or not 1 <= shape[0] <= MAX_ITEMS:
            raise OipError(
                "oip.items", f"{said} has shape {list(shape)}; expected 1 to {MAX_ITEMS} items as its first axis"
            )
        if self.is_declared and datatype != wanted.datatype:
            raise OipError("oip.datatype", f"{said} has datatype {datatype}; model {self.name} takes {wanted.datatype}")
        if datatype == BYTES:
            fits = tuple(shape[1:]) in ((), (1,))
        else:
            fits = not self.is_declared or _fits(shape[1:], wanted.shape)
        if not fits:
            expected = [1] if datatype == BYTES else list(wanted.shape)
            raise OipError(
                "oip.shape",
                f"{said} has shape {list(shape)}; model {self.name} takes {[-1, *expected]}, -1 for any length",
            )

    def learn_input(self, given: Tensor) -> None:
        """Note what a request held that was answered."""
        if not self.is_declared:
            learned = _merge(self.input, given)
            if learned is not self.input:
                self.input = learned

    def learn_outputs(self, answered: Iterable[Tensor]) -> None:
        """Note what a response holds."""
        for tensor in answered:
            if as_unicode(tensor.name) != tensor.name:
                continue  # no client could be told
            known = self._outputs.get(tensor.name)
            merged = _merge(known, tensor)
            if merged is not known:
                with self._lock:
                    self._outputs = {**self._outputs, tensor.name: merged}

    def outline(self) -> dict[str, Any]:
        """Return what a page has to know to ask it; `takes` is image, text, bytes or array."""
        takes = self.input.name if self.input.datatype == BYTES else "array"
        wanted = {"name": self.input.name, "datatype": self.input.datatype}
        return {"task": self.task, "model": self.name, "takes": takes, "input": wanted}

    def describe(self) -> dict[str, Any]:
        """Return its metadata, as JSON has it."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": _PLATFORM,
            "inputs": [_describe(self.input)],
            "outputs": [_describe(one) for one in self.outputs],
        }

    def configure(self) -> dict[str, Any]:
        """Return its configuration, as Triton's clients read it."""
        return {
            "name": self.name,
            "platform": _PLATFORM,
            "backend": "headrace",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": MAX_ITEMS,
            "input": [_configure(self.input)],
            "output": [_configure(one) for one in self.outputs],
            "dynamic_batching": {"priority_levels": PRIORITY_LEVELS, "default_priority_level": PRIORITY_LEVELS},
        }


def models_of(pipeline: Pipeline) -> dict[str, ServedModel]:
    """Return the models of a pipeline by name."""
    return {name_of_model(pipeline, task): _make(pipeline, task, route) for task, route in pipeline.routes.items()}


def name_of_model(pipeline: Pipeline, task: str) -> str:
    """Return the task, or where there is only one the pipeline's name: `faces` of `jobs/first.py:faces`."""
    return task or re.split("[:/]", pipeline.name)[-1].removesuffix(".py")


def _make(pipeline: Pipeline, task: str, route: Sequence[Stage]) -> ServedModel:
    name = name_of_model(pipeline, task)
    wanted = next((stage.module.input for stage in route if isinstance(stage, ProcessStage)), None)
    if not isinstance(route[0], FetchStage) and (wanted is None or isinstance(wanted, ArrayInput)):
        declared = wanted or ArrayInput()
        is_declared = declared.dtype is not None
        datatype = name_of(np.dtype(declared.dtype)) if declared.dtype else None
        shape = tuple(-1 if length is None else length for length in declared.shape or (None,))
        return ServedModel(
            name, task, TensorInfo("input", datatype or "FP32", shape), is_declared and datatype is not None
        )
    return ServedModel(name, task, TensorInfo(_name_input(wanted), BYTES, (1,)))


def _name_input(wanted: Input | None) -> str:
    if isinstance(wanted, ImageInput):
        return "image"
    return "text" if isinstance(wanted, TextInput) else "bytes"


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(b in (-1, a) for a, b in zip(shape, wanted, strict=True))


def _merge(known: TensorInfo | None, seen: Tensor) -> TensorInfo:
    """Return what is known once a tensor was seen; the same object if that is nothing new."""
    shape = seen.shape[1:] or (1,)
    if known is None or known.datatype != seen.datatype or len(known.shape) != len(shape):
        return TensorInfo(seen.name, seen.datatype, shape)
    merged = tuple(a if a == b else -1 for a, b in zip(known.shape, shape, strict=True))
    return known if merged == known.shape else TensorInfo(seen.name, seen.datatype, merged)


def _describe(info: TensorInfo) -> Mapping[str, Any]:
    return {"name": info.name, "datatype": info.datatype, "shape": [-1, *info.shape]}


def _configure(info: TensorInfo) -> Mapping[str, Any]:
    kind = "STRING" if info.datatype == BYTES else info.datatype
    return {"name": info.name, "data_type": f"TYPE_{kind}", "dims": list(info.shape)}

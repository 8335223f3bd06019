"""Faults of the model and its device: arithmetic (F18), memory (F19), new shapes (F29), denormals (F31), waiting (F34)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.faults import work
from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from benchmarks.faults.models import has_onnx, matrix_products, passes_over_memory
from headrace.base.plan import ModelPlan
from headrace.profiler import profile as profiling
from headrace.profiler.nvtx import DeviceTimes, GpuInstruments
from headrace.stages.module import Module, ModuleContext, ProcessStage

_PRODUCTS = 12
_PASSES = 2
_BUILD_SECONDS = 0.06
_ITEMS_PER_SHAPE = 12
_SHAPES = 40
_FAINT_SHARE = 0.05
_NUMBERS, _CONVERSIONS = 1 << 14, 40
_GAP_SECONDS = 0.003
_ON_DEVICE_SECONDS = 0.001


# --- A model of another kind (F18, F19) ------------------------------------------------------------------------------


class Means(Module):
    """A model file whose answer is one number per item."""

    def __init__(self, path: Path) -> None:
        self.model = path

    def load(self, context: ModuleContext) -> None:
        """Open the model."""
        self.open_model = context.open_model()

    def process(self, batch: np.ndarray) -> list[float]:
        """Return the numbers."""
        answers: np.ndarray = self.open_model(batch)
        return [float(answer) for answer in answers]


class _Models:
    """Folder of generated model files, made at the first use and kept until the program ends."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def path(self, name: str, write: Callable[[Path], None]) -> Path:
        """Return the file of this name, written by `write` if it is not there."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="headrace-models-")
        path = Path(self._folder.name) / name
        if not path.exists():
            write(path)
        return path


_models = _Models()


def _with_model(case: Case, path: Path) -> Case:
    model = ModelPlan(threads=1)  # also in place of an emulated device
    changed = case.with_stage(ProcessStage("process", Means(path)))
    return replace(changed, plan=replace(changed.plan, model=model)).with_settings("process.batch=1")


def _large_products(case: Case, dose: float) -> Case:
    count = round(_PRODUCTS * dose)
    return _with_model(case, _models.path(f"{count}-layers.onnx", functools.partial(matrix_products, count=count)))


def _large_tensors(case: Case, dose: float) -> Case:
    count = round(_PASSES * dose)
    return _with_model(case, _models.path(f"{count}-maps.onnx", functools.partial(passes_over_memory, count=count)))


# --- Shapes that come for the first time (F29) -----------------------------------------------------------------------


def _new_shapes(case: Case, dose: float) -> Case:
    padded = functools.partial(_padded, itertools.count().__next__)
    built = functools.partial(_built_for_each_shape, set(), _BUILD_SECONDS * dose)
    return case.around("preprocess", padded).around("process", built)


def _padded(number: Callable[[], int], call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call whose images get a margin, another one after so many items; `number` counts for all workers."""

    def wider(value: Any) -> np.ndarray:
        image: np.ndarray = call(value)
        margin = 8 * (number() // _ITEMS_PER_SHAPE % _SHAPES)
        return np.pad(image, ((0, 0), (0, 0), (0, margin)))

    return wider


def _built_for_each_shape(
    seen: set[tuple[int, ...]], seconds: float, call: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Return a call that first builds something, of so much CPU time, for each shape that it has not seen."""

    def build_and_call(batch: np.ndarray) -> Any:
        if batch.shape[1:] not in seen:
            seen.add(batch.shape[1:])
            work.burn(seconds)
        # What the model was made for is the square without the margin.
        return call(np.ascontiguousarray(batch[..., : batch.shape[-2]]))

    return build_and_call


# --- Denormal numbers (F31) ------------------------------------------------------------------------------------------


class Halves(Module):
    """Keeps its numbers in half precision; what is denormal there, below 6e-5, costs some forty times as much to convert."""

    def process(self, batch: np.ndarray) -> list[float]:
        """Return one number for each item."""
        kept = np.empty(_NUMBERS, np.float16)
        return [self._one(item.reshape(-1)[:_NUMBERS], kept) for item in batch]

    def _one(self, numbers: np.ndarray, kept: np.ndarray) -> float:
        for _ in range(_CONVERSIONS):
            np.copyto(kept, numbers, casting="same_kind")
        return float(kept[0])


def _denormals(case: Case, dose: float) -> Case:
    faint = functools.partial(_faint, itertools.count(1).__next__, min(0.9, _FAINT_SHARE * dose))
    changed = case.with_stage(ProcessStage("process", Halves())).around("preprocess", faint)
    return changed.with_settings("process.batch=1")


def _faint(number: Callable[[], int], share: float, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that makes a share of its results, evenly spread, almost zero; `number` counts for all workers."""

    def fade(value: Any) -> np.ndarray:
        image: np.ndarray = call(value)
        count = number()
        return image * np.float32(1e-6) if int(count * share) > int((count - 1) * share) else image

    return fade


# --- A device that is waited for after each item (F34) ---------------------------------------------------------------


class AsynchronousDevice:
    """A device that takes calls in order, works on them by itself, and knows how long it worked.

    Args:
        item_seconds: How long it works on one item.
    """

    def __init__(self, item_seconds: float) -> None:
        self._item_seconds = item_seconds
        self._calls: queue.SimpleQueue[Future[None] | None] = queue.SimpleQueue()
        self._per_call: list[float] = []

    def launch(self) -> Future[None]:
        """Return at once what says when the device has done one item."""
        done: Future[None] = Future()
        self._calls.put(done)
        return done

    def note_call(self, num_items: int) -> None:
        """Note that the model was called with so many items."""
        self._per_call.append(num_items * self._item_seconds)

    def device_times(self) -> list[DeviceTimes]:
        """Return how long it worked on each call of the model, as `CudaEvents` does for a GPU."""
        return [DeviceTimes(stage="process", seconds=tuple(self._per_call), num_pending=0, num_not_timed=0)]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let it run for the length of a `with` block, and have profiles ask it for its times."""
        self._per_call = []
        worker = threading.Thread(target=self._run, name="device", daemon=True)
        worker.start()
        clock: Any = self  # as much of CudaEvents as a profile uses
        try:
            with mock.patch.object(profiling, "gpu_instruments", return_value=GpuInstruments(events=clock)):
                yield
        finally:
            self._calls.put(None)
            worker.join()

    def _run(self) -> None:
        while (done := self._calls.get()) is not None:
            time.sleep(self._item_seconds)
            done.set_result(None)


class WaitsForEach(Module):
    """Launches one item, waits for it and takes its result to the host, then launches the next.

    Args:
        device: Where it runs.
        gap_seconds: How long taking a result to the host takes; the device has nothing to do meanwhile.
        together: Launch all items first, and take all results at once.
    """

    def __init__(self, device: AsynchronousDevice, gap_seconds: float, *, together: bool = False) -> None:
        self._device = device
        self._gap_seconds = gap_seconds
        self._together = together

    def waiting_once(self) -> WaitsForEach:
        """Return the same with one wait for each batch."""
        return WaitsForEach(self._device, self._gap_seconds, together=True)

    def process(self, batch: Any) -> Sequence[int]:
        """Return a zero for each item."""
        self._device.note_call(len(batch))
        sizes = [len(batch)] if self._together else [1] * len(batch)
        for size in sizes:
            for done in [self._device.launch() for _ in range(size)]:
                done.result()
            time.sleep(self._gap_seconds)
        return [0] * len(batch)


def _waits_for_each(case: Case, dose: float) -> Case:
    device = AsynchronousDevice(_ON_DEVICE_SECONDS)
    changed = case.with_stage(ProcessStage("process", WaitsForEach(device, _GAP_SECONDS * dose)))
    return changed.with_beside(device.running)


def waits_once(case: Case) -> Case:
    """Return the case with one wait for each batch."""
    stage = case.stage("process")
    if not isinstance(stage, ProcessStage) or not isinstance(stage.module, WaitsForEach):
        raise ValueError("the case does not wait for each item")
    return case.with_stage(ProcessStage("process", stage.module.waiting_once()))


_NEEDS_ONNX = "" if has_onnx() else "the package onnx, which writes the model"

FAULTS = (
    Fault(
        id="F18",
        title="a model of large matrix products",
        dose=f"products, from {_PRODUCTS}",
        applies_to=("download_heavy", "decode_heavy"),
        inject=None if _NEEDS_ONNX else _large_products,
        fix=lambda case: case.with_settings("model.threads=2"),
        needs=_NEEDS_ONNX,
    ),
    Fault(
        id="F19",
        title="a model that goes through memory and hardly computes",
        dose=f"passes over 38 MB, from {_PASSES}",
        applies_to=("download_heavy", "decode_heavy"),
        inject=None if _NEEDS_ONNX else _large_tensors,
        needs=_NEEDS_ONNX,
    ),
    Fault(
        id="F29",
        title="inputs of ever new shapes, for each of which the model is built anew",
        dose=f"CPU time of one build, from {_BUILD_SECONDS * 1e3:g} ms",
        applies_to=("download_heavy", "decode_heavy", "device_heavy"),
        inject=_new_shapes,
    ),
    Fault(
        id="F31",
        title="inputs so faint that they are denormal numbers in half precision",
        dose=f"share of such items, from {_FAINT_SHARE:.0%}",
        applies_to=("decode_heavy", "download_heavy"),
        inject=_denormals,
    ),
    Fault(
        id="F34",
        title="a device that is waited for after each item",
        dose=f"how long it has nothing to do after each item, from {_GAP_SECONDS * 1e3:g} ms",
        applies_to=("decode_heavy", "device_heavy"),
        inject=_waits_for_each,
        fix=waits_once,
    ),
)

"""Faults of what computes on the cores: decoding, preprocessing, the GIL, threads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cv2
import numpy as np

from benchmarks.faults import work
from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from benchmarks.faults.shapes import MEGAPIXELS, NUM_IMAGES
from headrace.samples.catalogue import SCENES_MODEL_PATH

_ENLARGED_MEGAPIXELS = 2.0
_LOOP_SECONDS = 0.004
_WORKERS = 4
_THREADS = 4
_LIBRARY_CALLS = 4


class More:
    """Does a piece of work before each call; can be sent to another process.

    Args:
        burn: What to do: `work.spin` or `work.burn`.
        seconds: How much of it, in seconds of CPU time.
    """

    def __init__(self, burn: Callable[[float], None], seconds: float) -> None:
        self._burn = burn
        self._seconds = seconds

    def __call__(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the call with the work before it."""

        def more(value: Any) -> Any:
            self._burn(self._seconds)
            return call(value)

        return more


class Enlarged:
    """Enlarges an image by cubic interpolation before each call, and shrinks it again: a costly resize, in C.

    Args:
        megapixels: Of the enlarged image.
    """

    def __init__(self, megapixels: float) -> None:
        self._megapixels = megapixels

    def __call__(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the call with the resize before it."""

        def resized(image: np.ndarray) -> Any:
            height, width = image.shape[:2]
            factor = math.sqrt(self._megapixels * 1e6 / (height * width))
            large = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
            return call(cv2.resize(large, (width, height), interpolation=cv2.INTER_AREA))

        return resized


def _large_images(case: Case, dose: float) -> Case:
    payloads = functools.partial(work.photographs, NUM_IMAGES, dose * MEGAPIXELS["decode_heavy"])
    return replace(case, payloads=payloads).with_settings("decode.scale=full")


def _costly_resize(case: Case, dose: float) -> Case:
    return case.around("preprocess", Enlarged(_ENLARGED_MEGAPIXELS * dose))


def _python_loop(case: Case, dose: float) -> Case:
    slower = case.around("preprocess", More(work.spin, _LOOP_SECONDS * dose))
    return slower.with_settings("preprocess.executor=thread", f"preprocess.workers={_WORKERS}")


def _loop_in_c(case: Case, dose: float) -> Case:
    slower = case.around("preprocess", More(work.burn, _LOOP_SECONDS * dose))
    return slower.with_settings("preprocess.executor=thread", f"preprocess.workers={_WORKERS}")


def _many_threads(case: Case, dose: float) -> Case:
    # Threads that wait for the others of their call spin, as ONNX Runtime lets them unless it is told otherwise.
    return case.with_settings(
        f"model.threads={round(_THREADS * dose)}", f"process.workers={_WORKERS}", "model.options.spin=true"
    )


def on_library_threads(threads: int, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call before which a library computes on threads of its own, as NumPy and OpenCV do with large arrays.

    Args:
        threads: That it starts, for each worker.
        call: What follows.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    library = onnxruntime.InferenceSession(SCENES_MODEL_PATH, options, providers=["CPUExecutionProvider"])
    image = np.zeros((1, 3, 224, 224), np.float32)

    def before(value: Any) -> Any:
        for _ in range(_LIBRARY_CALLS):
            library.run(None, {library.get_inputs()[0].name: image})
        return call(value)

    return before


def _library_threads(case: Case, dose: float) -> Case:
    return case.around("preprocess", functools.partial(on_library_threads, round(_THREADS * dose)))


FAULTS = (
    Fault(
        id="F8",
        title="large JPEGs, decoded in full",
        dose=f"pixels per image, from {MEGAPIXELS['decode_heavy']:g} megapixels",
        applies_to=("decode_heavy", "download_heavy"),
        inject=_large_images,
        fix=lambda case: case.with_settings("decode.scale=auto"),
    ),
    Fault(
        id="F9",
        title="a costly cubic resize in preprocess",
        dose=f"pixels that it makes, from {_ENLARGED_MEGAPIXELS:g} megapixels",
        applies_to=("decode_heavy", "download_heavy"),
        inject=_costly_resize,
    ),
    Fault(
        id="F10",
        title=f"a loop of pure Python in preprocess, {_WORKERS} threads",
        dose=f"its CPU time per item, from {_LOOP_SECONDS * 1000:g} ms",
        applies_to=("decode_heavy", "download_heavy", "python_preprocess"),
        inject=_python_loop,
        fix=lambda case: case.with_settings("preprocess.executor=process", "preprocess.workers=2"),
    ),
    Fault(
        id="F11",
        title=f"the same loop in C without the GIL, {_WORKERS} threads",
        dose=f"its CPU time per item, from {_LOOP_SECONDS * 1000:g} ms",
        applies_to=("decode_heavy", "download_heavy"),
        inject=_loop_in_c,
    ),
    Fault(
        id="F12",
        title=f"{_WORKERS} workers call a model that computes with many threads each",
        dose=f"threads of each call, from {_THREADS}",
        applies_to=("download_heavy",),
        inject=_many_threads,
        fix=lambda case: case.with_settings("model.threads=1", "process.workers=1", "model.options.spin=false"),
    ),
    Fault(
        id="F46",
        title="preprocess calls a library that computes with many threads of its own in each worker",
        dose=f"threads of each worker, from {_THREADS}",
        applies_to=("decode_heavy", "download_heavy"),
        inject=_library_threads,
    ),
)

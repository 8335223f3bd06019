"""Faults of what computes on the cores: decoding, preprocessing, the GIL, threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.testing.faults import work
from headrace.testing.faults.case import Case
from headrace.testing.faults.fault import Fault
from headrace.testing.faults.shapes import MEGAPIXELS, NUM_IMAGES


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


def _large_images(case: Case, dose: float) -> Case:
    payloads = functools.partial(work.photographs, NUM_IMAGES, dose * MEGAPIXELS["decode_heavy"])
    return replace(case, payloads=payloads).with_settings("decode.scale=full")


def _python_loop(case: Case, dose: float) -> Case:
    slower = case.around("preprocess", More(work.spin, 0.002 * dose))
    return slower.with_settings("preprocess.executor=thread", "preprocess.workers=4")


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
        id="F10",
        title="a loop of pure Python in preprocess, four threads",
        dose="CPU time per item, from 2 ms",
        applies_to=("decode_heavy", "download_heavy", "python_preprocess"),
        inject=_python_loop,
        fix=lambda case: case.with_settings("preprocess.executor=process", "preprocess.workers=2"),
    ),
)

"""Faults that grow while the run goes on: cores that get slower (F30), images that get larger (F32)."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from benchmarks.faults import work
from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from benchmarks.faults.shapes import MEGAPIXELS

_COMPUTING = ("decode", "resize", "preprocess", "process")
_SIZES = 6
_IMAGES_PER_SIZE = 4
#: What is asked for, or called, before the pipeline flows: its queues are filled, batches of all sizes are tried.
_FIRST_IMAGES, _WARM_UP_CALLS = 40, 100


@dataclass(slots=True)
class Ramp:
    """Rises evenly from 1 to a height, once it has begun.

    Args:
        height: Where it ends and stays.
        seconds: How long it rises.
        calls: How many questions it waits for before it begins: warming up is no part of it.
    """

    height: float
    seconds: float
    calls: int = 0
    _num_asked: int = 0
    _began: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> float:
        """Return where it stands."""
        with self._lock:
            self._num_asked += 1
            if self._num_asked <= self.calls:
                return 1.0
            if self._began is None:
                self._began = time.monotonic()
            return 1 + (self.height - 1) * min(1.0, (time.monotonic() - self._began) / self.seconds)


def slowed(ramp: Ramp, extra: Callable[[float], None], call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that takes as many times the CPU time as the ramp says, as on a core whose clock goes down.

    Args:
        ramp: How many times, now; 1 is as before.
        extra: Uses up the rest: `work.spin` where the call holds the GIL, `work.burn` where it does not.
        call: What is slowed.
    """

    def slower(value: Any) -> Any:
        began = time.thread_time()
        result = call(value)
        extra((time.thread_time() - began) * (ramp.now() - 1))
        return result

    return slower


def _slower_cores(case: Case, dose: float) -> Case:
    ramp = Ramp(dose, case.seconds, calls=_WARM_UP_CALLS)
    for stage in case.stages:
        if stage.name in _COMPUTING:
            extra = work.burn if stage.releases_gil else work.spin
            case = case.around(stage.name, functools.partial(slowed, ramp, extra))
    return case


class Growing(Sequence[bytes]):
    """Images that get larger as time goes on, without end once they are asked for one after the other.

    Args:
        by_size: Images of each size, smallest first.
        seconds: When the largest come.
    """

    def __init__(self, by_size: Sequence[Sequence[bytes]], seconds: float) -> None:
        self._by_size = by_size
        self._seconds = seconds

    def __iter__(self) -> Iterator[bytes]:
        ramp = Ramp(float(len(self._by_size)), self._seconds, calls=_FIRST_IMAGES)
        number = 0
        while True:
            sizes = self._by_size[min(len(self._by_size), int(ramp.now())) - 1]
            yield sizes[number % len(sizes)]
            number += 1

    def __len__(self) -> int:
        return sum(len(images) for images in self._by_size)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        return [image for images in self._by_size for image in images][index]


def _larger_images(case: Case, dose: float) -> Case:
    first = MEGAPIXELS[case.shape]
    sizes = [first * dose ** (step / (_SIZES - 1)) for step in range(_SIZES)]

    def payloads() -> Sequence[bytes]:
        return Growing([work.photographs(_IMAGES_PER_SIZE, megapixels) for megapixels in sizes], case.seconds)

    return replace(case, payloads=payloads)


FAULTS = (
    Fault(
        id="F30",
        title="all stages that compute get slower together, as on cores whose clock goes down",
        dose="how many times as slow at the end of the run",
        applies_to=("download_heavy", "decode_heavy", "python_preprocess"),
        inject=_slower_cores,
    ),
    Fault(
        id="F32",
        title="images that get larger during the run",
        dose="how many times as many pixels at the end of the run",
        applies_to=("decode_heavy",),
        inject=_larger_images,
    ),
)

"""Work of a stated size: so many seconds of CPU time, in C without the GIL or in pure Python with it, and real photographs.

How this works: both kinds are calibrated once per process, on the clock of the calling thread's CPU time, so that other
programs hardly matter. Pieces stay below a few milliseconds; what a call burns is the sum of its pieces.
"""

from __future__ import annotations

import functools
import hashlib
import io
import math
import time
from collections.abc import Callable

from PIL import Image

from headrace.samples.catalogue import PHOTOGRAPHS

#: SHA-256 releases the GIL for more than 2,047 bytes; its speed does not depend on the data.
_BUFFER = memoryview(bytes(1 << 20))
_TRIES = 7
_CALIBRATED_BYTES = 1 << 20
_CALIBRATED_TURNS = 20_000


def burn(cpu_seconds: float) -> None:
    """Keep one core busy in C, without the GIL, for about so much CPU time."""
    num_bytes = round(cpu_seconds * measure_bytes_per_second())
    while num_bytes > 0:
        hashlib.sha256(_BUFFER[:num_bytes])
        num_bytes -= len(_BUFFER)


def spin(cpu_seconds: float) -> None:
    """Run a loop of pure Python, which holds the GIL, for about so much CPU time."""
    turn(round(cpu_seconds * measure_turns_per_second()))


def calibrate() -> None:
    """Find out how fast this machine is, so that the first item does not have to."""
    measure_bytes_per_second()
    measure_turns_per_second()


@functools.cache
def measure_bytes_per_second() -> float:
    return _CALIBRATED_BYTES / _least_cpu_seconds(lambda: hashlib.sha256(_BUFFER))


@functools.cache
def measure_turns_per_second() -> float:
    return _CALIBRATED_TURNS / _least_cpu_seconds(lambda: turn(_CALIBRATED_TURNS))


def turn(turns: int) -> int:
    total = 0
    for number in range(turns):
        total = (total + number * 7) & 0xFFFF
    return total


def _least_cpu_seconds(call: Callable[[], object]) -> float:
    """Return the CPU time of the fastest of some calls: what disturbs only ever adds."""
    least = math.inf
    for _ in range(_TRIES):
        started = time.thread_time()
        call()
        least = min(least, time.thread_time() - started)
    return least


@functools.cache
def photographs(count: int, megapixels: float) -> tuple[bytes, ...]:
    """Return JPEG files made from the photographs that ship with headrace, of 0.7 to 1.3 times a size; kept.

    Args:
        count: How many different ones, >= 1.
        megapixels: Their mean size, > 0.
    """
    files = []
    for number in range(count):
        share = 0.7 + 0.6 * number / (count - 1) if count > 1 else 1.0
        files.append(_jpeg(number * 5 % count, megapixels * share))
    return tuple(files)


def _jpeg(number: int, megapixels: float) -> bytes:
    photograph = PHOTOGRAPHS[number % len(PHOTOGRAPHS)]
    with Image.open(photograph.path) as image:
        factor = math.sqrt(megapixels * 1e6 / (photograph.width * photograph.height))
        size = round(photograph.width * factor), round(photograph.height * factor)
        file = io.BytesIO()
        image.convert("RGB").resize(size, Image.Resampling.BILINEAR).save(file, "JPEG", quality=85)
    return file.getvalue()

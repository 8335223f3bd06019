"""The threads inside BLAS: how many it may use, and how to change that while the program runs.

Only libraries that are loaded are looked at, through their own functions. OpenMP is left alone: its number belongs to each
thread that calls it.

References:
    OpenBLAS, interface/openblas_set_num_threads; NumPy's and SciPy's copies put `scipy_` before and `64_` behind the name.
    Intel oneMKL, MKL_Set_Num_Threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.metering import thread_cpu_seconds

_NAMES = [
    (f"{prefix}openblas_get_num_threads{suffix}", f"{prefix}openblas_set_num_threads{suffix}")
    for prefix in ("", "scipy_")
    for suffix in ("", "64_")
] + [("MKL_Get_Max_Threads", "MKL_Set_Num_Threads")]


@dataclass(frozen=True, slots=True)
class Library:
    """One copy of BLAS in this process."""

    path: str
    get: Callable[[], int]
    set: Callable[[int], object]


def find_libraries(maps: Path = Path("/proc/self/maps")) -> list[Library]:
    """Return the copies of BLAS that are loaded and can use more than one thread now."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return []
    paths = {line.split()[-1] for line in lines if "blas" in line or "libmkl_rt" in line}
    found = (_open(path) for path in sorted(paths) if ".so" in path)
    return [library for library in found if library is not None and library.get() > 1]


def native_cpu_seconds() -> float:
    """Return the CPU time so far of threads of this process that Python did not start, and that live."""
    own = {thread.native_id for thread in threading.enumerate()}
    try:
        others = [int(name) for name in os.listdir("/proc/self/task") if int(name) not in own]
    except OSError:
        return 0.0
    return sum(thread_cpu_seconds(thread) or 0.0 for thread in others)


@contextlib.contextmanager
def one_thread(libraries: list[Library]) -> Iterator[None]:
    """Have each library compute in the thread that calls it, and let it have its threads again in the end."""
    before = [(library, library.get()) for library in libraries]
    try:
        for library in libraries:
            library.set(1)
        yield
    finally:
        for library, count in before:
            library.set(count)


def _open(path: str) -> Library | None:
    try:
        loaded: Any = ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_NOLOAD)  # nothing that is not here already
    except OSError:
        return None
    for get, put in _NAMES:
        if hasattr(loaded, get) and hasattr(loaded, put):
            return Library(path, getattr(loaded, get), getattr(loaded, put))
    return None

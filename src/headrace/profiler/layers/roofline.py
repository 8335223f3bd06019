"""The ceilings of this machine, and which of them limits a layer.

How this works: the compute ceiling is the best float32 matrix product by the same library as the model's. The memory ceiling
is the best of copies and sums of NumPy arrays by as many threads as the model uses, each with arrays of its own: NumPy lets
go of the GIL there. Small layers never leave the caches, so bandwidth is measured at several sizes, and a layer is judged by
the one at its own size; judged by main memory alone it would beat its ceiling. Bytes are counted as for layers, once for
each array read or written; what a store fetches before it writes is not counted.

References:
    Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model, CACM 2009.
    Ilic, Pratas and Sousa, Cache-aware Roofline Model, IEEE Computer Architecture Letters 2014.
    McCalpin, STREAM: Sustainable Memory Bandwidth in High Performance Computers, 1995.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from headrace.profiler.layers.operations import Work
from headrace.profiler.layers.protocol import LayerProfiler
from headrace.runs.formats.layers import Bandwidth, Bound, Ceilings

MATRIX_SIDES = (512, 1024)
OVERHEAD_RATIO = 0.1
"""A layer that reaches less than this of its ceiling is limited by neither."""
_CACHED_BYTES = (256 * 2**10, 2 * 2**20, 16 * 2**20)
"""Working sets, all threads together, about those of a core's own cache and of the shared one."""
_DEFAULT_CACHE_BYTES = 32 * 2**20
_MAX_BYTES = 2**30
_MIN_PASS_BYTES = 64 * 2**20
"""Moved in one measurement, so that it takes milliseconds."""
_NUM_PASSES = 4

#: Types whose matrix products are at least as fast as float32's, so that its ceiling bounds from below.
_NARROWER = frozenset({"int4", "uint4", "int8", "uint8", "float8", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a layer."""

    bound: Bound
    of_ceiling: float | None
    """Achieved over possible; None where the ceiling that counts was not measured."""


def measure_ceilings(profiler: LayerProfiler, threads: int) -> Ceilings:
    """Return what this machine can do with this many threads; takes one to two seconds.

    Args:
        profiler: Whose library multiplies the matrices.
        threads: >= 1, as many as the model used.
    """
    flops = max(2 * side**3 / profiler.matrix_product_seconds(side, threads=threads) for side in MATRIX_SIDES)
    memory_bytes = _memory_bytes()
    bandwidths = tuple(
        Bandwidth(working_set_bytes=size, bytes_per_second=_bandwidth(size, threads))
        for size in sorted({*(size for size in _CACHED_BYTES if size < memory_bytes / 2), memory_bytes})
    )
    sides = " and ".join(f"{side}x{side}" for side in MATRIX_SIDES)
    return Ceilings(
        flops_per_second=flops,
        bytes_per_second=bandwidths[-1].bytes_per_second,
        threads=threads,
        method=f"best of {profiler.engine} float32 matrix products {sides}; best of NumPy copies and sums of "
        f"{memory_bytes / 2**20:.0f} MiB, and of smaller arrays for layers that fit into a cache",
        bandwidths=bandwidths,
    )


def judge(work: Work, seconds: float, precision: str, ceilings: Ceilings | None) -> Verdict:
    """Return what limits a layer and how close it comes.

    Args:
        work: The layer's operations and bytes per call.
        seconds: What a call takes, > 0.
        precision: Type that it computes with; the compute ceiling is float32's.
        ceilings: Of the machine, by as many threads as the layer had.
    """
    if ceilings is None or work.flops is None or work.num_bytes is None or seconds <= 0:
        return Verdict("unknown", None)
    compute_seconds = work.flops / ceilings.flops_per_second
    memory_seconds = work.num_bytes / bandwidth_at(work.num_bytes, ceilings)
    of_ceiling = max(compute_seconds, memory_seconds) / seconds
    comparable = precision == "float32" or work.flops == 0
    if memory_seconds < compute_seconds and not comparable:
        # The ceiling of narrow types lies above float32's: far below the one is further below the other, no more is known.
        below = precision in _NARROWER and of_ceiling < OVERHEAD_RATIO
        return Verdict("overhead" if below else "unknown", None)
    if of_ceiling < OVERHEAD_RATIO:
        return Verdict("overhead", of_ceiling)
    return Verdict("memory" if memory_seconds >= compute_seconds else "compute", of_ceiling)


def bandwidth_at(num_bytes: float, ceilings: Ceilings) -> float:
    """Return the bandwidth, in bytes per second, of a working set, between the measured sizes by its logarithm."""
    if not ceilings.bandwidths or num_bytes <= 0:
        return ceilings.bytes_per_second
    sizes = [math.log(point.working_set_bytes) for point in ceilings.bandwidths]
    return float(np.interp(math.log(num_bytes), sizes, [point.bytes_per_second for point in ceilings.bandwidths]))


def _memory_bytes() -> int:
    """Return a size that no cache holds: twice the last-level cache, where the machine tells it."""
    return min(max(2 * (_last_level_cache_bytes() or _DEFAULT_CACHE_BYTES), 2 * _DEFAULT_CACHE_BYTES), _MAX_BYTES)


def _last_level_cache_bytes(cpu: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int | None:
    sizes = [text[:-1] for path in cpu.glob("index*/size") if (text := path.read_text().strip()).endswith("K")]
    return max((int(size) * 1024 for size in sizes), default=None)


def _bandwidth(working_set_bytes: int, threads: int) -> float:
    """Return bytes per second of the better of copying and adding."""
    each = working_set_bytes / threads / 4  # float32 elements of a thread
    repeats = max(1, _MIN_PASS_BYTES // working_set_bytes)
    halves = [[np.ones(int(each / 2), np.float32) for _ in range(2)] for _ in range(threads)]
    best = _best_pass([partial(np.copyto, c, a) for a, c in halves], repeats, halves)
    thirds = [[np.ones(int(each / 3), np.float32) for _ in range(3)] for _ in range(threads)]
    return max(best, _best_pass([partial(np.add, a, b, out=c) for a, b, c in thirds], repeats, thirds))


def _best_pass(works: Sequence[Callable[[], object]], repeats: int, arrays: Sequence[Sequence[np.ndarray]]) -> float:
    num_bytes = sum(array.nbytes for group in arrays for array in group) * repeats
    return num_bytes / min(_pass_seconds(works, repeats) for _ in range(_NUM_PASSES))


def _pass_seconds(works: Sequence[Callable[[], object]], repeats: int) -> float:
    """Return the wall time from the start of the first thread to the end of the last."""
    times: list[float] = []
    together = threading.Barrier(len(works))

    def repeat(work: Callable[[], object]) -> None:
        together.wait()
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        times.extend((started, time.perf_counter()))

    threads = [threading.Thread(target=repeat, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(times) - min(times)

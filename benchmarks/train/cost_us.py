"""What recording costs the training thread, microseconds of its CPU time for each step.

Blocks with recorder and hooks and blocks without follow one another, off on on off, in one process; what counts is the
difference of each pair. `list`: batches that are there already, the cost of the recorder alone. `loader`: a `DataLoader`
without workers, where the training thread also measures each item that it loads.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.train.loops import BATCHES, Parts
from headrace.base.records import Span
from headrace.train.loader_watch import WatchedLoader
from headrace.train.recorder import Recorder
from headrace.train.torch_hooks import TorchHooks

#: Passes through the loader in a block; the first ones are not measured: outermost modules are found in them, and all of the
#: first steps are metered where of short steps only some are later on.
_PASSES, _WARM_UP = 7, 4


def run(*, quick: bool) -> dict[str, Any]:
    """Return for both kinds of batches the cost of a step, its 95 % interval, and what a step takes without recording.

    Args:
        quick: 20 pairs of blocks instead of 200.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: _measure(name, 20 if quick else 200) for name in ("list", "loader")}
    finally:
        torch.set_num_threads(threads)


def _measure(name: str, pairs: int) -> dict[str, Any]:
    differences, bare = [], []
    for number in range(pairs):
        order = (False, True) if number % 2 else (True, False)
        taken = {is_on: _block(name, is_on=is_on) for is_on in order}
        differences.append(taken[True] - taken[False])
        bare.append(taken[False])
    error = 1.96 * statistics.stdev(differences) / math.sqrt(pairs)
    mean = statistics.fmean(differences)
    return {
        "mean": mean,
        "interval": [mean - error, mean + error],
        "median": statistics.median(differences),
        "step_us": statistics.median(bare),
        "pairs": pairs,
        "steps_of_a_block": BATCHES * (_PASSES - _WARM_UP),
    }


def _block(name: str, *, is_on: bool) -> float:
    """Return the CPU time of a step, us."""
    written: deque[Sequence[Span]] = deque(maxlen=1)  # as in a session, where the writer's thread takes and drops it
    recorder = Recorder(written.append)
    hooks = TorchHooks(recorder) if is_on else None
    watch: Callable[[Any], Any] = (lambda loader: WatchedLoader(loader, recorder)) if is_on else (lambda loader: loader)
    parts = Parts(watch)
    batches = watch([parts.data[at : at + 16] for at in range(0, 16 * BATCHES, 16)]) if name == "list" else parts.loader
    begun = 0
    try:
        for number in range(_PASSES):
            if number == _WARM_UP:
                begun = time.thread_time_ns()
            for images, labels in batches:
                parts.learn(images, labels)
                parts.update()
        return (time.thread_time_ns() - begun) / (BATCHES * (_PASSES - _WARM_UP)) / 1e3
    finally:
        if hooks is not None:
            hooks.detach()
        recorder.close()

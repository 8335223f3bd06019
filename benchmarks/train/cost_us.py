"""What recording costs: microseconds of the training thread's CPU time for each step, and of a loading thread's for each item.

Blocks with recorder and hooks and blocks without follow one another, off on on off, in one process; what counts is the
difference of each pair. `list`: batches that are there already, the cost of the recorder alone. `loader`: a `DataLoader`
without workers, where the training thread also measures each item that it loads. `hooks`: batches as in `list`, and hooks of
PyTorch that tell nobody: what any recorder would take. `item`: what makes batches in a worker gets 64 items of a data set
without transforms; `transformed`: of one whose items are transformed, which is timed apart. Both have the cost of a batch in
them, spread over its items.

    python -m benchmarks.train.cost_us [--quick] [--json] [--write]
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from benchmarks import measure
from benchmarks.train.loops import BATCHES, Parts
from headrace.base.records import Span
from headrace.train.loader_clock import BatchClock, WatchedFetcher
from headrace.train.loader_watch import WatchedLoader
from headrace.train.recorder import Recorder
from headrace.train.torch_hooks import TorchHooks

#: Passes through the loader in a block; the first ones are not measured: outermost modules are found in them, and all of the
#: first steps are metered where of short steps only some are later on.
_PASSES, _WARM_UP = 7, 4


#: Of a batch; batches of a block.
_ITEMS, _FETCHES = 64, 100
STEPS, ITEMS = ("list", "loader", "hooks"), ("item", "transformed")


def run(*, quick: bool) -> dict[str, Any]:
    """Return for each kind the cost of a step or item, its 95 % interval, and what that takes without recording.

    Args:
        quick: 20 pairs of blocks instead of 60.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pairs = 20 if quick else 60
    try:
        steps = {name: _measure(lambda is_on, name=name: _block(name, is_on=is_on), pairs) for name in STEPS}
        items = {name: _measure(lambda is_on, name=name: _fetch(name, is_on=is_on), pairs) for name in ITEMS}
    finally:
        torch.set_num_threads(threads)
    return {**steps, **items, "settings": {"pairs": pairs, "steps_of_a_block": BATCHES * (_PASSES - _WARM_UP)}}


def _measure(run_block: Callable[[bool], float], pairs: int) -> dict[str, Any]:
    differences, bare = [], []
    for number in range(pairs):
        order = (False, True) if number % 2 else (True, False)
        taken = {is_on: run_block(is_on) for is_on in order}
        differences.append(taken[True] - taken[False])
        bare.append(taken[False])
    error = 1.96 * statistics.stdev(differences) / math.sqrt(pairs)
    mean = statistics.fmean(differences)
    return {
        "mean": mean,
        "interval": [mean - error, mean + error],
        "median": statistics.median(differences),
        "bare_us": statistics.median(bare),
    }


class _Numbers(torch.utils.data.Dataset):
    """Items that cost next to nothing."""

    def __init__(self, *, is_transformed: bool) -> None:
        self.transform = _pass_on if is_transformed else None
        self._item = torch.zeros(4)

    def __len__(self) -> int:
        return _ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._item if self.transform is None else self.transform(self._item)


def _pass_on(item: torch.Tensor) -> torch.Tensor:
    return item


def _fetch(name: str, *, is_on: bool) -> float:
    """Return the CPU time of an item, us."""
    fetcher: Any = _MapDatasetFetcher(_Numbers(is_transformed=name == "transformed"), True, default_collate, False)
    if is_on:
        fetcher = WatchedFetcher(fetcher, BatchClock(lambda _: None, os.getpid(), is_alone=True))
    indices = list(range(_ITEMS))
    for _ in range(5):
        fetcher.fetch(indices)
    begun = time.thread_time_ns()
    for _ in range(_FETCHES):
        fetcher.fetch(indices)
    return (time.thread_time_ns() - begun) / (_FETCHES * _ITEMS) / 1e3


class _Silent(Recorder):
    """Is told of everything, and does nothing."""

    takes_forward = True

    def forward_begins(self, **_: Any) -> None: ...
    def forward_ended(self, **_: Any) -> None: ...
    def backward_begins(self) -> None: ...
    def backward_ended(self, **_: Any) -> None: ...
    def update_begins(self, optimizer: int = 0) -> None: ...
    def update_ended(self) -> None: ...


def _block(name: str, *, is_on: bool) -> float:
    """Return the CPU time of a step, us."""
    written: deque[Sequence[Span]] = deque(maxlen=1)  # as in a session, where the writer's thread takes and drops it
    recorder = (_Silent if name == "hooks" else Recorder)(written.append)
    hooks = TorchHooks(recorder) if is_on else None
    is_watched = is_on and name != "hooks"
    watch: Callable[[Any], Any] = (lambda loader: WatchedLoader(loader, recorder)) if is_watched else (lambda one: one)
    parts = Parts(watch)
    listed = [parts.data[at : at + 16] for at in range(0, 16 * BATCHES, 16)]
    batches = parts.loader if name == "loader" else watch(listed)
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


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    settings = result["settings"]
    lines = [
        "# What recording a training costs",
        "",
        f"CPU time, in us, by {settings['pairs']} pairs of blocks with and without it, of {settings['steps_of_a_block']} steps",
        "or 100 batches of 64 items; goals: 25 us a step, 2 us an item. `hooks`: PyTorch's hooks alone, which tell nobody.",
        "",
        "| of | more with it | 95 % interval | without |",
        "|---|---|---|---|",
    ]
    for name, what in (*((one, "a step") for one in STEPS), *((one, "an item") for one in ITEMS)):
        one = result[name]
        low, high = one["interval"]
        lines.append(f"| {what}, {name} | {one['mean']:.1f} | {low:.1f} to {high:.1f} | {one['bare_us']:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run_benchmark("train.cost_us", __doc__.splitlines()[0], lambda quick: run(quick=quick), as_text)

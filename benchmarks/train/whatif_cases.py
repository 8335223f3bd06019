"""The trainings of `benchmarks.train.whatif`, and the changes of each that are predicted and then made."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from headrace.runs.formats.prediction import Change


@dataclass(frozen=True)
class Job:
    """A training on one thread: real decoding, sleeps for storage, matrix products for the model."""

    workers: int = 0
    prefetch: int = 2
    in_order: bool = True
    persistent: bool = False
    batch: int = 8
    accumulate: int = 1
    items: int = 200_000
    """In the data set: an epoch."""
    read_seconds: float = 0.0
    """Sleep for each item."""
    slow_every: int = 0
    """One item in so many sleeps `slow_seconds` more; 0: none."""
    slow_seconds: float = 0.0
    decodes: int = 1
    """How often each photograph is decoded."""
    augments: int = 1
    width: int = 512
    """Of the model's one layer."""
    layers: int = 4
    """How often that layer is applied; its parameters are the same each time."""
    parameters: int = 0
    """More parameters, which cost only the optimizer."""
    after: int = 0
    """Arrays that are sorted after each update."""
    is_cached: bool = False
    """Items are kept once they were decoded; the first epoch is not measured."""


@dataclass(frozen=True)
class WhatIf:
    """A change as `headrace whatif` gets it, and as it is made."""

    change: Change
    fields: dict[str, Any]
    """Of `Job`."""

    def make(self, job: Job) -> Job:
        """Return the changed training."""
        return dataclasses.replace(job, **self.fields)


def _set(**fields: Any) -> WhatIf:
    """Return a change of settings of the loader or of the loop."""
    keys = {"workers", "prefetch", "in_order", "persistent"}
    settings = tuple(
        f"{'loader.' if name in keys else ''}{name}={str(value).lower()}" for name, value in fields.items()
    )
    return WhatIf(Change(settings=settings), fields)


def _faster(fields: dict[str, Any], **times: float) -> WhatIf:
    return WhatIf(Change(speedups=times), fields)


JOBS: dict[str, Job] = {
    "alone": Job(read_seconds=0.001, augments=2, items=8 * 48),
    "decoding": Job(workers=1, decodes=2),
    "storage": Job(workers=2, read_seconds=0.004),
    "model": Job(workers=2, width=1024, layers=8, after=40),
    "skewed": Job(workers=2, width=1024, read_seconds=0.0005, slow_every=8 * 10, slow_seconds=0.15),
    "epochs": Job(workers=2, items=8 * 24, read_seconds=0.001),
    "updates": Job(workers=1, layers=2, parameters=2_000_000),
    "contended": Job(workers=2, augments=12),
}

WHAT_IFS: dict[str, tuple[WhatIf, ...]] = {
    "alone": (
        _set(workers=1),
        _set(workers=2),
        _set(workers=4),
        _set(accumulate=4),
        _faster({"read_seconds": 0.0005}, read=2),
        _faster({"augments": 1}, augment=2),
        WhatIf(Change(settings=("cache=ram",)), {"is_cached": True}),
        _set(workers=3),
        _set(accumulate=2),
        _faster({"layers": 2}, forward=2, backward=2),
        WhatIf(Change(settings=("loader.workers=2",), speedups={"augment": 2}), {"workers": 2, "augments": 1}),
    ),
    "decoding": (
        _set(workers=0),
        _set(workers=2),
        _set(workers=3),
        _set(prefetch=6),
        _faster({"decodes": 1}, decode=2),
        _faster({"layers": 2}, forward=2, backward=2),
        WhatIf(Change(settings=("loader.workers=2",), speedups={"decode": 2}), {"workers": 2, "decodes": 1}),
        _set(workers=4),
        _set(prefetch=1),
        _set(accumulate=2),
        WhatIf(
            Change(settings=("loader.workers=2",), speedups={"forward": 2, "backward": 2}), {"workers": 2, "layers": 2}
        ),
    ),
    "storage": (
        _set(workers=0),
        _set(workers=1),
        _set(workers=4),
        _set(workers=8),
        _set(prefetch=1),
        _faster({"read_seconds": 0.002}, read=2),
        _faster({"read_seconds": 0.0005}, read=8),
        _set(workers=3),
        _set(workers=6),
        _set(workers=4, prefetch=4),
        WhatIf(Change(settings=("loader.workers=4",), speedups={"read": 2}), {"workers": 4, "read_seconds": 0.002}),
    ),
    "model": (
        WhatIf(Change(drop=("after",)), {"after": 0}),
        _faster({"after": 20}, after=2),
        _faster({"layers": 4}, forward=2, backward=2),
        _set(workers=1),
        _set(workers=0),
        _set(accumulate=2),
        _set(workers=3),
        _set(accumulate=4),
        _faster({"after": 10}, after=4),
        _faster({"layers": 4, "after": 20}, forward=2, backward=2, after=2),
    ),
    "skewed": (
        _set(in_order=False),
        _set(prefetch=8),
        _set(workers=4),
        _set(workers=4, in_order=False),
        _set(workers=1),
        _set(workers=3),
        _set(prefetch=4),
        _set(workers=3, in_order=False),
        _set(prefetch=4, in_order=False),
    ),
    "epochs": (
        _set(persistent=True),
        _set(workers=1),
        _set(workers=4),
        _set(workers=4, persistent=True),
        _faster({"read_seconds": 0.0005}, read=2),
        _set(workers=3),
        _set(workers=3, persistent=True),
        _faster({"read_seconds": 0.00025}, read=4),
        WhatIf(
            Change(settings=("loader.persistent=true",), speedups={"read": 2}),
            {"persistent": True, "read_seconds": 0.0005},
        ),
    ),
    "updates": (
        _set(accumulate=2),
        _set(accumulate=4),
        _set(accumulate=8),
        _set(accumulate=4, workers=2),
        _set(workers=0),
        _set(accumulate=3),
        _set(accumulate=16),
        _set(workers=2),
        _faster({"layers": 1}, forward=2, backward=2),
    ),
    "contended": (
        _set(workers=1),
        _set(workers=3),
        _set(workers=4),
        _faster({"augments": 6}, augment=2),
        _faster({"augments": 2}, augment=6),
        _faster({"layers": 2}, forward=2, backward=2),
        _set(workers=0),
        _set(accumulate=2),
        _faster({"augments": 4}, augment=3),
        WhatIf(Change(settings=("loader.workers=4",), speedups={"augment": 2}), {"workers": 4, "augments": 6}),
    ),
}

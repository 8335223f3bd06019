"""What is planted, and what the recorder must name: the change, and the stage where it shows (None: the whole run).

The rules of `headrace.monitor.recorder` were written before this list, and the list before its first run; that named 18 of 24.
Then quotas that change, calls that never end with all workers, and waiting for a core beside a disk got rules. The compound
ones, two at once, were not run until then: for them both changes must be among the first three.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.runs.formats.incident import ChangeKind as K


@dataclass(frozen=True, slots=True)
class Planted:
    """One incident."""

    name: str
    expected: tuple[tuple[K, str | None], ...]
    """One change, or two of a compound incident."""
    knobs: dict[str, Any] = field(default_factory=dict)
    """What happens from half of the time on; see `world.World`."""
    also: frozenset[K] = frozenset()
    """Kinds that are as right: another name of the same thing."""


SINGLE = (
    Planted("arrivals x3", ((K.ARRIVALS, None),), {"rate": 3.0}),
    Planted("arrivals x6", ((K.ARRIVALS, None),), {"rate": 6.0}),
    Planted("images 6 x as large", ((K.INPUT_SIZE, None),), {"images": "large"}),
    Planted("images 12 x as large", ((K.INPUT_SIZE, None),), {"images": "huge"}),
    Planted("slow download host, 0.3 s", ((K.DOWNLOAD, "fetch"),), {"host": "slow"}),
    Planted("narrow link to the host", ((K.DOWNLOAD, "fetch"),), {"host": "narrow"}),
    Planted("slow receiver, 0.3 s", ((K.RECEIVER, "deliver"),), {"receiver": "slow"}),
    Planted("receiver answers 503", ((K.RECEIVER, "deliver"),), {"receiver": "failing"}),
    Planted("one camera sends garbage", ((K.INPUT_FAILURES, "decode"),), {"garbage": "cam3"}),
    Planted("every fifth image is cut off", ((K.INPUT_FAILURES, "decode"),), {"garbage": "cut"}),
    Planted("neighbour on every core", ((K.NEIGHBOUR, None),), {"neighbours": 2}),
    Planted("four neighbours", ((K.NEIGHBOUR, None),), {"neighbours": 4}),
    Planted("CPU quota of 0.15 cores", ((K.QUOTA, None),), {"quota": 0.15}),
    Planted("one core fewer, and a busy one left", ((K.CORES, None),), {"cores": 1, "rate": 1.0}),
    Planted("another model, 5 x as slow", ((K.MODEL, "process"),), {"model": 5.0}),
    Planted(
        "device 4 x as slow", ((K.DEVICE, "process"),), {"around": ("process", "sleep", 0.06)}, frozenset({K.CODE})
    ),
    Planted("decoding burns 25 ms more", ((K.CODE, "decode"),), {"around": ("decode", "burn", 0.025)}),
    Planted("preprocess loops in Python", ((K.CODE, "preprocess"),), {"around": ("preprocess", "spin", 0.025)}),
    Planted("slow disk", ((K.DISK, "preprocess"),), {"around": ("preprocess", "disk", 8.0)}),
    Planted("lock contention", ((K.LOCK, "preprocess"),), {"around": ("preprocess", "lock", 0.04)}),
    Planted("garbage collection of a large heap", ((K.GC, None),), {"gc": 400_000}),
    Planted("memory leak", ((K.MEMORY, None),), {"leak": 1.5e6}),
    Planted("worker hangs", ((K.WORKERS, "lookup"),), {"hang": ("lookup", 3)}),
    Planted("a service that a stage asks is slow", ((K.REMOTE, "lookup"),), {"lookup": "slow"}),
)

COMPOUND = (
    Planted(
        "larger images and a slow receiver",
        ((K.INPUT_SIZE, None), (K.RECEIVER, "deliver")),
        {"images": "large", "receiver": "slow"},
    ),
    Planted("arrivals x2 and a neighbour", ((K.ARRIVALS, None), (K.NEIGHBOUR, None)), {"rate": 2.0, "neighbours": 3}),
    Planted(
        "slow host and another model",
        ((K.DOWNLOAD, "fetch"), (K.MODEL, "process")),
        {"host": "slow", "model": 5.0},
    ),
    Planted("quota and larger images", ((K.QUOTA, None), (K.INPUT_SIZE, None)), {"quota": 0.5, "images": "large"}),
    Planted(
        "garbage and a slow lookup",
        ((K.INPUT_FAILURES, "decode"), (K.REMOTE, "lookup")),
        {"garbage": "cam3", "lookup": "slow"},
    ),
    Planted(
        "leak and slow disk",
        ((K.MEMORY, None), (K.DISK, "preprocess")),
        {"leak": 1.5e6, "around": ("preprocess", "disk", 8.0)},
    ),
)


def is_right(planted: Planted, changes: list[dict[str, Any]]) -> bool:
    """Return whether what was named is what was planted: a single change first, two among the first three.

    A change whose stage is None in the catalogue may show at any stage: larger images are met first where they are downloaded.
    """
    named = [(K(change["kind"]), change["stage"]) for change in changes]
    if len(planted.expected) == 1:
        named = named[:1]
    return all(
        any((kind == one or one in planted.also) and stage in (None, where) for one, where in named[:3])
        for kind, stage in planted.expected
    )

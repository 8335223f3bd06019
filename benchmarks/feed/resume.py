"""1,000 random runs, each stopped and gone on with other ranks and batches: the sequence must be the same.

Then a training program is killed 200 times and goes on with other threads and batches; see `loader_kills`. Not by `--quick`.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.feed.loader_kills import kill
from headrace.store.order import Course, Order, Position

_LARGE = 100_000_000


def run(*, quick: bool) -> dict[str, Any]:
    """Return how many cases were wrong, and what the first batch costs at sample 100,000,000 beyond a fresh start."""
    cases = 1_000
    wrong = sum(not _is_same(random.Random(seed)) for seed in range(cases))
    killed = {} if quick else _kill()
    fresh, late = _first_batch(0), _first_batch(_LARGE - 10_000)
    return {"cases": cases, "wrong": wrong, "state_bytes": len(Position(0, 0, 0).encode(Order(1, 0))),
            "fresh_ms": fresh * 1e3, "late_ms": late * 1e3, "killed": killed}  # fmt: skip


def _kill() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return kill(Path(folder), 200)


def _is_same(draw: random.Random) -> bool:
    size = draw.randint(1, 300)
    order = Order(size, seed=draw.getrandbits(64), block=draw.choice([None, None, 16]))
    sequence: list[int] = []
    position = None
    for _ in range(draw.randint(1, 5)):
        ranks, batch, steps = draw.randint(1, 4), draw.randint(1, 9), draw.randint(1, 8)
        courses = [Course(order, batch, rank=rank, ranks=ranks, position=position).batches() for rank in range(ranks)]
        for _ in range(steps):
            for course in courses:
                one = next(course)
                sequence += one.samples.tolist()[: len(one.samples) - one.num_repeated]
        position = Position.decode(one.after.encode(order), order)
    epochs = len(sequence) // size + 1
    expected = [sample for epoch in range(epochs) for sample in order.samples(epoch, 0, size).tolist()]
    return sequence == expected[: len(sequence)]


def _first_batch(place: int) -> float:
    began = time.perf_counter()
    order = Order(_LARGE, seed=1)
    next(Course(order, 256, position=Position(1, 3, place)).batches())
    return time.perf_counter() - began


def as_text(found: dict[str, Any]) -> str:
    """Return a paragraph."""
    killed = found["killed"]
    program = (
        f"\n\nA training program that was killed {killed['kills']} times (SIGKILL at a random moment), each start with "
        f"other threads, batches and bytes ahead: {killed['lost']} samples lost, {killed['doubled']} doubled, "
        f"{killed['wrong']} wrong of {killed['samples']:,}; {killed['other_order']} of {killed['rounds']} runs in another "
        "order (goal: 0)."
        if killed
        else ""
    )
    return (
        f"## Resuming\n\n{found['wrong']} of {found['cases']:,} random runs, stopped and gone on with other ranks and batches, "
        f"gave another sequence (goal: 0). State: {found['state_bytes']} bytes. First batch of 256 of 100,000,000 samples: "
        f"{found['fresh_ms']:.1f} ms from the beginning, {found['late_ms']:.1f} ms at sample 99,990,000.{program}"
    )

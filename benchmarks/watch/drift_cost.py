"""What watching for drift costs an item: counting it, reading what its result says, and looking at the pixels of some.

How many are looked at closely is adapted to the collector's budget, as in a run; the cost is that at which it settles.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.base.records import Job
from headrace.monitor.drift.collector import BUDGET_RATIO, FIRST_STEP, MOST_STEP, Collector
from headrace.samples.generator import crops
from headrace.stages.decode import decode

#: Images a second of the machine on which the cost was first looked at (serving guide); two cores decode about as many.
_RATE = 176
_GOAL_SHARE = 0.005


def measure(quick: bool) -> dict[str, Any]:
    """Return what `drift` holds of the cost."""
    cost = _measure_cost(quick)
    return {"drift": {"cpu_share": cost["share"], "cost": cost}}


def _measure_cost(quick: bool) -> dict[str, float]:
    """Return the CPU time of counting an item and of looking at one, and their share of a core."""
    files = [crop.data for crop in crops(20, 3)]
    images = [decode(data, short_side=256) for data in files]
    jobs = [Job(str(number), data, attributes={"camera": number % 20}) for number, data in enumerate(files * 20)]
    rounds = 1 if quick else 15

    def per_item(step: int, act: Callable[[Collector, Job, bytes, np.ndarray], object]) -> float:
        found = []
        for _ in range(rounds):
            collector = Collector("camera", window_items=100_000)
            collector.step = step
            began = time.thread_time()
            for number, job in enumerate(jobs):
                act(collector, job, files[number % 20], images[number % 20])
            found.append((time.thread_time() - began) / len(jobs))
        return statistics.median(found) * 1e6

    look = per_item(1, lambda collector, job, data, image: collector.look(job, image))
    skip = per_item(1 << 30, lambda collector, job, data, image: collector.look(job, image))
    answer = per_item(8, lambda collector, job, data, image: collector.answer(job, ("label", 0.5)))
    step, count = FIRST_STEP // 2, math.inf
    while step < MOST_STEP and (count + look / step) * 1e-6 * _RATE > BUDGET_RATIO:  # as `Collector.adapt` does
        step *= 2
        count = per_item(
            step, lambda collector, job, data, image: collector.enter(job, data, "decode", image, None, 1000)
        )
    item = count + skip + answer + look / step
    return {
        "count_us": count, "look_us": look, "answer_us": answer, "item_us": item, "rate": _RATE, "step": step,
        "share": item * 1e-6 * _RATE,
    }  # fmt: skip


def as_text(result: dict[str, Any]) -> str:
    """Return the part of the page for readers."""
    cost = result["drift"]["cost"]
    return (
        "## What watching for drift costs\n\n"
        f"An item costs {cost['item_us']:.1f} us of CPU. Looking at one closely costs {cost['look_us']:.0f} us, for "
        f"one in {cost['step']}: {cost['share']:.2%} of a core at {cost['rate']} items/s. How many are looked at is adapted to "
        f"{BUDGET_RATIO:.1%} of a core, as in a run; 500 of them, a window, take {500 * cost['step'] / cost['rate']:.0f} s."
    )


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line if the goal was missed."""
    share = result["drift"]["cpu_share"]
    return [f"drift: {share:.2%} of a core; the goal is {_GOAL_SHARE:.1%}"] if share > _GOAL_SHARE else []

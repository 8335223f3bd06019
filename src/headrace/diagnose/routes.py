"""Which stages a job goes through: the tasks of a pipeline are routes beside one another, or parts of one route.

A stage's task chooses its model's settings. In a pipeline of several modules each job is of one task; where modules are chained
(`Module.stages(task=...)`) each job goes through them all. `run.json` does not tell these apart, and the spans do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.diagnose.span_columns import SpanColumns


def find_routes(tasks: Mapping[str, str], spans: SpanColumns) -> dict[str, str]:
    """Return {stage: the route that it lies on}: empty where all jobs go through it, or there is one route.

    Two tasks are on one route if any job was seen in stages of both. A route is named after its first task.

    Args:
        tasks: {stage: its task}; empty for those that all tasks share.
        spans: Of the whole run.
    """
    names = tuple(dict.fromkeys(task for task in tasks.values() if task))
    seen = np.zeros((len(names), len(spans.unit_ids)), np.float32)
    for stage, task in tasks.items():
        if task:
            seen[names.index(task), spans.root[spans.of(stage)]] = 1.0
    together = seen @ seen.T > 0
    route = list(range(len(names)))
    for first, second in np.argwhere(together):
        low, high = sorted((route[first], route[second]))
        route = [low if one == high else one for one in route]
    if len(set(route)) < 2:
        return dict.fromkeys(tasks, "")
    return {stage: names[route[names.index(task)]] if task else "" for stage, task in tasks.items()}

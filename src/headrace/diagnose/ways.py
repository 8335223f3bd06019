"""Which stages a job goes through: the tasks of a pipeline are ways beside one another, or parts of one way.

A stage's task chooses its model's settings. In a pipeline of several modules each job is of one task; where modules are chained
(`Module.stages(task=...)`) each job goes through them all. `run.json` does not tell these apart, and the spans do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.diagnose.span_columns import SpanColumns


def find_ways(tasks: Mapping[str, str], spans: SpanColumns) -> dict[str, str]:
    """Return {stage: the way that it lies on}: empty where all jobs go through it, or there is one way.

    Two tasks are on one way if any job was seen in stages of both. A way is called by its first task.

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
    way = list(range(len(names)))
    for first, second in np.argwhere(together):
        low, high = sorted((way[first], way[second]))
        way = [low if one == high else one for one in way]
    if len(set(way)) < 2:
        return dict.fromkeys(tasks, "")
    return {stage: names[way[names.index(task)]] if task else "" for stage, task in tasks.items()}

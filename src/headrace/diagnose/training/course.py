"""How steps went over time, as few points: a page of 100,000 steps must be drawn at once."""

from __future__ import annotations

import numpy as np

from headrace.diagnose.training.steps import RankSteps, Stretches
from headrace.runs.formats.training_profile import CoursePoint, EpochTime
from headrace.runs.training_phases import Kind

_MOST_POINTS, _MOST_EPOCHS = 400, 1_000


def course_of(steps: Stretches) -> tuple[CoursePoint, ...]:
    """Return the steps in order, so many at a time that there are few points."""
    if not len(steps):
        return ()
    size = -(-len(steps) // _MOST_POINTS)
    begins = np.arange(0, len(steps), size)
    counts = np.diff(np.append(begins, len(steps)))
    longest = np.maximum.reduceat(steps.wall, begins)
    means = np.add.reduceat(steps.wall, begins) / counts
    phases = {phase: np.add.reduceat(times.wall, begins) / counts for phase, times in steps.phases.items()}
    return tuple(
        CoursePoint(
            at_seconds=float(steps.started[begin] - steps.started[0]),
            steps=int(counts[index]),
            mean_seconds=float(means[index]),
            longest_seconds=float(longest[index]),
            phases={str(phase): float(values[index]) for phase, values in phases.items()},
        )
        for index, begin in enumerate(begins)
    )


def epochs_of(rank: RankSteps) -> tuple[EpochTime, ...]:
    """Return the passes over the data, the first ones; empty where no step began one."""
    steps = rank.steps
    begins = np.array([index for index, kind in enumerate(steps.kinds) if kind is Kind.EPOCH_START], np.int64)
    ends = np.append(begins[1:], len(steps))
    return tuple(
        EpochTime(
            steps=int(end - begin), seconds=float(steps.wall[begin:end].sum()), first_seconds=float(steps.wall[begin])
        )
        for begin, end in list(zip(begins, ends, strict=False))[:_MOST_EPOCHS]
    )

"""What the others did while a thread waited for a lock: who holds it is not seen, but that somebody writes meanwhile is.

A logging handler holds its lock while it writes. Who waits for that lock waits for the pipe or the disk behind it.
"""

from __future__ import annotations

import numpy as np

from headrace.diagnose.blocked_split import locate_samples
from headrace.diagnose.gauges import StateSamples
from headrace.diagnose.span_columns import SpanColumns
from headrace.runs.formats.profile import Window

#: Samples of a stage's waiting for a lock below which nothing is said.
FEWEST_SAMPLES = 10
_LOCK = "lock"


def share_of_lock_waits(
    spans: SpanColumns,
    states: StateSamples | None,
    window: Window,
    stage: str,
    meanwhile: tuple[str, ...],
    *,
    by_own: bool = False,
) -> float | None:
    """Return in which share of a stage's waits for a lock some worker was in one of these states at the same moment.

    Args:
        spans: Of the run.
        states: Samples; all workers are looked at in the same moment.
        window: Of the run that counts.
        stage: Whose threads wait.
        meanwhile: States of any other worker within a service.
        by_own: Look at workers of the same stage only.

    Returns:
        0 to 1; None where too few samples found the stage waiting for a lock.
    """
    if states is None or _LOCK not in states.state_names or stage not in spans.stage_names:
        return None
    kept, of_stage = locate_samples(spans, states, window)
    wanted = [code for code, name in enumerate(states.state_names) if name in meanwhile]
    is_waiting = (states.state[kept] == states.state_names.index(_LOCK)) & (of_stage == spans.stage_names.index(stage))
    waits = states.times[kept][is_waiting]
    if len(waits) < FEWEST_SAMPLES:
        return None
    is_meant = np.isin(states.state[kept], wanted)
    if by_own:
        is_meant &= of_stage == spans.stage_names.index(stage)
    return float(np.isin(waits, states.times[kept][is_meant]).mean())

"""Makes the memory profile of a process from its samples: by phase, swap, faults, stalls, growth."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from headrace.base.documents import convert_document
from headrace.diagnose.training.steps import Array
from headrace.runs.formats.training import TrainingProcess
from headrace.runs.formats.training_memory import MemoryProfile, MemoryRecord

#: Samples of a phase below which its memory is not told, and of the training below which no growth is.
FEWEST_IN_PHASE, FEWEST_FOR_GROWTH = 3, 12
#: The first part of the samples: allocators and caches fill, which ends.
_SETTLING = 0.25
#: With the first part: samples from which on growth can be told.
FEWEST_WITH_GROWTH = 16
#: Growth is named if it comes to so much over the samples, and to this share of what was resident.
_SOME_BYTES, _SOME_SHARE = 32 * 2**20, 0.05
#: ... and if of so many pairs of samples the later one is larger.
_STEADY = 0.9


def memory_profile(about: TrainingProcess | None, limit_bytes: int | None) -> MemoryProfile | None:
    """Return the memory of a process while it trained; None where it was not sampled, or the file cannot be understood.

    Args:
        about: What the process said of itself.
        limit_bytes: What it may take; None: not known.
    """
    record = None if about is None else read_record(about)
    if record is None or not record.at_ns:
        return None
    resident = np.asarray(record.resident_bytes, np.float64)
    seconds = max((record.at_ns[-1] - record.at_ns[0]) / 1e9, 0.0)
    stalled = record.stalled_us
    return MemoryProfile(
        num_samples=len(resident),
        limit_bytes=limit_bytes,
        peak_bytes=int(resident.max()) if record.peak_bytes is None else record.peak_bytes,
        resident_bytes=_by_phase(record.phases, resident),
        swapped_bytes=max(record.swapped_bytes),
        major_faults_per_second=(record.major_faults[-1] - record.major_faults[0]) / seconds if seconds else 0.0,
        stalled_share=(stalled[-1] - stalled[0]) / 1e6 / seconds if stalled and seconds else None,
        growth_bytes_per_step=growth(np.asarray(record.steps, np.float64), resident),
        owned=record.owned,
        device_peak_bytes=record.device_peak_bytes,
    )


def read_record(about: TrainingProcess) -> MemoryRecord | None:
    """Return the samples; None where there are none, or where columns differ in length."""
    try:
        record = convert_document(about.details.get("memory"), MemoryRecord)
    except (msgspec.ValidationError, AttributeError):
        return None
    columns: list[Sequence[object]] = [
        record.at_ns, record.steps, record.phases, record.resident_bytes, record.swapped_bytes, record.major_faults,
        *([] if record.stalled_us is None else [record.stalled_us]),
    ]  # fmt: skip
    return record if len({len(column) for column in columns}) == 1 else None


def growth(steps: Array, resident: Array) -> float | None:
    """Return by how many bytes a step memory grows; None where it does not, or not steadily.

    The slope is the median of the slopes of all pairs of samples (Theil and Sen): single peaks do not move it.

    Args:
        steps: float64: steps that had ended at each sample.
        resident: float64: bytes at the same moment.
    """
    begin = int(len(steps) * _SETTLING)
    steps, resident = steps[begin:], resident[begin:]
    if len(steps) < FEWEST_FOR_GROWTH or steps[-1] <= steps[0]:
        return None
    earlier, later = np.triu_indices(len(steps), 1)
    distance = steps[later] - steps[earlier]
    rise = (resident[later] - resident[earlier])[distance > 0]
    slope = float(np.median(rise / distance[distance > 0]))
    total = slope * float(steps[-1] - steps[0])
    is_much = total >= max(_SOME_BYTES, _SOME_SHARE * float(np.median(resident)))
    return slope if is_much and float((rise > 0).mean()) >= _STEADY else None


def _by_phase(phases: Sequence[str], resident: Array) -> dict[str, int]:
    names = np.asarray(phases)
    return {
        str(name): int(np.median(resident[names == name]))
        for name in dict.fromkeys(phases)
        if int((names == name).sum()) >= FEWEST_IN_PHASE
    }

"""Every fault, by id; each theme's file adds its own."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.faults import (
    batch_faults,
    control_faults,
    cpu_faults,
    delivery_faults,
    device_faults,
    download_faults,
    drift_faults,
    environment_faults,
    outcome_faults,
    profiling_faults,
    python_faults,
    runtime_faults,
    source_faults,
    storage_faults,
)
from benchmarks.faults.fault import Fault

_THEMES: tuple[tuple[Fault, ...], ...] = (
    source_faults.FAULTS,
    download_faults.FAULTS,
    cpu_faults.FAULTS,
    environment_faults.FAULTS,
    batch_faults.FAULTS,
    delivery_faults.FAULTS,
    control_faults.FAULTS,
    device_faults.FAULTS,
    python_faults.FAULTS,
    runtime_faults.FAULTS,
    storage_faults.FAULTS,
    drift_faults.FAULTS,
    outcome_faults.FAULTS,
    profiling_faults.FAULTS,
)

#: By id, in the catalogue's order.
FAULTS: Mapping[str, Fault] = {
    fault.id: fault for fault in sorted((one for theme in _THEMES for one in theme), key=lambda one: int(one.id[1:]))
}

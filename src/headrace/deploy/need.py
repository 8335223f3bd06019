"""How much of a machine one worker needs, from a profile of it at work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import SettingsError
from headrace.base.units import format_size

if TYPE_CHECKING:
    from headrace.runs.formats.profile import ProfileDocument

#: Memory that is left free above the most that was seen: larger images, batches of all sizes, fragmentation.
_MEMORY_ROOM = 1.5
_MEMORY_STEP = 64 * 2**20
#: Share of what was asked for that a worker uses at work.
_CPU_USED = 0.8
#: Memory of a supervisor and what answers scrapes.
BESIDE_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Of one worker process."""

    cores: float
    """To ask for."""
    memory_bytes: int
    """To ask for, and at most."""
    says: str
    """Where that comes from."""
    longest_seconds: float | None = None
    """What the slowest jobs took; None: not known."""


def find_need(profile: ProfileDocument) -> Need:
    """Return what a worker like the recorded one needs.

    Raises:
        SettingsError: If the run does not tell.
    """
    series = {(one.scope, one.name): one for one in profile.series}
    memory = series.get(("processes", "rss_bytes"))
    if profile.cpu is None or memory is None or not profile.cpu.elapsed_seconds:
        raise SettingsError(
            f"the run {profile.run} does not tell what its worker used; record it with headrace profile, for some seconds"
        )
    used = profile.cpu.total_seconds / profile.cpu.elapsed_seconds
    cores = max(0.1, min(profile.cpu.num_cores, math.ceil(10 * used / _CPU_USED) / 10))
    memory_bytes = math.ceil(_MEMORY_ROOM * memory.maximum / _MEMORY_STEP) * _MEMORY_STEP
    return Need(
        cores=cores,
        memory_bytes=memory_bytes,
        says=f"run {profile.run}: a worker used {used:.2f} cores and up to {format_size(memory.maximum)}",
        longest_seconds=profile.latency.percentile(99) or profile.latency.maximum,
    )

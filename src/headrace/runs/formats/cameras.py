"""How many cameras a machine holds: `headrace.cameras/1`. Version 1: 2026-11, first."""

from __future__ import annotations

import msgspec

SCHEMA = "headrace.cameras/1"


class CamerasDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to: how many cameras like the recorded ones?"""

    schema: str = SCHEMA
    run: str
    headrace_version: str
    pipeline: str
    plan_id: str
    camera_rate: float
    """Frames per second that one camera sends and that are decoded."""
    used_rate: float
    """Frames per second of one camera that go into the pipeline, as chosen in the run."""
    cpu_seconds_per_decoded_frame: float
    """Of everything: reading, decoding, conversion, stages, the runtime."""
    cores: float
    """That the recorded process may use."""
    slo: str = ""
    """The latency goal, as given."""
    headroom: float
    """Share of the cores and of the stages' full load that is left free."""
    by_cpu: float
    """Cameras for which the cores do."""
    by_stages: float | None = None
    """Cameras for which the slowest stage does, and the goal holds; None: it cannot be told."""
    cameras: int | None
    """The smaller one of both, whole; None: it cannot be told."""
    says: tuple[str, ...]
    """The result in words."""
    warnings: tuple[str, ...] = ()
    refused: str = ""
    """Why it cannot be told, or that the goal holds at no rate."""
    slo_met: bool | None = None
    """Whether the goal holds at some rate; None without a goal, or if it cannot be told."""

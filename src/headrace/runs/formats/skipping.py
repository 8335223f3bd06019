"""What it costs to look at fewer frames of labelled clips: `headrace.skipping/1`. Version 1: 2026-11, first."""

from __future__ import annotations

import msgspec

from headrace.runs.formats.outcomes import Decided

SCHEMA = "headrace.skipping/1"


class FrameEvents(msgspec.Struct, frozen=True, kw_only=True):
    """How the stretches of one label were told."""

    label: str
    total: int
    """Stretches that the labels have."""
    found: int
    false: int
    """Stretches that were told and overlap none of them."""


class SkippingResult(msgspec.Struct, frozen=True, kw_only=True):
    """One way to look at the clips: which frames, and how their answers are smoothed."""

    every: int
    """Each so many-th frame is worked on; the answer of the last one holds for those between."""
    smooth_seconds: float | None = None
    """Half-life of the average of scores; None: answers as they are."""
    work: float
    """Share of the frames that the model works on."""
    right: float
    """Share of the labelled frames for which the answer that holds is right."""
    flips_per_minute: float
    """Changes of the answer, less those of the labels."""
    changes: int
    """Of the labels, at the begin of a clip too."""
    never_told: int
    """Of these, changes whose new label was not answered before the next one."""
    delay_seconds: float | None = None
    """From a change until it was told, median of those that were; None: none was."""
    delay_p90_seconds: float | None = None
    events: FrameEvents | None = None
    """Of the label that was asked for; None: none was."""
    drop: float | None = None
    """Of `right` against the reference; None: it is the reference."""
    drop_low: float | None = None
    """One-sided ends of the drop's interval."""
    drop_high: float | None = None
    outcome: Decided | None = None
    """Whether the drop is acceptable; None: it is the reference."""
    why: str = ""
    """Why it is not decided."""


class SkippingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to: is every third frame enough?"""

    schema: str = SCHEMA
    headrace_version: str
    results: str
    """The file, as given."""
    labels: str
    labels_sha256: str
    streams: int
    frames: int
    labelled_frames: int
    stretches: int
    """Stretches of ten seconds, or streams where there are enough, from which the intervals are drawn."""
    max_drop: float
    alpha: float
    """Of each decision."""
    reference: SkippingResult
    """Every frame, answers as they are."""
    tried: tuple[SkippingResult, ...]
    best: int | None = None
    """Place in `tried` of the one with least work whose drop is acceptable; None: none is."""
    says: str
    warnings: tuple[str, ...] = ()

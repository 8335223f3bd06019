"""What a running pipeline did when it was perturbed, `experiment.json` of the run folder, schema `headrace.experiment/1`.

Version 1: 2026-11, first. Written by `headrace.profiler.experiment`; read by diagnosis, what-if and report.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "headrace.experiment/1"
FILE = "experiment.json"

Kind = Literal["delay", "fewer", "more", "gil", "cores", "native_threads", "receiving", "batch"]
Ended = Literal["decided", "budget", "interrupted", "source_ended", "too_slow"]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A measured figure and how far the truth may lie from it, 95 % over all looks together."""

    low: float
    mid: float
    high: float

    def __str__(self) -> str:
        return f"{self.mid:z.2f} [{self.low:z.2f}, {self.high:z.2f}]"


class StationState(msgspec.Struct, frozen=True, kw_only=True):
    """One station without a perturbation."""

    name: str
    stages: tuple[str, ...]
    """That share its workers."""
    num_workers: int
    utilization: float
    """Share of its workers' time in the stages, 0 to 1; of what a perturbation adds nothing."""
    service_seconds: float
    """Mean of an item, or of a batch over its items, in all its stages."""


class Perturbation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was changed, in turn with nothing changed, and what it cost."""

    name: str
    """`delay:STATION`, `fewer:STATION`, `more:STATION`, `batch:STATION`, `gil`, `cores`, `native_threads`, `receiving`."""
    kind: Kind
    station: str | None
    says: str
    """What was changed, in words."""
    amount: float | None
    """By how much an item takes more of the resource, as a share of what there is at the rate of the run: 0.25 is a quarter
    more; negative: there was more of the resource. None where it has no such figure."""
    num_pairs: int
    ratio: Interval | None
    """Throughput over that without it; None with too few pairs."""
    sensitivity: Interval | None
    """Share of `amount` by which the time per finished item grew: 1: this resource is the limit, 0: it has room."""
    latency: Interval | None
    """Median time in the pipeline over that without it."""
    service: float | None
    """Mean service of the perturbed station over that without it; None where none is perturbed."""
    decided: bool
    """The sensitivity, or the ratio where there is none, lies on one side of the threshold."""
    left_out: str = ""
    """Why it was not measured to the end; empty: it was."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the run in which one thing held."""

    name: str
    """Of the perturbation; empty: nothing was changed."""
    began: float
    """Seconds since the experiment began."""
    seconds: float
    throughput: float | None
    """Items per second after it had settled; None: too few items to tell."""


class ExperimentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment on a running pipeline."""

    schema: str = SCHEMA
    headrace_version: str
    pipeline: str
    plan_id: str
    delivered: bool
    """Whether results were delivered; if not, the delivery was left out and nothing is said of it."""
    budget_seconds: float
    seconds: float
    """That it took, from the first job on."""
    ended: Ended
    throughput: float | None
    """Items per second with nothing changed."""
    cost: float
    """Share of the throughput that the perturbations cost over the whole time, >= 0."""
    stations: tuple[StationState, ...]
    perturbations: tuple[Perturbation, ...]
    stretches: tuple[Stretch, ...]
    warnings: tuple[str, ...] = ()
    conclusion: str = ""
    """What it shows, in a sentence. Empty in the file: an analysis draws it, by its own rules."""

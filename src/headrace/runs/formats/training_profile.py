"""Where the time of a training went, schema `headrace.training/1`: what the verdicts, the text and the page are made of.

Made from a run folder whose unit is `step` and nothing else, by `headrace.diagnose.training.profile`. Version 1: 2026-11.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.runs.formats.training import TrainingProcess
from headrace.runs.formats.training_memory import MemoryProfile
from headrace.runs.formats.training_ranks import RanksDocument
from headrace.runs.formats.training_trace import TraceRecord

SCHEMA = "headrace.training/1"


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Durations, in seconds; None where there are none."""

    count: int
    mean: float | None
    median: float | None
    p95: float | None
    p99: float | None


class PhaseTime(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a plain step."""

    phase: str
    """See `headrace.runs.training_phases.Phase`."""
    seconds: float
    """Mean of the plain steps; those of all phases add up to the mean step."""
    share: float
    """Of the step, 0 to 1."""
    p95_seconds: float
    cpu_seconds: float | None
    """Mean of the training thread; None: not measured, as below."""
    run_delay_seconds: float | None
    """Mean time that the training thread could run and had no core."""
    blocked_seconds: float | None
    """Mean of what is left: sleeping, reading, waiting for other threads or processes."""
    host_seconds: float | None = None
    """Mean of what the training thread took, where `seconds` are a device's; None: they are the thread's."""


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """What is not averaged with the plain steps. Each moment of the training is in one of these, or in a plain step."""

    what: str
    """`warm_up`, `epoch_start`, `recompiled`, `profiled`, `uneven`, `checkpoint`, `cut` and `failed` are steps; `validation`
    and `between` are not."""
    count: int
    seconds: float
    """Sum."""


class LoadingWork(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of work that loading a batch takes."""

    work: str
    """See `headrace.runs.training_phases.LoaderWork`; `items` is what is left of it without its parts."""
    seconds: float
    """Mean of a batch."""
    cpu_seconds: float | None
    run_delay_seconds: float | None
    blocked_seconds: float | None


class LoadingProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What loading costs where it is done: in the workers, or in the training thread."""

    workers: int
    """0: the training thread loads."""
    batches: int
    """Whose cost was recorded."""
    batches_per_step: float
    seconds: float
    """Mean of a batch."""
    median_seconds: float
    p95_seconds: float
    busy_share: float | None
    """Cost of a step's batches over (workers x step): near 1, the workers limit; None without workers."""
    work: tuple[LoadingWork, ...]
    """The dearest first."""
    headroom: float | None = None
    """How many times faster the model may become before loading limits; below 1 it does. None without workers."""


class CoursePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps in a row, of any kind."""

    at_seconds: float
    """When the first of them began, since the training began."""
    steps: int
    mean_seconds: float
    longest_seconds: float
    phases: dict[str, float]
    """{phase: mean seconds}."""


class LayerTime(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the model; `headrace train --layers`."""

    name: str
    """Within the outermost module, such as `layer4` or `layer4.0`; of that one itself, its class."""
    module: str
    """Its class."""
    parameters: int
    forward_seconds: float
    """Of its calls in a step, the middle one of a few steps."""
    backward_seconds: float | None
    """From the gradient of its output to the last one of its parameters; None: not known."""


def layer_costs(layers: Sequence[LayerTime]) -> tuple[str, tuple[float, ...]]:
    """Return by what the parts are compared, and seconds of each: `forward and backward`; `forward` if one is not known."""
    if any(one.backward_seconds is None for one in layers):
        return "forward", tuple(one.forward_seconds for one in layers)
    return "forward and backward", tuple(one.forward_seconds + (one.backward_seconds or 0.0) for one in layers)


class EpochTime(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over the data."""

    steps: int
    seconds: float
    """From the request for its first batch to the end of its last step; without validation and what is between."""
    first_seconds: float
    """Of its first step, with the start of the loader's workers."""


class RankProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One process that trained."""

    rank: int
    host: str
    process: int
    steps: int
    step: Spread
    """Of plain steps after the warm-up."""
    samples_per_second: float | None
    """Of all steps but the first, with the turns of epochs and without validation: what `headrace whatif` begins from. None
    where samples are not known."""
    total_seconds: float
    """From the first stretch to the end of the last."""
    plain_share: float
    """Of that: plain steps."""
    steps_share: float
    """Of that: all steps."""
    phases: tuple[PhaseTime, ...]
    """In the order of a step; those that occurred."""
    apart: tuple[Apart, ...]
    """Those that occurred."""
    checkpoints: int
    checkpoint_seconds: float
    """Sum, wherever they were made."""
    epoch_start_seconds: float
    """Sum of what the turns of epochs cost: starting workers, and waiting longer than in a plain step."""
    loading: LoadingProfile | None
    """None: not recorded."""
    lines: dict[str, tuple[tuple[str, float], ...]]
    """{phase, or `workers` for those of the loader: (`FILE:LINE`, share of the samples there)}; empty: not sampled."""
    epochs: tuple[EpochTime, ...]
    """At most 1,000, the first ones."""
    course: tuple[CoursePoint, ...]
    """At most 400, over all steps."""
    about: TrainingProcess | None
    """What the process said of itself; None: it did not live to, or the file cannot be read."""
    layers: tuple[LayerTime, ...] = ()
    """Parts of the model, in the model's order; empty: not timed."""
    memory: MemoryProfile | None = None
    """None: not sampled."""
    metered_steps: int | None = None
    """Steps whose CPU time was read, where steps are so short that it was not read in all; those stand for the others."""
    clock: str = ""
    """The device by whose clock `step` and `phases` are, such as `cuda:0`; empty: that of the host."""
    trace: TraceRecord | None = None
    """What its traces say besides the steps; None: it was not read from traces."""


class TrainingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a training went."""

    schema: str = SCHEMA
    run: str
    """The folder's name."""
    headrace_version: str
    pipeline: str
    """What ran."""
    status: str
    num_cores: int
    """0: not known."""
    ranks: tuple[RankProfile, ...]
    together: RanksDocument
    """What the ranks show side by side."""
    trusted: bool
    distrust: tuple[str, ...] = ()
    """Why its figures cannot be believed."""
    unchecked: tuple[str, ...] = ()
    """What could not be checked."""
    warnings: tuple[str, ...] = ()
    window: str = ""
    """Where it is only some time of a training: which. Empty: from its beginning."""

    @property
    def trust(self) -> str:
        """Whether its figures can be believed: `TRUSTED` or `UNTRUSTED`."""
        return "TRUSTED" if self.trusted else "UNTRUSTED"

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why they cannot; empty where they can."""
        return self.distrust

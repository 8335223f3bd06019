"""What more ranks bring to a training, and what takes the rest, `headrace.scaling/1`. Version 1: 2026-11, first."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from headrace.runs.formats.profile import Estimate

SCHEMA = "headrace.scaling/1"
#: In the folder that `headrace train scale` writes.
FILE = "scaling.json"


class MeasuredReduce(msgspec.Struct, frozen=True, kw_only=True):
    """An all-reduce of one size, on ranks that do nothing else."""

    num_bytes: int
    seconds: float
    """The middle one."""
    cpu_seconds: float
    """Of one rank's process."""


class MeasuredLink(msgspec.Struct, frozen=True, kw_only=True):
    """The line through them: seconds = messages x latency + bytes moved / bandwidth."""

    ranks: int
    latency_seconds: float
    bytes_per_second: float
    message_cpu_seconds: float
    byte_cpu_seconds: float
    error: float
    """By which the line is off, in the middle, as a share."""
    measured: tuple[MeasuredReduce, ...]


class Part(StrEnum):
    """Where the time of a rank goes; the parts add up to its step."""

    LOADING = "loading"
    """Waiting for batches."""
    COMPUTING = "computing"
    """Forward, loss, backward, moving batches; more than with one rank: shared caches and memory."""
    NO_CORE = "no core"
    """It could have gone on, and other threads had the cores; not in the exchange."""
    WAITING = "waiting for the last"
    """Its gradients are complete, and those of another rank are not."""
    TRANSFER = "transfer"
    """All gradients are complete, and not exchanged yet."""
    OPTIMIZER = "optimizer"
    """Clipping and update."""
    REST = "rest"
    """After the update, checkpoints, and what is named nowhere."""


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One number of ranks, measured in several short trainings."""

    ranks: int
    rounds: int
    num_steps: int
    """Plain steps of each rank in all of them, after the first ones."""
    samples_per_second: float
    """Of all ranks together."""
    step_seconds: float
    """The average one."""
    samples_per_step: float
    """Of all ranks; ranks, where samples are not known."""
    efficiency: Estimate
    """Samples per second over those of one rank times the ranks; nine in ten within."""
    parts: dict[Part, float]
    """Seconds of an average rank's step; they add up to `step_seconds`."""
    losses: dict[Part, float]
    """What the part took from the efficiency; they add up to 1 - efficiency. Less than nothing: it takes less than with one."""
    predicted: Estimate | None = None
    """Samples per second, from the training of one rank and the link; None: not predicted."""


class PredictedRanks(msgspec.Struct, frozen=True, kw_only=True):
    """A number of ranks, from the training of one rank and the link."""

    ranks: int
    here: Estimate
    """Samples per second on this machine, whose cores all ranks share."""
    apart: Estimate
    """... with a machine like this one for each rank, and a link like the one measured here."""
    slower_below: float | None
    """Bytes per second of the link below which that many machines are slower than one; None: at no bandwidth."""
    good_above: float | None
    """... above which the link leaves nine tenths of the efficiency; None: latency alone takes more."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What would make the largest number of ranks faster."""

    says: str
    setting: str
    """For `headrace whatif --set`; empty: nothing that a setting says."""
    ratio: Estimate | None = None
    """Samples per second, over those measured; None: not predicted."""


class ScalingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    schema: str = SCHEMA
    headrace_version: str
    created_unix_seconds: float
    script: str
    folder: str
    num_cores: float
    threads: int
    """Of PyTorch's operators, in each rank."""
    steps: int
    """Asked for, of each short training."""
    rungs: tuple[Rung, ...] = ()
    link: MeasuredLink | None = None
    """None: it was not measured."""
    gradient_bytes: int = 0
    predicted: tuple[PredictedRanks, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    warnings: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    """Trainings that did not end well, in words."""
    interrupted: bool = False

"""Data, model and pipeline parallelism of one model, side by side, `headrace.parallel/1`. Version 1: 2026-11, first."""

from __future__ import annotations

from enum import StrEnum

import msgspec

SCHEMA = "headrace.parallel/1"


class Way(StrEnum):
    """How the ranks share the work."""

    ONE = "one rank"
    """The whole model and batch on one rank: what the others are measured against."""
    DATA = "data"
    """Each rank has the model and its share of the batch (DistributedDataParallel)."""
    MODEL = "model"
    """Each rank has a part of the model; the whole batch goes through one part after the other."""
    GPIPE = "pipeline, GPipe"
    """The same parts, and micro-batches: all forward passes, then all backward passes."""
    ONE_F_ONE_B = "pipeline, 1F1B"
    """The same, but a backward pass begins as soon as it can: fewer micro-batches are kept."""


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the model on its rank, timed while the other ranks do nothing."""

    layers: tuple[str, ...]
    """Names of the model's children that it has."""
    forward_seconds: float
    """Of one micro-batch; of the last stage with the loss."""
    backward_seconds: float
    forward_core_seconds: float = 0.0
    """Of the same, in which a core computes; the rest waits for a device."""
    backward_core_seconds: float = 0.0
    transfer_seconds: float
    """From here to the next stage that waits for it, one way; 0 of the last."""
    fetch_seconds: float = 0.0
    """The same, of what was sent before the next stage asked for it."""
    pass_seconds: float = 0.0
    """What the schedule computes within each pass besides the model, measured with stages that compute nothing."""
    between_seconds: float = 0.0
    """What it computes around each pass, measured so, too."""


class Bubble(msgspec.Struct, frozen=True, kw_only=True):
    """The share of the ranks' time in which they compute nothing: they wait for another stage."""

    measured: float
    """The middle one of all steps."""
    predicted: float
    """From the times of the stages alone, in the order of the schedule."""
    by_formula: float
    """(ranks - 1) / (micro-batches + ranks - 1): if all stages took as long, and sending took no time."""


class MeasuredWay(msgspec.Struct, frozen=True, kw_only=True):
    """One way, measured."""

    way: Way
    ranks: int
    micro_batches: int
    num_steps: int
    step_seconds: float
    """The middle one, with the update."""
    samples_per_second: float
    predicted_seconds: float | None = None
    """Of forward and backward passes, from the stages alone; None: not predicted."""
    measured_seconds: float
    """Of the same: a step without the update."""
    bubble: Bubble | None = None
    """None: nothing goes from rank to rank in stages."""
    kept: int = 1
    """Micro-batches whose activations a rank held at once, at most."""
    loss: float
    """Of the last step: alike in all ways, where they train the same."""
    stages: tuple[StageTimes, ...] = ()


class ParallelDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    schema: str = SCHEMA
    headrace_version: str
    created_unix_seconds: float
    recipe: str
    ranks: int
    threads: int
    """Of PyTorch's operators, in each rank."""
    num_cores: int
    """That this process may use."""
    batch_size: int
    """Samples of a step, of all ranks together."""
    ways: tuple[MeasuredWay, ...] = ()
    warnings: tuple[str, ...] = ()
    interrupted: bool = False

    def find(self, way: Way) -> MeasuredWay | None:
        """Return what was measured of a way; None: it was not."""
        return next((one for one in self.ways if one.way == way), None)

"""Whether a training does what it seems to, `headrace.train_check/1`. Version 1: 2026-11, first."""

from __future__ import annotations

import msgspec

SCHEMA = "headrace.train_check/1"


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why accumulated gradients are not those of the large batch."""

    name: str
    """`mean of means`, `missing division`, `wrong scale`, `skipped micro-batch`, `zeroed gradients`, `clipped within`,
    `no_sync missing`, `batch norm`, `random numbers`, `mixed samples`, `unexplained`."""
    what: str
    """What was seen, with figures."""
    advice: str
    is_defect: bool
    """Whether the training's code is wrong; False: the two differ, and both are right."""


class AccumulationCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Gradients of k micro-batches of b samples beside those of one batch of the same k b samples."""

    micro_batches: int
    micro_batch_size: int
    own_code: bool
    """Whether the recipe's `accumulate` was run; False: the sum of each loss over the number of micro-batches."""
    dtype: str
    """In which it was computed; `float64` where the model allows it, so that rounding hides nothing."""
    largest_difference: float
    """Of one parameter's gradient, relative to that of the large batch; as the training computes it."""
    parameter: str
    """The one."""
    num_parameters: int
    """Tensors of parameters that were compared."""
    given_weights: tuple[float, ...]
    """With which the micro-batches' gradients were added."""
    right_weights: tuple[float, ...]
    """With which they add up to the gradient of the large batch."""
    syncs: float | None
    """Exchanges of gradients of one update under DistributedDataParallel; None: not looked at. 1 is right."""
    findings: tuple[CheckFinding, ...]


class LayerFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that breaks under autocast."""

    layer: str
    """Its name in the model; of an underflow, the parameter's."""
    layer_class: str
    kind: str
    """`NaN`, `overflow`, `far from float32`, `NaN in backward`, `underflow`."""
    what: str
    """What was seen, with figures."""
    advice: str


class PrecisionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One batch under autocast beside float32, layer by layer."""

    dtype: str
    device: str
    exact_loss: float | None
    """In float32; null if it was not finite."""
    loss: float | None = None
    """Under autocast; null if it was not finite or could not be computed."""
    problem: str = ""
    """Why it could not be computed; empty: it was."""
    num_layers: int = 0
    """Calls of modules that were compared."""
    num_lower: int = 0
    """Those whose output had the lower precision."""
    findings: tuple[LayerFinding, ...] = ()
    """The first layer that breaks on the way to the loss, and on the way back."""


class CheckpointUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the model that can be checkpointed."""

    name: str
    unit_class: str
    saved_bytes: int
    """That it keeps for the backward pass, without what it is given."""
    forward_seconds: float


class CheckpointChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that are checkpointed, predicted and run."""

    units: tuple[str, ...]
    activation_bytes: int
    """Largest sum of what is kept for the backward pass at one time."""
    predicted_step_seconds: float
    predicted_peak_bytes: int
    step_seconds: float | None = None
    """As run, scaled by how fast the training without checkpoints was beside it; None: it was not run, or did not finish."""
    peak_bytes: int | None = None
    core_wait: float | None = None
    """Share of the time in which the training thread waited for a core; left out of the step."""


class CheckpointCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What activation checkpointing would save and cost, run with `MALLOC_MMAP_THRESHOLD_=1048576`."""

    batch_size: int
    activation_bytes: int
    """Kept for the backward pass without checkpoints: storages counted once, without parameters and the batch."""
    step_seconds: float
    peak_bytes: int
    """Largest resident memory of the process; on a CUDA device what its allocator held."""
    units: tuple[CheckpointUnit, ...]
    front_size: int
    """Choices that no other one beats in both memory and time."""
    choices: tuple[CheckpointChoice, ...]
    """Those that were run, the one that keeps most first."""
    proposed: tuple[str, ...]
    """Parts of the one that keeps least for at most a third more time, as run; empty: none frees half of the activations."""


class TrainCheckDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `headrace train check` looked at."""

    schema: str = SCHEMA
    recipe: str
    headrace_version: str
    accumulation: AccumulationCheck | None = None
    """None: not asked for."""
    precision: tuple[PrecisionCheck, ...] = ()
    """One for each precision that was asked for."""
    checkpointing: CheckpointCheck | None = None
    """None: not asked for."""

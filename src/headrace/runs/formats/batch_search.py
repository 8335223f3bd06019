"""Which batch size a model trains best with, `headrace.batch_search/1`. Version 1: 2026-11, first."""

from __future__ import annotations

import msgspec

SCHEMA = "headrace.batch_search/1"


class SizeTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One batch size that was run, in a process of its own."""

    batch_size: int
    outcome: str
    """`measured`, or `does not fit`."""
    why: str = ""
    """Why it does not fit, in the words of who said so."""
    samples_per_second: float | None = None
    """Of steps with the batch loaded already."""
    step_seconds: float | None = None
    """Median of the steps, without waiting for a core."""
    spread: float | None = None
    """Of the steps: half the distance of their quartiles, as a share of the median."""
    num_steps: int = 0
    core_wait: float | None = None
    """Share of the time in which the training thread waited for a core that others used; left out of the figures above."""
    peak_bytes: int | None = None
    """Largest resident memory of the process, the libraries included; on a CUDA device what its allocator held."""
    base_bytes: int | None = None
    """Resident memory before the model was made; 0 on a CUDA device."""
    predicted_peak_bytes: float | None = None
    """What the trials before it predicted; None: there were fewer than two."""


class MemoryModel(msgspec.Struct, frozen=True, kw_only=True):
    """Peak memory as a straight line of the batch size, through the two largest sizes that were measured."""

    fixed_bytes: float
    """Weights, gradients, optimizer, libraries."""
    bytes_per_sample: float
    error: float | None
    """Largest error of its kind over trials that were predicted before they ran, as a share of the peak, of those where memory
    had begun to grow; None: none was."""


class LossComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Validation loss of a larger batch beside that of the present one, after the same number of samples, seed by seed."""

    batch_size: int
    outcome: str
    """`kept`, `worse` or `cannot tell`; only a batch size that is kept is recommended."""
    why: str = ""
    """Why there is no interval; empty otherwise."""
    num_seeds: int
    margin: float
    """Increase that is acceptable, as a share of the present loss."""
    present_loss: float
    loss: float
    """Mean over seeds; null if it was not finite."""
    increase: float | None = None
    """As a share of the present loss; negative: the larger batch is better."""
    increase_low: float | None = None
    """Of the interval at 95 %."""
    increase_high: float | None = None
    seconds_ratio: float | None = None
    """Time of the larger batch to the same samples, over that of the present one."""
    increase_at_equal_time: float | None = None
    """Its increase after the time that the present one took; None: it was slower."""


class BatchSearchDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A search, from one sample up to what fits or no longer helps."""

    schema: str = SCHEMA
    recipe: str
    headrace_version: str
    torch_version: str
    device: str
    threads: int
    num_samples: int
    """In the data set."""
    num_parameters: int
    present_batch_size: int
    """That of the recipe."""
    limit_bytes: int
    """Of resident memory, or of the device's."""
    limit_from: str
    headroom: float
    """Share of the limit that stays free."""
    trials: tuple[SizeTrial, ...]
    memory: MemoryModel | None
    batch_size: int | None
    """Recommended: `fastest`, unless its validation loss was compared and not kept; None: none fits."""
    fastest: int | None
    """The smallest that was run, fits with the headroom, and is within 3 % of the best throughput; None: none fits."""
    losses: tuple[LossComparison, ...] = ()
    """Of sizes above the present one, the largest first, until one was kept."""
    loss_samples: int | None = None
    """After which the losses were taken; None: they were not compared."""
    rate_rule: str | None = None
    """How the learning rate followed the batch size: `linear`, `sqrt`, `none`."""
    stopped: str
    """Why no larger one was tried."""
    interrupted: bool = False

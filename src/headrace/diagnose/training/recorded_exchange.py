"""What a run says of the exchange of gradients: how many bytes, in which buckets, and how long it took."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np

from headrace.base.documents import convert_document
from headrace.diagnose.training.ranks import Meetings, select_steps
from headrace.diagnose.training.simulation_exchange import BUCKET, FIRST_BUCKET
from headrace.diagnose.training.steps import Array, RankSteps
from headrace.runs.formats.training import TrainingProcess
from headrace.runs.formats.training_ranks import GradientsInfo
from headrace.runs.training_phases import Phase


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExchange:
    """What is known of the exchange of gradients."""

    gradients: tuple[float, ...] = ()
    """Bytes of each parameter's gradient, in the order of the parameters; empty: not known."""
    bucket: float = BUCKET
    first_bucket: float = FIRST_BUCKET
    exposed: float | None = None
    """Seconds of each exchange, when all ranks had come, left after the backward pass; None: nothing was exchanged."""
    backward: float = 0.0
    """Seconds of the backward pass before an exchange."""
    per_step: float = 1.0
    """Exchanges in a step."""


#: Of a run that says nothing of it.
UNKNOWN_EXCHANGE = RecordedExchange()


def describe_exchange(process: TrainingProcess | None) -> RecordedExchange:
    """Return what a process says of its gradients."""
    if process is None:
        return UNKNOWN_EXCHANGE
    found, info = process.details.get("gradients"), None
    with contextlib.suppress(msgspec.ValidationError):
        info = None if found is None else convert_document(found, GradientsInfo)
    if info is None:  # of an older headrace
        whole = float(process.parameter_bytes)
        return RecordedExchange(gradients=(whole,) if whole > 0 else ())
    return RecordedExchange(
        gradients=tuple(float(one) for one in info.sizes if one > 0),
        bucket=float(info.bucket_bytes or BUCKET),
        first_bucket=float(info.first_bucket_bytes or FIRST_BUCKET),
    )


def measure_exchange(described: RecordedExchange, ranks: Sequence[RankSteps], meetings: Meetings) -> RecordedExchange:
    """Return it with what the ranks' meetings took: of plain steps, the last meeting of each.

    Meetings before it exchange buffers, or gradients of batches that are accumulated.
    """
    chosen = select_steps(ranks, meetings)
    if not len(chosen.step):
        return described
    is_last = np.append(np.diff(chosen.step) != 0, True)
    steps = chosen.step[is_last]
    backward = [_per_exchange(rank, steps) for rank in ranks]
    return dataclasses.replace(
        described,
        exposed=max(0.0, float(np.median(chosen.rest[is_last].min(axis=1)))),
        backward=float(np.median(backward)),
        per_step=float(len(chosen.step) / len(steps)),
    )


def _per_exchange(rank: RankSteps, steps: Array) -> float:
    times = rank.steps.phases.get(Phase.BACKWARD)
    if times is None:
        return 0.0
    places = np.searchsorted(rank.steps.number, steps)
    return float(np.median(times.wall[places] / np.maximum(rank.steps.microbatches[places], 1)))

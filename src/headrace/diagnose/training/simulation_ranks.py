"""What ranks of a simulated training exchange, and how many there are, with a change made."""

from __future__ import annotations

import numpy as np

from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.change_settings import TrainingChange
from headrace.diagnose.training.recorded_exchange import RecordedExchange
from headrace.diagnose.training.simulation_exchange import ExchangeModel, Link, fill_buckets, fit_bandwidth
from headrace.diagnose.training.simulation_recorded import RecordedTraining
from headrace.diagnose.training.steps import Array

#: Seconds for a message, where a run shows only what an exchange took as a whole.
USUAL_LATENCY = 50e-6


def needs_exchange(recorded: RecordedTraining, settings: TrainingChange) -> bool:
    """Return whether several ranks are simulated."""
    return bool(recorded.peers) if settings.ranks is None else settings.ranks > 1


def exchange_of(recorded: RecordedTraining, settings: TrainingChange) -> ExchangeModel | None:
    """Return what ranks exchange, with a change made; None where they are not several.

    Raises:
        CannotReplay: If the run does not know what an exchange costs, or how many bytes it has.
    """
    if not needs_exchange(recorded, settings):
        if settings.bucket or settings.gradients or any(one is not None for one in settings.link):
            raise CannotReplay(
                "one rank exchanges nothing, so link, bucket and gradients change nothing; add --set ranks=N, or record a "
                "training of several processes"
            )
        return None
    known = recorded.exchange
    if not known.gradients:
        raise CannotReplay(
            "the run does not say how many bytes of gradients the model has (training/HOST-PID.json): it was killed before it "
            "wrote that, or the model has no module; record the training again"
        )
    buckets = fill_buckets(known.gradients, *_bounds(known, settings))
    link = _link(recorded, settings)
    if settings.gradients:
        buckets = tuple(size / 2 for size in buckets)
    return ExchangeModel(buckets=buckets, link=link)


def _bounds(known: RecordedExchange, settings: TrainingChange) -> tuple[float, float]:
    # With `bucket_cap_mb` given, the first bucket is as large as the others.
    return (settings.bucket, settings.bucket) if settings.bucket else (known.bucket, known.first_bucket)


def _link(recorded: RecordedTraining, settings: TrainingChange) -> Link:
    bandwidth, latency, byte_cpu, message_cpu = settings.link
    if bandwidth is None:
        bandwidth = recorded_bandwidth(recorded)
    if bandwidth is None:
        raise CannotReplay(
            "the run has one rank and exchanged nothing, so what an exchange costs is not known; say it: "
            "--set link.bandwidth=1GB/s --set link.latency=50us (`headrace train scale` measures those of this machine)"
        )
    return Link(
        latency=USUAL_LATENCY if latency is None else latency,
        bandwidth=bandwidth,
        byte_cpu=byte_cpu or 0.0,
        message_cpu=message_cpu or 0.0,
    )


def recorded_bandwidth(recorded: RecordedTraining) -> float | None:
    """Return bytes per second that explain what the run's exchanges took; None where it had none."""
    known, ranks = recorded.exchange, len(recorded.peers) + 1
    if known.exposed is None or ranks < 2 or not known.gradients:
        return None
    buckets = fill_buckets(known.gradients, known.bucket, known.first_bucket)
    return fit_bandwidth(buckets, latency=USUAL_LATENCY, backward=known.backward, exposed=known.exposed, ranks=ranks)


def spread_places(places: Array, rank: int, ranks: int) -> Array:
    """Return which recorded step takes each place on a rank that was not recorded: the same steps, begun elsewhere.

    So ranks have steps of the same kind at other times, as different batches would make them.
    """
    return np.roll(places, -(rank * len(places)) // ranks)

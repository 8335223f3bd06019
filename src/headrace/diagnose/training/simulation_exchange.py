"""What it costs ranks to exchange their gradients: bytes in buckets, over a link, while the backward pass goes on.

`DistributedDataParallel` fills buckets with gradients in the reverse order of the parameters, and sends each as soon as every
rank has filled it. What is not done when the backward pass ends is exposed: all ranks wait for it. A bucket of n bytes among p
ranks costs what a ring does (Patarasuk and Yuan, 2009): 2 (p - 1) messages, and 2 (p - 1) / p x n bytes over each rank's link.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.diagnose.training.simulation_machine import Need

#: Of `DistributedDataParallel` in PyTorch 2: the first bucket is smaller, so that sending begins early.
FIRST_BUCKET, BUCKET = 1024 * 1024, 25 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What lies between two ranks."""

    latency: float
    """Seconds for each message, whatever its size."""
    bandwidth: float
    """Bytes a second that each rank sends while it receives as many; may be infinite."""
    message_cpu: float = 0.0
    """Of `latency`, seconds in which the rank computes."""
    byte_cpu: float = 0.0
    """Seconds of a core for each byte that a rank sends: what is left of 1 / bandwidth with a faster wire."""

    def transfer(self, num_bytes: float, ranks: int) -> Need:
        """Return what one rank needs to exchange that many bytes with all others."""
        messages, moved = 2 * (ranks - 1), 2 * (ranks - 1) / ranks * num_bytes
        seconds = messages * self.latency + moved / self.bandwidth
        cpu = messages * self.message_cpu + moved * self.byte_cpu
        if cpu <= seconds or not seconds:
            return Need(seconds - cpu if seconds else 0.0, cpu)
        return Need(0.0, seconds, cpu / seconds)  # several threads side by side

    def seconds(self, num_bytes: float, ranks: int) -> float:
        """Return how long that takes if nobody has to wait for a core."""
        need = self.transfer(num_bytes, ranks)
        return need.blocked + need.cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeModel:
    """What is exchanged after each backward pass that exchanges."""

    buckets: tuple[float, ...]
    """Bytes of each, in the order in which they are sent; at least one, each > 0."""
    link: Link

    @property
    def shares(self) -> list[float]:
        """Part of the backward pass that fills each bucket: taken as that of its bytes."""
        whole = sum(self.buckets)
        return [one / whole for one in self.buckets]

    def exposed(self, backward: float, ranks: int) -> float:
        """Return seconds of the exchange that are left when a backward pass of that many seconds ends."""
        ended = 0.0
        for filled, size in zip(itertools.accumulate(self.shares), self.buckets, strict=True):
            ended = max(ended, filled * backward) + self.link.seconds(size, ranks)
        return ended - backward


def fill_buckets(sizes: Sequence[float], most: float = BUCKET, first: float = FIRST_BUCKET) -> tuple[float, ...]:
    """Return the bytes of each bucket, as `DistributedDataParallel` fills them.

    Args:
        sizes: Bytes of each parameter's gradient, in the order of the parameters.
        most: A bucket is sent once it holds so much.
        first: ... and the first one once it holds so much.
    """
    found: list[float] = []
    held = 0.0
    for size in reversed(sizes):
        held += size
        if held >= (most if found else min(first, most)):
            found.append(held)
            held = 0.0
    return (*found, held) if held else tuple(found)


def fit_bandwidth(buckets: Sequence[float], *, latency: float, backward: float, exposed: float, ranks: int) -> float:
    """Return the bytes per second with which so much of an exchange is exposed; infinite if latency alone takes longer.

    Args:
        buckets: Bytes of each.
        latency: Seconds for each message.
        backward: Seconds of the backward pass.
        exposed: Seconds measured after it.
        ranks: That exchanged, >= 2.
    """

    def left(bandwidth: float) -> float:
        model = ExchangeModel(buckets=tuple(buckets), link=Link(latency=latency, bandwidth=bandwidth))
        return model.exposed(backward, ranks)

    if left(math.inf) >= exposed:
        return math.inf
    return bisect_logarithm(lambda bandwidth: left(bandwidth) > exposed, 1e3, 1e13)


def bisect_logarithm(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """Return the value at which a condition that holds below it ends, to a thousandth.

    Args:
        is_below: Of a value: whether it is too low.
        low: A value > 0 for which it holds; returned if it holds nowhere.
        high: One for which it does not.
    """
    while high / low > 1.0005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return math.sqrt(low * high)

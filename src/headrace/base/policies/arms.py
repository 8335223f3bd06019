"""Which arm a job falls to: the stable Plan's or the canary's, by a hash, so that everybody who asks gets the same answer.

A retry of a job, another worker and a restarted one compute the same arm from the job's id. While the share grows, who was in
the canary stays there. A split by another key (a user, a camera) keeps what a key sees alike, but its jobs share their fate:
then keys are drawn again every epoch, and only whole epochs of a key count as evidence (`KeyedOutcomes`).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import NamedTuple

from headrace.base.settings import check

#: For how long a key stays in its arm.
EPOCH_SECONDS = 300.0
_RANGE = float(2**64)


class Draw(NamedTuple):
    """What was drawn for a job where keys are drawn."""

    key: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Divides jobs among two arms."""

    salt: str
    """Of this canary: another one draws other jobs."""
    share: float = 0.0
    """Of the jobs that fall to the canary, from 0 to 1."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(0 <= self.share <= 1, "share", self.share, "from 0 to 1")

    def is_canary(self, key: str, epoch: int | None = None) -> bool:
        """Return whether a job falls to the canary.

        Args:
            key: The job's id; or another key.
            epoch: For another key: see `epoch_of`. None: the arm of a key never changes.
        """
        drawn = f"{self.salt}\0{key}" if epoch is None else f"{self.salt}\0{epoch}\0{key}"
        digest = hashlib.blake2b(drawn.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.share * _RANGE


def epoch_of(now: float) -> int:
    """Return the number of the epoch in which a time lies, Unix seconds: the same one for all machines."""
    return math.floor(now / EPOCH_SECONDS)

"""What ranks that train together show side by side: who waits for whom, what the exchange takes, and data that came twice.

Made from a run folder by `headrace.diagnose.training`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from headrace.runs.training_phases import Phase


class Finding(StrEnum):
    """Why ranks wait."""

    BALANCED = "balanced"
    """They do not, or not much."""
    STRAGGLER = "straggler"
    """For the same rank in nearly all steps."""
    MOVING = "moving"
    """For a rank that changes: batches that cost differently, or a source of data that all of them share."""
    COMMUNICATION = "communication"
    """All come at about the same time, and the exchange itself takes long."""
    NOT_TOLD_APART = "not told apart"
    """One rank comes last by less than the clocks of the hosts may disagree, or there are too few steps."""


class Reason(StrEnum):
    """What a rank does in the time by which it is late."""

    COMPUTES = "computes"
    REFUSED_CORE = "is refused a core"
    BLOCKED = "sleeps, reads or waits"
    UNKNOWN = "was not measured"


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank for which the others wait."""

    rank: int
    share_last: float
    """Share of the steps in which it came last."""
    lead_seconds: float
    """By which it comes later than the rank before it, in the middle one of those steps."""
    lead_share: float
    """Of the step."""
    phase: Phase
    """In which it takes longer than the others by the most."""
    phase_seconds: float
    """By which it does, in the middle step."""
    reason: Reason
    had_cores: bool = False
    """It comes last only if time without a core is left out, and cores are taken for equally fast: on this machine chance
    decides which rank has a worse one."""


class RankTime(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of an average step; the three times and what is outside of meetings add up to the step."""

    rank: int
    own_seconds: float
    wait_seconds: float
    rest_seconds: float
    share_last: float


class RanksJudged(msgspec.Struct, frozen=True, kw_only=True):
    """What the meetings of the ranks show."""

    finding: Finding
    num_steps: int
    step_seconds: float
    """Of the average step."""
    wait_share: float
    """Of the step: waiting for the last rank, averaged over ranks."""
    rest_share: float
    """Of the step: what the exchange takes when all have come."""
    uncertainty_seconds: float
    rows: tuple[RankTime, ...]
    straggler: Straggler | None = None
    moving_phase: Phase | None = None
    """In which the last one, whichever it is, is late."""
    moves_with_cores: bool = False
    """Most of that waiting would be gone if no rank had to wait for a core."""


class Same(StrEnum):
    """What was the same."""

    RANKS = "ranks"
    """Several ranks were given the same batches."""
    EPOCHS = "epochs"
    """An epoch began with the batches of the one before, in the same order."""


class SameData(msgspec.Struct, frozen=True, kw_only=True):
    """Batches that came more than once."""

    what: Same
    loader: int
    """Position in the processes' `loaders`."""
    ranks: tuple[int, ...]
    """Those that were given the same; for `EPOCHS` those in which it happened."""
    num_batches: int
    """That were compared, all equal."""
    sampler: str
    """Class that gives the loader its order; empty: not known."""


class RanksDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks of a run show together."""

    judged: RanksJudged | None
    """None: fewer than two ranks, or no exchange of gradients was recorded in a step that is common to them."""
    why_not: str = ""
    """Why several ranks are not judged; empty otherwise, and with one rank."""
    same_data: tuple[SameData, ...] = ()


class GradientsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a process would exchange with others: in `details` of `training/HOST-PID.json`, as `gradients`."""

    sizes: tuple[int, ...]
    """Bytes of each gradient, in the order of the parameters; of a model with very many, one sum."""
    bucket_bytes: int | None = None
    """A bucket of `DistributedDataParallel` is sent once it holds so much; None: there is no such module."""
    first_bucket_bytes: int | None = None
    """... the first one; None: once it holds 1 MiB, as usual."""

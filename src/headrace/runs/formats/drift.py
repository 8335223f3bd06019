"""What the drift monitor writes: sums of windows, a baseline, and what came of comparing them.

Version 1 of each: 2026-11, first.
"""

from __future__ import annotations

from typing import Literal

import msgspec

WINDOW_SCHEMA = "headrace.drift-window/1"
BASELINE_SCHEMA = "headrace.drift-baseline/1"
DRIFT_SCHEMA = "headrace.drift/1"


class Sums(msgspec.Struct, frozen=True, array_like=True):
    """Enough of the values of a statistic for their mean and spread; sums of two windows add up."""

    n: int
    total: float
    squares: float


class StratumSums(msgspec.Struct, frozen=True, kw_only=True):
    """What one stratum (camera, site, user) gave to a window."""

    means: dict[str, Sums] = {}
    """{statistic: sums}."""
    counts: dict[str, int] = {}
    """{what was counted: how often}; `items`, `files` and `answers` are what shares are of."""


class DriftWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a stretch of items: one line of `windows/*.jsonl`, and a file of `parts`."""

    schema: str = WINDOW_SCHEMA
    began: float
    """Unix seconds."""
    ended: float
    items: int
    sampled: int
    """Items whose pixels, text or numbers were looked at."""
    strata: dict[str, StratumSums]
    lost: int = 0
    """Items that could not be counted: a disk that was full, a statistic that raised."""
    key: str = ""
    """As of the baseline, like `hours`."""
    hours: int = 0
    without_key: int = 0
    """Items of jobs that have no such attribute: they are one stratum, of no name."""
    attributes: tuple[str, ...] = ()
    """That those jobs have instead, some of them."""


class StratumMean(msgspec.Struct, frozen=True, array_like=True):
    """What is usual in one stratum."""

    mean: float
    spread: float
    """Long-run standard deviation of its windows' score, as in `MeanReference.spread`."""


class MeanReference(msgspec.Struct, frozen=True, kw_only=True):
    """What is usual for the mean of a statistic."""

    mean: float
    """Over all items."""
    sd: float
    """Over all items: the unit of effects."""
    within_sd: float
    """Within one stratum and window."""
    wander_sd: float
    """Of a stratum's true mean from window to window."""
    spread: float
    """Long-run standard deviation of the windows' score; 1 where strata wander alone and windows are independent."""
    memory: float
    """Variance of sums of windows over that of independent ones; 1: they are independent."""
    window_sd: float
    """Long-run standard deviation of a usual window's mean."""
    strata: dict[str, StratumMean]
    """Those in enough windows to be judged."""


class RateReference(msgspec.Struct, frozen=True, kw_only=True):
    """What is usual for a share."""

    of: str
    """What it is a share of: `items`, `files` or `answers`."""
    rate: float
    burstiness: float
    """Variance of a window's count beyond chance, over its mean squared."""
    known_from: float
    """Cases in the baseline: of few the rate is little known."""
    strata: dict[str, float]
    """{stratum: its rate}, drawn to the common one where it is little known."""


class StratumReference(msgspec.Struct, frozen=True, kw_only=True):
    """How much is known of a stratum."""

    windows: int
    items: int


class SlowerWith(msgspec.Struct, frozen=True, kw_only=True):
    """How the CPU time of a stage grew with a statistic of its items, in the baseline: by this power."""

    stage: str
    statistic: str
    power: float


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """How often this baseline raises false alarms, and how soon it finds a shift; by simulation of its own wandering."""

    simulated_windows: int
    false_alarms: int
    shift_sd: float
    windows_to_find: int | None
    """By this many windows nine of ten such shifts of a usual statistic are found; None: not within the simulated time."""
    smallest_shift_sd: float | None
    """Found within ten windows, nine times of ten; None: none of those simulated."""
    says: str


class DriftBaseline(msgspec.Struct, frozen=True, kw_only=True):
    """What is usual, learnt from windows of a stretch of time that the user trusts: `baseline.json`."""

    schema: str = BASELINE_SCHEMA
    learnt_at: float
    began: float
    ended: float
    windows: int
    items: int
    window_items: int
    """Sampled items of a window: later ones have as many."""
    key: str
    """What the strata are: `camera`; empty: there is one."""
    hours: int = 0
    """Hours of the day that a stratum spans; 0: hours are not told apart."""
    strata: dict[str, StratumReference]
    means: dict[str, MeanReference]
    rates: dict[str, RateReference]
    slower_with: tuple[SlowerWith, ...] = ()
    promise: Promise
    warnings: tuple[str, ...] = ()


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Where the evidence for one statistic stands."""

    statistic: str
    stratum: str | None
    """The stratum alone; None: all together."""
    score: float
    """Logarithm of the evidence over that of the limit: 1 is an alarm, below 0 there is none."""
    alarm: bool
    direction: Literal["up", "down"]
    since: float | None
    """When the shift probably began, Unix seconds; None without evidence."""
    windows: int
    """Since then."""
    shift_sd: float | None
    """Mean since then against the baseline, in standard deviations of items; None for shares."""
    before: float
    now: float
    """As `before`, in the statistic's own unit, since then."""
    says: str


class StratumNews(msgspec.Struct, frozen=True, kw_only=True):
    """A stratum that the baseline does not know, or one that fell silent."""

    stratum: str
    what: Literal["new", "silent"]
    since: float
    items: int
    says: str


class DriftPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One window of the chart."""

    at: float
    """Its end, Unix seconds."""
    value: float | None
    low: float
    """What is usual for the window's mean, as its composition is: 99 of 100 windows lie between."""
    high: float


class SlowerPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One window: how large its items were, and how long they took, as multiples of what is usual."""

    at: float
    """Its end, Unix seconds."""
    size: float | None
    seconds: float | None


class SlowerStage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage whose CPU time changed with the size of its items."""

    stage: str
    statistic: str
    """The size: `pixels` or `bytes`."""
    stratum: str | None
    """None: all together."""
    since: float | None
    """When the size changed, Unix seconds."""
    says: str
    points: tuple[SlowerPoint, ...]
    """The last windows."""


class DriftDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What came of comparing windows with a baseline: `scores.json`, and `headrace monitor drift show --json`."""

    schema: str = DRIFT_SCHEMA
    verdict: Literal["recording", "steady", "drift"]
    says: tuple[str, ...]
    """For people, the most important first."""
    folder: str
    windows: int
    """That were compared; without a baseline: that were recorded."""
    windows_needed: int = 0
    """Further ones that a baseline needs; 0: there is one, or it can be learnt."""
    items: int
    began: float | None
    ended: float | None
    scores: tuple[Score, ...] = ()
    """The largest of each statistic first of all together, then of strata alone, as far as there is evidence."""
    news: tuple[StratumNews, ...] = ()
    latency: tuple[str, ...] = ()
    """Which stages take longer with the items that changed."""
    slower: tuple[SlowerStage, ...] = ()
    """The same, with both courses."""
    refused_ratio: float | None = None
    """Share of the last window's items that could not be decoded."""
    refusals: dict[str, int] = {}
    """{code: how many} of the windows since the shift began, else of the last."""
    series: dict[str, tuple[DriftPoint, ...]] = {}
    """{statistic: the last windows}, of all together."""
    promise: Promise | None = None
    warnings: tuple[str, ...] = ()
    lost: int = 0

"""What a change is, and what it is predicted to do: schema `headrace.prediction/1`, printed by `headrace whatif --json`.

Several at once (`headrace whatif --vary --json`) are `headrace.predictions/1`.

A prediction is written to the ledger before the change is measured. Ratios are to the run as recorded: throughput 1.20 means
a fifth more. None means not predicted, and `refused` says why and what to do next. Version 1: 2026-11, first.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.runs.formats.profile import Estimate

SCHEMA = "headrace.prediction/1"
SEVERAL_SCHEMA = "headrace.predictions/1"


#: Kinds of changes. `other`: settings of the Plan that are not named here.
KINDS = (
    "accumulate", "arrivals", "batch", "cache", "cores", "curve", "decode", "devices", "drop", "executor", "link", "loader",
    "model", "other", "queues", "quiet", "ranks", "speedup", "workers",
)  # fmt: skip
_KIND_OF_TABLE = {"decode": "decode", "resources": "devices", "loader": "loader", "link": "link"}
_KIND_OF_KEY = {
    "workers": "workers",
    "receivers": "workers",
    "instances": "workers",
    "executor": "executor",
    "batch": "batch",
    "accumulate": "accumulate",
    "ranks": "ranks",
    "bucket": "link",
    "gradients": "link",
    "cache": "cache",
    "format": "cache",
    "max_wait_seconds": "batch",
    "queue_items": "queues",
    "max_in_flight": "queues",
    "engine": "model",
    "artifact": "model",
    "threads": "model",
    "launch_seconds": "model",
    "item_seconds": "model",
}


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is done otherwise than in the recorded run; several changes at once are one Change."""

    settings: tuple[str, ...] = ()
    """Settings of the Plan, each `KEY=VALUE` as `Plan.with_settings` takes them: workers, batch, queues, executor, ... Of a
    training: `loader.workers`, `loader.prefetch`, `loader.in_order`, `loader.persistent`, `batch`, `accumulate`, `cache`,
    `format`."""
    speedups: dict[str, float] = {}
    """{stage: how many times as fast}; 0.5 makes it twice as slow."""
    drop: tuple[str, ...] = ()
    """Stages that cost nothing any more."""
    cache_hits: dict[str, float] = {}
    """{stage: share of the items, 0 to 1, that it answers from a cache, at no cost}."""
    every: dict[str, int] = {}
    """{stage: N}: it does every N-th item only, and gives the others its last answer, at no cost."""
    on_device: dict[str, float] = {}
    """{stage: seconds of an item on the device}: it runs there, one item after the other and after what the models have there,
    and needs no core any more. The device is the run's; where it has none, one of its own. Of a training, a part of loading:
    the training thread waits for it before the model is called."""
    cost_curves: dict[str, dict[int, float]] = {}
    """{device stage: {batch size: seconds per call}} of another engine, variant or device, as measured elsewhere; of a training
    {"step": {batch size: seconds of a step without loading}}."""
    format_costs: dict[str, dict[str, float]] = {}
    """Of a training: {"ORDER, CACHE": {format: seconds to read an item}}, as `headrace pack --try` measured."""
    cores: float | None = None
    """Cores instead of those of the run."""
    devices: int | None = None
    """Devices that can run a call side by side, instead of 1; for emulated devices and GPUs."""
    arrival_rate: float | None = None
    """Jobs per second that come, at random times (Poisson), instead of the run's."""
    deadline_seconds: float | None = None
    """So long after it came a job is worthless: it is not worked on then, and turned away if it is expected to be late."""
    quiet: bool = False
    """Without the other programs that used the machine during the run."""

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is changed."""
        return self == Change()

    def skipped(self, stage: str) -> float:
        """Return the share of items, 0 to 1, that cost a stage nothing."""
        return 1.0 - (1.0 - self.cache_hits.get(stage, 0.0)) / self.every.get(stage, 1)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is changed, sorted: of `KINDS`; predictions of one kind are off for the same reasons."""
        found = {_kind_of_setting(setting) for setting in self.settings}
        given = {
            "speedup": self.speedups,
            "drop": self.drop,
            "cache": self.cache_hits or self.every,
            "curve": self.cost_curves,
            "cores": self.cores,
            "devices": self.devices or self.on_device,
            "arrivals": self.arrival_rate or self.deadline_seconds,
            "quiet": self.quiet,
        }
        return tuple(sorted(found | {kind for kind, value in given.items() if value}))


def _kind_of_setting(setting: str) -> str:
    path = setting.partition("=")[0].strip().removeprefix("stages.").split(".")
    return _KIND_OF_TABLE.get(path[0]) or _KIND_OF_KEY.get(path[-1], "other")


class PredictedMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity before and after."""

    base: float | None
    """As measured in the recorded run: jobs per second, or seconds."""
    predicted: Estimate | None
    """Of the changed run, with the interval that nine predictions in ten should keep to."""
    ratio: Estimate | None
    """predicted over base."""
    refused: str = ""
    """Why there is no prediction, and the next command to type."""


class KindRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How wide the intervals of one kind of change would have had to be."""

    num: int
    """Predictions of the kind that were measured."""
    times: float
    """How many times as wide as by rule an interval is to be for nine in ten to hold: 1 if the rule was right."""


class TrackRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How well earlier predictions of throughput did once the change was measured; errors are shares of the ratio."""

    num: int
    mean_error: float | None = None
    """Mean of |predicted / measured - 1|; None without any."""
    p90_error: float | None = None
    max_error: float | None = None
    num_with_sign: int = 0
    """Those whose measured ratio lay outside 1 +- 5 %."""
    num_sign_right: int = 0
    """Of those: predicted on the right side of 1."""
    num_inside: int = 0
    """Measured within the predicted interval."""
    by_kind: dict[str, KindRecord] = {}
    """{kind of change: how wide its intervals have to be}; a change of several kinds counts for each."""
    says: str = "no prediction of this ledger has been measured yet"


class PredictionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a change is predicted to do to a recorded run."""

    schema: str = SCHEMA
    id: str = ""
    """In the ledger; empty if it was not written there."""
    created_unix_seconds: float
    headrace_version: str
    run: str
    """The folder's name."""
    pipeline: str
    unit: str = "item"
    """What the run counts, as its `run.json` says: `item`; `step` where a model was trained. Then throughput is in samples per
    second, latency that of a step, and there is no Plan."""
    plan_id: str
    change: Change
    says: str
    """The change in words."""
    plan: dict[str, Any]
    """The changed Plan, resolved, as a table."""
    throughput: PredictedMetric
    latency_p50: PredictedMetric
    latency_p99: PredictedMetric
    """Of the jobs that are answered, where the change has a deadline."""
    goodput: PredictedMetric | None = None
    """Jobs per second answered by the deadline; None where the change has none."""
    cpu_per_item: PredictedMetric
    memory: PredictedMetric | None = None
    """Peak resident bytes of all processes; None in predictions of before 2026-11-23."""
    step: PredictedMetric | None = None
    """Mean step of a training, in seconds; None for pipelines, and in predictions of before 2026-12-01, where `latency_p50` is
    its median."""
    bound_ratio: float | None
    """The ratio by operational bounds on CPU demand, which can be redone by hand; see `headrace.diagnose.bounds`."""
    naive_ratio: float | None
    """The ratio that stage timers on the wall clock would give, as a warning."""
    limit_after: str
    """What limits the changed run, in words."""
    simulated_base: float | None
    """Throughput of the recorded run as the simulator gives it: how well it is understood."""
    record: TrackRecord = TrackRecord(num=0)
    widened: float = 1.0
    """How many times as wide the record made the interval as it is by rule; the record takes it out again."""
    assumes: tuple[str, ...] = ()
    """What it takes for granted, the gravest first."""
    warnings: tuple[str, ...] = ()
    is_emulated: bool = False


class PredictionsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Several changes of one recorded run."""

    schema: str = SEVERAL_SCHEMA
    run: str
    """The folder's name."""
    predictions: tuple[PredictionDocument, ...]
    """In the order asked for; without those that were refused as a whole."""
    refused: dict[str, str] = {}
    """{change in words: why nothing is predicted for it}."""
    record: TrackRecord = TrackRecord(num=0)

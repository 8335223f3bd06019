"""The Plans that a search may choose from: one axis for each setting that is worth trying on this pipeline and machine.

A point of the space names a value for each axis; the rest of the Plan stays as the user wrote it. Every axis goes down
as well as up. What cannot be tried here is left out, with the reason.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.base.coordinate_search import Axis, powers_of_two
from headrace.base.plan import Plan, StagePlan
from headrace.runs.formats.profile import StageAccount
from headrace.stages.stage import Stage

Value = int | float | str | None
Point = Mapping[str, Value]

#: Most workers of a stage that waits, unless the Plan has more: threads that sleep are cheap, but not free.
MOST_WAITING_WORKERS = 64
#: Most workers of a device stage: each may hold a batch, and a model, in the device's memory.
MOST_DEVICE_WORKERS = 4
#: A stage whose service is CPU work to less than this share waits for something else.
_COMPUTES = 0.5
_IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_QUEUE_BYTES = (16 * 10**6, 64 * 10**6, 256 * 10**6)

THREADS = "model.threads"
IN_FLIGHT = "source.max_in_flight"
RECEIVERS = "source.receivers"
SCALE = "decode.scale"
#: As a setting that stays: what computes at some place does so there; see `Stage.elsewhere`.
PLACES = "places"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the space."""

    cores: int
    largest_batch: Mapping[str, int] = field(default_factory=dict)
    """{device stage: largest batch whose cost was measured}."""
    delivers: bool = False
    """Results are handed to the pipeline's own delivery; else there is nothing to tune in `deliver`."""
    limits_in_flight: bool = False
    """Latency matters: try fewer jobs in flight."""
    memory_is_short: bool = False
    """Try smaller bounds of the queues in bytes."""
    has_model_threads: bool = False
    """A model is opened by an engine that computes with threads of this machine."""
    keep: frozenset[str] = frozenset()
    """Settings that the search leaves alone, as people write them: `decode.scale`, `process.batch`; or `PLACES`."""
    decodes: bool = False
    """A stage decodes images: it may do so at scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What the search may choose from."""

    axes: tuple[Axis[Value], ...]
    """The base's value is among each one's."""
    base: Point
    """The Plan as it is."""
    cores: int
    left_out: tuple[str, ...] = ()
    """What is not tried, and why, one sentence each."""

    def canonical(self, point: Point) -> dict[str, Value]:
        """Return the point with every setting that has no effect put back to the base's: workers of an inline stage."""
        found = dict(point)
        for key, value in point.items():
            if key.endswith(".executor") and value == "inline":
                stage = key.removesuffix(".executor")
                for other in ("workers", "batch", "max_wait_seconds"):
                    name = f"{stage}.{other}"
                    if name in found:
                        found[name] = self.base[name]
        return found

    def is_possible(self, point: Point) -> bool:
        """Return whether the model's threads fit the cores, or are no more than the base has."""
        threads = point.get(THREADS)
        if not isinstance(threads, int):
            return True
        most = max(self.cores, _product(self.base, _device_workers(self.base)))
        return _product(point, _device_workers(point)) <= most

    def settings(self, point: Point) -> tuple[str, ...]:
        """Return what a point changes, as `Plan.with_settings` takes it; empty for the base."""
        point = self.canonical(point)
        changed = [key for key, value in point.items() if value != self.base[key]]
        if THREADS in point and THREADS not in changed and any(key in _device_workers(point) for key in changed):
            changed.append(THREADS)  # what the Plan leaves open follows from the workers
        return tuple(f"{key}={_toml(point[key])}" for key in changed if point[key] is not None)

    def list_changed(self, point: Point) -> tuple[str, ...]:
        """Return the keys in which a point differs from the base."""
        point = self.canonical(point)
        return tuple(key for key, value in point.items() if value != self.base[key])


def build_space(stages: Iterable[Stage], base: Plan, accounts: Mapping[str, StageAccount], limits: Limits) -> Space:
    """Return the space around a Plan.

    Args:
        stages: Of the pipeline, in order.
        base: Resolved.
        accounts: {stage: what it cost in the profiled run}.
        limits: What bounds it.
    """
    builder = _Builder(base, accounts, limits)
    before: Stage | None = None
    for stage in stages:
        builder.add(stage, before)
        before = stage
    builder.add_source()
    return Space(
        axes=tuple(builder.axes),
        base=builder.values,
        cores=limits.cores,
        left_out=tuple(dict.fromkeys(builder.left_out)),
    )


class _Builder:
    def __init__(self, base: Plan, accounts: Mapping[str, StageAccount], limits: Limits) -> None:
        self.axes: list[Axis[Value]] = []
        self.values: dict[str, Value] = {}
        self.left_out: list[str] = []
        self._base = base
        self._accounts = accounts
        self._limits = limits

    def add(self, stage: Stage, before: Stage | None) -> None:
        """Add the axes of one stage; `before` is the one that its items come from."""
        plan = self._base.stages[stage.name]
        if stage.role == "deliver":
            self._add_deliver(stage, plan)
            return
        if stage.keeps_streams:
            return  # one worker of its own, or items would overtake
        self._axis(f"stages.{stage.name}.executor", self._executors(stage, plan, before), plan.executor)
        self._axis(f"stages.{stage.name}.workers", self._workers(stage, plan), plan.workers)
        if stage.kind == "device":
            self._add_device(stage, plan)
        elif self._limits.memory_is_short and plan.executor != "inline":
            self._axis(f"stages.{stage.name}.queue_bytes", _add_base(_QUEUE_BYTES, plan.queue_bytes), plan.queue_bytes)

    def add_source(self) -> None:
        """Add what concerns receiving."""
        source = self._base.source
        first = next(iter(self._base.stages.values()), None)
        if first is not None and first.executor == "inline":
            # Receivers run the first stages themselves.
            self._axis(RECEIVERS, _add_base((1, 2, 4, 8, 16), source.receivers), source.receivers)
        if self._limits.decodes and self._base.decode.scale == "full":
            self._axis(SCALE, ("auto", "full"), "full")
        if self._limits.limits_in_flight:
            below = [number for number in _IN_FLIGHT if source.max_in_flight is None or number < source.max_in_flight]
            self._axis(IN_FLIGHT, (*below, source.max_in_flight), source.max_in_flight)

    def _add_deliver(self, stage: Stage, plan: StagePlan) -> None:
        if not self._limits.delivers:
            self.left_out.append(
                "deliver: results were dropped, so nothing is known of it; --deliver makes the deliveries"
            )
        elif not self._base.run.ordered and plan.executor != "inline":
            self._axis(f"stages.{stage.name}.workers", self._workers(stage, plan), plan.workers)

    def _add_device(self, stage: Stage, plan: StagePlan) -> None:
        base = plan.batch or 1
        largest = self._limits.largest_batch.get(stage.name, base)
        if largest <= 1:
            self.left_out.append(f"{stage.name}.batch: the cost of larger batches is not known")
        self._axis(f"stages.{stage.name}.batch", _add_base(powers_of_two(largest), base), base)
        account = self._accounts.get(stage.name)
        curve = account.batches.cost_curve if account and account.batches else {}
        call = max(curve.values(), default=0.0)
        if call and (base > 1 or largest > 1):
            waits = tuple(round(call * share, 4) for share in (0.25, 1.0) if round(call * share, 4) > 0)
            key = f"stages.{stage.name}.max_wait_seconds"
            self._axis(key, _add_base((0.0, *waits), plan.max_wait_seconds), plan.max_wait_seconds)
        model = self._base.model_of(stage.task, stage.name)
        if self._limits.has_model_threads and THREADS not in self.values and not self._base.models:
            threads = model.threads or max(1, self._limits.cores // (plan.workers or 1))
            self._axis(THREADS, _add_base(thread_counts(self._limits.cores), threads), threads)

    def _executors(self, stage: Stage, plan: StagePlan, before: Stage | None) -> tuple[Value, ...]:
        base = plan.executor or "thread"
        found = ["inline"] if base == "inline" or self._may_fuse(stage, plan, before) else []
        found.append("thread")
        if base == "process" or self._may_leave(stage):
            found.append("process")
        return tuple(found)

    def _may_fuse(self, stage: Stage, plan: StagePlan, before: Stage | None) -> bool:
        """Return whether it can run in the workers of the stage before: both take items one by one, and compute."""
        if before is None or stage.kind != "cpu" or before.kind != "cpu" or {stage.role, before.role} != {"map"}:
            return False
        if before.keeps_streams:
            return False  # another try would show it an item twice
        return plan.executor == "thread" and self._base.stages[before.name].executor != "process"

    def _may_leave(self, stage: Stage) -> bool:
        """Return whether processes may help: it holds the GIL while it computes, and can be sent to another process."""
        if stage.kind != "cpu" or stage.role != "map" or stage.releases_gil or self._waits(stage):
            return False
        try:
            pickle.dumps(stage)
        except Exception as error:  # whatever a user's object raises
            self.left_out.append(
                f"{stage.name}.executor=process: the stage cannot be sent to another process "
                f"({type(error).__name__}: {error}); use functions of a module, not local ones"
            )
            return False
        return True

    def _waits(self, stage: Stage) -> bool:
        account = self._accounts.get(stage.name)
        if stage.kind == "io" or not stage.computes:
            return True
        if account is None or account.cpu is None or not account.service.mean:
            return False
        # Waiting for the GIL or for a core ends when others let go; more workers do not help against it.
        gil = account.blocked_split.gil if account.blocked_split else 0.0
        return account.cpu + (account.run_delay or 0.0) + gil < _COMPUTES * account.service.mean

    def _workers(self, stage: Stage, plan: StagePlan) -> tuple[Value, ...]:
        base = plan.workers or 1
        if stage.kind == "device":
            # One that computes here needs the cores; one that is waited for may take more calls at a time than there are.
            most = MOST_DEVICE_WORKERS if self._waits(stage) else min(self._limits.cores, MOST_DEVICE_WORKERS)
            return _add_base(_few(most), base)
        if self._waits(stage):
            return _add_base(powers_of_two(MOST_WAITING_WORKERS), base)
        return _add_base(_few(self._limits.cores + 1), base)

    def _axis(self, key: str, values: tuple[Value, ...], base: Value) -> None:
        self.values[key] = base
        if self._limits.keep & {key, key.removeprefix("stages.")}:
            self.left_out.append(f"{key.removeprefix('stages.')}: it is to stay as it is")
        elif len(set(values)) > 1:
            self.axes.append(Axis(key, values))


def _device_workers(point: Point) -> list[str]:
    """Return the keys of the workers of the stages that take batches."""
    return [key.removesuffix(".batch") + ".workers" for key in point if key.endswith(".batch")]


def _product(point: Point, keys: Iterable[str]) -> int:
    workers = max((value for key in keys if isinstance(value := point.get(key), int)), default=1)
    threads = point.get(THREADS)
    return workers * (threads if isinstance(threads, int) else 1)


def thread_counts(cores: int) -> tuple[int, ...]:
    """Return the numbers of threads inside a call of the model that are tried on so many cores."""
    return _few(cores)


def _few(most: int) -> tuple[int, ...]:
    """Return every number up to 4, then steps of about a half: cores are few, and one more or less matters."""
    return (*(number for number in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128) if number < most), most)


def _add_base(values: Iterable[Value], base: Value) -> tuple[Value, ...]:
    known = {value for value in (*values, base) if isinstance(value, int | float)}
    return tuple(sorted(known))


def _toml(value: Value) -> str:
    return json.dumps(value)

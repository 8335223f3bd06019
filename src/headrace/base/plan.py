"""The Plan: how a Pipeline is run. TOML on disk, immutable in memory; the hash of the resolved Plan is its `plan_id`.

    [stages.fetch]
    workers = 32

    [stages.decode]
    workers = 2

    [stages.process]
    batch = 8

    [decode]
    scale = "auto"

    [model]
    engine = "onnx"
    threads = 1

Every table and every key may be left out; what is left out is filled in by `resolve` from the kind of each stage and the
cores this process may use, and the resolved Plan is stored with the run.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headrace.base.budget import BudgetPlan
from headrace.base.cache_setting import CacheSetting
from headrace.base.errors import SettingsError
from headrace.base.given_files import read_given_file
from headrace.base.network_rules import NetworkPlan
from headrace.base.settings import build, check, unknown_key
from headrace.base.toml import parse_toml

Kind = Literal["io", "cpu", "device"]
Executor = Literal["thread", "events", "process", "inline"]

#: Version of the Plan's file format. 1: 2026-11, first.
PLAN_VERSION = 1
#: Runs a model of which a Plan names no engine.
DEFAULT_ENGINE = "onnx"
#: Of a Plan's file.
_MOST_FILE_BYTES = 16 * 2**20
#: More of these is a slip of the hand: threads that cannot be started, buffers that cannot be allocated.
_MOST = {"workers": 1024, "batch": 65_536, "receivers": 256, "threads": 4096}
_LEAST_MEMORY = 32 * 2**20

ImageFormat = Literal["jpeg", "png", "webp", "gif", "bmp", "tiff"]


def _check_amounts(amounts: Mapping[str, Any], where: str) -> None:
    """Raise SettingsError unless every amount of a resource is a whole number from 1."""
    for name, amount in amounts.items():
        is_whole = isinstance(amount, int) and not isinstance(amount, bool)
        check(is_whole and 1 <= amount < 2**63, f"{where}: {name}", amount, "a whole number from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """How one stage is run; None means "by the kind of the stage"."""

    executor: Executor | None = None
    """`thread`, `process`, `events`: one thread carries the calls of all such stages, which only wait on the outside, or
    `inline`: no queue and no workers of its own, it runs in the worker of the stage before (the first stage: in the
    receiver). Inline stages are still timed one by one."""
    workers: int | None = None
    """Threads or processes, or calls that one thread carries, each serving one item (device stages: one batch) at a time."""
    queue_items: int | None = None
    """Bound of the queue before the stage, in items."""
    queue_bytes: int | None = None
    """Bound of that queue in bytes; one larger item passes alone."""
    batch: int | None = None
    """Device stages: largest batch."""
    max_wait_seconds: float = 0.0
    """Device stages: how long an idle device may wait for company; 0: never."""
    attempts: int | None = None
    """Tries of one item in this stage before it goes back to the source."""
    retry_budget_seconds: float = 30.0
    """Time within which those tries may begin."""
    time_limit_seconds: float | None = None
    """Longest service of one item; enforced by the process executor, which kills the process, and by no other."""
    memory_limit_bytes: int | None = None
    """Memory that one item may ask for beyond what the worker has mapped when its stages are open; enforced by the process
    executor (RLIMIT_AS), and by no other."""
    cache: str | None = None
    """Where results of the stages up to this one are kept: `memory:SIZE` or `disk:FOLDER:SIZE`; None: nowhere. See
    `cache_setting`."""
    options: dict[str, Any] = field(default_factory=dict)
    """The stage's own settings; see its documentation."""

    def __post_init__(self) -> None:
        """Check every value."""
        for key in ("workers", "queue_items", "queue_bytes", "batch", "attempts"):
            value = getattr(self, key)
            most = _MOST.get(key)
            check(value is None or value >= 1, key, value, "a whole number >= 1")
            check(value is None or most is None or value <= most, key, value, f"a whole number up to {most}")
        if self.cache is not None:
            CacheSetting.parse(self.cache)
        check(
            self.time_limit_seconds is None or self.time_limit_seconds > 0,
            "time_limit_seconds",
            self.time_limit_seconds,
            "more than 0",
        )
        check(
            self.time_limit_seconds is None or self.executor == "process",
            "time_limit_seconds",
            self.time_limit_seconds,
            'only with executor = "process": a thread cannot be stopped',
        )
        check(
            self.memory_limit_bytes is None or self.memory_limit_bytes >= _LEAST_MEMORY,
            "memory_limit_bytes",
            self.memory_limit_bytes,
            f"at least {_LEAST_MEMORY:,}: libraries need some for themselves",
        )
        check(
            self.memory_limit_bytes is None or self.executor == "process",
            "memory_limit_bytes",
            self.memory_limit_bytes,
            'only with executor = "process": the memory of a thread is that of all threads',
        )

    def with_executor(self, executor: Executor, workers: int | None) -> StagePlan:
        """Return this stage with another executor, without the limits that only a process of its own can have."""
        return dataclasses.replace(
            self, executor=executor, workers=workers, time_limit_seconds=None, memory_limit_bytes=None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """How images are decoded for the module's `ImageInput`."""

    scale: Literal["auto", "full"] = "auto"
    """`auto`: decode at the smallest scale that still covers what the model needs; `full`: decode every pixel."""
    decoder: Literal["auto", "simplejpeg", "opencv", "pillow", "nvjpeg"] = "auto"
    """`auto`: simplejpeg for JPEG, OpenCV for PNG and WebP, Pillow for what those refuse. GIF, BMP, TIFF: always Pillow.
    `nvjpeg`: JPEGs on an NVIDIA GPU, every pixel."""
    formats: tuple[ImageFormat, ...] = ("jpeg", "png", "webp", "gif", "bmp")
    """What is accepted, by the first bytes of the file."""
    max_bytes: int = 256_000_000
    """Largest file."""
    max_pixels: int = 50_000_000
    """Most pixels that decoding may produce; a JPEG decoded at scale counts by what it is reduced to."""
    max_side: int = 20_000
    """Longest side of the file's picture, pixels."""
    max_frames: int = 1_000
    """Most pictures of an animation, of which the first is taken; 1: no animations."""
    max_scans: int = 100
    """Most passes of a JPEG over its pixels; ordinary progressive files have about 10."""
    max_decoded_bytes: int = 400_000_000
    """Most memory that decoding may need by what the header says."""

    def __post_init__(self) -> None:
        """Check every value."""
        object.__setattr__(self, "formats", tuple(self.formats))  # a file gives a list
        check(bool(self.formats), "formats", self.formats, "at least one format")
        for key in ("max_bytes", "max_pixels", "max_side", "max_frames", "max_scans", "max_decoded_bytes"):
            value = getattr(self, key)
            check(1 <= value < 2**63, key, value, "a whole number from 1 to 2^63 - 1")
        # No format has longer sides; PNG's are the longest (PNG 3, 11.2.1).
        check(self.max_side < 2**31, "max_side", self.max_side, "a whole number from 1 to 2^31 - 1")

    @property
    def reduces(self) -> bool:
        """Whether JPEGs are decoded at a smaller scale where that suffices; nvJPEG cannot."""
        return self.scale == "auto" and self.decoder != "nvjpeg"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """Which variant of the model runs."""

    artifact: str | None = None
    """Model file; None: the one that the module names."""
    engine: str = DEFAULT_ENGINE
    """A name of `headrace.engines`."""
    threads: int | None = None
    """Threads inside one call; None: the cores divided by the workers of the stage."""
    instances: int | None = None
    """Calls of the model that run side by side: another name for the workers of the stage that calls it, which is what a
    resolved Plan has; None: as many as that stage says."""
    devices: tuple[int, ...] | None = None
    """Numbers of the devices of this host that it runs on, each with a copy of the model: worker K of the stage that calls it
    has number K modulo their count; None: one device, the engine's option `device`."""
    uses: dict[str, int] = field(default_factory=dict)
    """{resource of the Plan's `[resources]`: how much of it one call has for itself}; see `pipeline.resources`."""
    options: dict[str, Any] = field(default_factory=dict)
    """The engine's own settings."""
    sha256: str | None = None
    """Hash that the model must have, or it is not opened; None: any."""
    input_side: int | None = None
    """Pixels of the side of the images that the model takes; None: as the module's `ImageInput` says.

    Set, `crop` is this (`short_side`, where nothing is cropped), and `short_side` is scaled with it.
    """

    def __post_init__(self) -> None:
        """Check every value."""
        for key, value, most in (
            ("threads", self.threads, _MOST["threads"]),  # an engine that makes millions fills the memory first
            ("instances", self.instances, _MOST["workers"]),
        ):
            check(value is None or 1 <= value <= most, key, value, f"a whole number from 1 to {most}")
        if self.devices is not None:
            object.__setattr__(self, "devices", tuple(self.devices))  # a file gives a list
            are_numbers = bool(self.devices) and min(self.devices) >= 0 and len(set(self.devices)) == len(self.devices)
            check(are_numbers, "devices", list(self.devices), "numbers of devices from 0, each once")
        _check_amounts(self.uses, "uses")
        check(self.input_side is None or self.input_side >= 1, "input_side", self.input_side, "a whole number >= 1")

    def device_of(self, worker: int) -> int | None:
        """Return the number of the device on which a worker calls the model; None where there is one only."""
        return None if self.devices is None else self.devices[worker % len(self.devices)]

    def on_device(self, device: int | None) -> ModelPlan:
        """Return the model on one of its devices alone, as its engine is to open it."""
        if device is None:
            return self
        return dataclasses.replace(self, devices=None, options={**self.options, "device": device})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """How jobs are received."""

    receivers: int = 1
    """Threads that receive."""
    receive_batch: int = 10
    """Jobs asked for per call."""
    wait_seconds: float = 1.0
    """How long one call may wait for the first job."""
    max_in_flight: int | None = None
    """Jobs received and not yet settled; None: what the queues of the stages hold, and what can be finished in time."""
    every: int | None = None
    """Of live streams: of the frames that they would give each so many-th alone; None: all of them."""
    max_bytes_in_flight: int = 10**9
    """While the queues of all stages hold more than this together, nothing is received."""
    visibility_seconds: float | None = None
    """Visibility timeout asked for; None: what the source says."""
    max_receives: int | None = None
    """Deliveries of one job before it is dead-lettered; None: what the source says."""

    def __post_init__(self) -> None:
        """Check every value."""
        for key in ("receivers", "receive_batch", "max_in_flight", "every", "max_bytes_in_flight", "max_receives"):
            value = getattr(self, key)
            most = _MOST.get(key)
            check(value is None or value >= 1, key, value, "a whole number >= 1")
            check(value is None or most is None or value <= most, key, value, f"a whole number up to {most}")
        value = self.visibility_seconds
        check(value is None or value > 0, "visibility_seconds", value, "more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """How the run as a whole behaves."""

    ordered: bool = False
    """Deliver in the order of receipt; a slow item then holds back those behind it."""
    warm_up: bool = True
    """Run each batch size once with the first real items before timing starts; gives the device's cost curve."""
    grace_seconds: float = 30.0
    """After SIGTERM or Ctrl-C: time to finish what was received; the rest is returned to the source."""
    stall_seconds: float = 600.0
    """A thread that has the same items in a stage for so long is left behind, and they are given up or the run ends; 0: it
    never is."""
    silent_seconds: float = 60.0
    """With --supervise: a worker that gives no sign of life for so long, because native code holds Python's lock, is killed
    and started again."""
    brake_after: int = 5
    """So many jobs that fail in a row from the start, four times as many once one has succeeded, stop the run's receiving:
    single jobs are tried at growing intervals until one succeeds. 0: never."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(self.brake_after >= 0, "brake_after", self.brake_after, "a whole number >= 0")
        check(self.stall_seconds >= 0, "stall_seconds", self.stall_seconds, "0 or more")
        check(self.silent_seconds > 0, "silent_seconds", self.silent_seconds, "more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What `headrace serve` lets in."""

    deadline_seconds: float = 30.0
    """Of requests that name none; 0: they wait as long as it takes."""
    admission: Literal["in_time", "all"] = "in_time"
    """`in_time`: what is not expected to be answered by its deadline is refused at once; `all`: it is let in."""
    max_requests: int = 1_000
    """Requests inside at most."""
    max_bytes: int = 256 * 2**20
    """Bytes of what they carry."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(self.deadline_seconds >= 0, "deadline_seconds", self.deadline_seconds, "0 or more")
        for key in ("max_requests", "max_bytes"):
            value = getattr(self, key)
            check(1 <= value < 2**63, key, value, "a whole number from 1 to 2^63 - 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a Pipeline is run."""

    stages: Mapping[str, StagePlan] = field(default_factory=dict)
    decode: DecodePlan = DecodePlan()
    model: ModelPlan = ModelPlan()
    models: Mapping[str, ModelPlan] = field(default_factory=dict)
    """By task, where a pipeline has several modules; `model` is the default."""
    source: SourcePlan = SourcePlan()
    network: NetworkPlan = field(default_factory=NetworkPlan)
    run: RunPlan = RunPlan()
    serve: ServePlan = ServePlan()
    resources: Mapping[str, int] = field(default_factory=dict)
    """{name: how much of it there is} of what models share by `uses`: calls that a device takes at a time, cores, memory."""
    budget: BudgetPlan | None = None
    """What the device has for the run; None: it is not bounded."""

    def __post_init__(self) -> None:
        """Check every value that no table of its own checks."""
        _check_amounts(self.resources, "[resources]")

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Return the Plan in a TOML file.

        Raises:
            SettingsError: If the file cannot be read, is not TOML, or holds an unknown or impossible setting.
        """
        try:
            text = read_given_file(Path(path), _MOST_FILE_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"plan {path} cannot be read: {error}") from None
        try:
            table = parse_toml(text)
        except ValueError as error:  # also a number of more digits than Python reads
            raise SettingsError(f"plan {path} is not TOML: {error}") from None
        try:
            return cls.from_table(table)
        except SettingsError as error:
            raise SettingsError(f"plan {path}: {error}") from None

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Plan:
        """Return the Plan that a table as read from TOML or `as_table` describes.

        Raises:
            SettingsError: If a key is unknown, or a value of the wrong type or impossible.
        """
        parts = dict(table)
        version = parts.pop("version", PLAN_VERSION)
        check(version == PLAN_VERSION, "version", version, f"{PLAN_VERSION}, the only version this headrace knows")
        several = {"stages": StagePlan, "models": ModelPlan}
        values: dict[str, Any] = {}
        for key, part in parts.items():
            if key in _TABLES:
                values[key] = build(_TABLES[key], part, f"[{key}]")
            elif key == "resources":
                check(isinstance(part, Mapping), key, part, "a table such as gpu = 1")
                values[key] = dict(part)
            elif key in several:
                check(isinstance(part, Mapping), key, part, f"tables such as [{key}.NAME]")
                values[key] = {name: build(several[key], sub, f"[{key}.{name}]") for name, sub in part.items()}
            else:
                raise _unknown_table(key, part, ["version", "resources", *_TABLES, *several])
        return cls(**values)

    @classmethod
    def from_record(cls, table: Mapping[str, Any]) -> Plan:
        """Return the Plan that a run, a comparison or a ledger recorded, which another version of headrace may have written.

        Raises:
            SettingsError: If it is not one that this headrace knows.
        """
        try:
            return cls.from_table(table)
        except SettingsError as error:
            raise SettingsError(
                f"the recorded Plan is none that this headrace knows: {error} If a newer headrace recorded it, read it with "
                "that one, or upgrade: pip install -U headrace"
            ) from None

    def with_settings(self, settings: Iterable[str]) -> Plan:
        """Return this Plan with single settings replaced, each written `KEY=VALUE` with a TOML value.

        A key is a path into the file (`stages.fetch.workers`, `model.threads`); `fetch.workers` is short for
        `stages.fetch.workers`. A stage's name may hold dots (`faces.decode.workers`).

        Raises:
            SettingsError: If a setting is malformed, unknown or impossible.
        """
        table = self.as_table()
        for setting in settings:
            path, equals, written = setting.partition("=")
            keys = path.replace('"', "").strip().split(".")
            check(bool(equals) and len(keys) >= 2 and all(keys), "--set", setting, "KEY=VALUE such as fetch.workers=32")
            if not _is_table_key(keys):
                _refuse_unknown(keys)
                keys.insert(0, "stages")
            if keys[0] == "stages":
                keys = _stage_setting(keys)
            place = table
            for key in keys[:-1]:
                place = place.setdefault(key, {})
                check(isinstance(place, dict), "--set", setting, "a path to a setting, not below one")
            place[keys[-1]] = _toml_value(written.strip())
        return Plan.from_table(table)

    def model_of(self, task: str, stage: str = "") -> ModelPlan:
        """Return the settings of a stage's model: its `[models.NAME]` where there is one, else `[model]`; see `model_key`."""
        return self.models.get(model_key(task, stage), self.model)

    def with_model(self, key: str, model: ModelPlan) -> Plan:
        """Return this Plan with other settings of one model: `[models.KEY]`, or `[model]` where the key is empty."""
        if not key:
            return dataclasses.replace(self, model=model)
        return dataclasses.replace(self, models={**self.models, key: model})

    def allowing(self, entries: Iterable[str]) -> Plan:
        """Return this Plan with further entries of `[network] allow`; see `NetworkPlan.allowing`."""
        return dataclasses.replace(self, network=self.network.allowing(entries))

    def as_table(self) -> dict[str, Any]:
        """Return the Plan as nested dicts without what is None; `from_table` reads it back."""
        return {"version": PLAN_VERSION, **_drop_none(dataclasses.asdict(self))}

    def as_toml(self) -> str:
        """Return the Plan as TOML that `load` reads back."""
        return _toml(self.as_table())

    def __repr__(self) -> str:
        """Return one line: the id, and the first settings that are not the default; `as_toml` shows all."""
        usual = dict(_settings(Plan().as_table()))
        changed = [f"{key}={value!r}" for key, value in _settings(self.as_table()) if usual.get(key) != value]
        more = [f"and {len(changed) - _SHOWN_SETTINGS} more"] if len(changed) > _SHOWN_SETTINGS else []
        return f"<Plan {self.plan_id}: {', '.join([*changed[:_SHOWN_SETTINGS], *more]) or 'defaults'}>"

    @property
    def plan_id(self) -> str:
        """Twelve hexadecimal digits of the hash of all settings."""
        canonical = json.dumps(_canonical(self.as_table()), sort_keys=True, default=str)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def model_key(task: str, stage: str) -> str:
    """Return the name under which `[models]` has a stage's model: its task, else what stands before the last dot of its name.

    So modules whose stages were given a prefix (`det.process`) can be told apart without tasks. Empty: `[model]` alone.
    """
    return task or stage.rpartition(".")[0]


_TABLES = {
    "decode": DecodePlan,
    "model": ModelPlan,
    "source": SourcePlan,
    "network": NetworkPlan,
    "run": RunPlan,
    "serve": ServePlan,
    "budget": BudgetPlan,
}


def _is_table_key(keys: list[str]) -> bool:
    # A stage may bear a table's name: decode.scale is the table's, decode.workers the stage's.
    if keys[0] in ("stages", "models", "resources"):
        return True
    table = _TABLES.get(keys[0])
    return table is not None and keys[1] in {part.name for part in dataclasses.fields(table)}


def _refuse_unknown(keys: list[str]) -> None:
    """Raise SettingsError for a key below a table's name that neither the table nor a stage of that name has."""
    table, of_stages = _TABLES.get(keys[0]), [part.name for part in dataclasses.fields(StagePlan)]
    if table is not None and not set(keys[1:]) & set(of_stages):
        both = {part.name for part in dataclasses.fields(table)} | set(of_stages)
        raise unknown_key(keys[1], f"[{keys[0]}] and [stages.{keys[0]}]", both)


def _unknown_table(key: str, part: object, allowed: Iterable[str]) -> SettingsError:
    """Return the error for a table that no Plan has, which may be a stage's without `stages.` before its name."""
    if isinstance(part, Mapping) and part and part.keys() <= {field.name for field in dataclasses.fields(StagePlan)}:
        return SettingsError(f"the plan: there is no table [{key}]; that of a stage {key} is [stages.{key}]")
    return unknown_key(key, "the plan", allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDefaults:
    """What a stage asks for where the Plan says nothing; see `resolve`."""

    name: str
    kind: Kind
    executor: Executor = "thread"
    workers: int | None = None
    task: str = ""
    computes: bool = True
    """Whether its workers keep cores busy; an emulated stage sleeps."""
    may_carry: bool = False
    """Whether it can have the executor `events`."""
    model: str = ""
    """The model file that it opens where the Plan names none; empty: none, or not known before it is opened."""
    fuse_with: str = ""
    """The stage before it, in whose worker it runs where the Plan says nothing of it; empty: in its own."""


def resolve(plan: Plan, stages: Iterable[StageDefaults], cores: int) -> Plan:
    """Return the Plan with every setting of every stage filled in.

    Args:
        plan: As written.
        stages: The pipeline's stages, in order.
        cores: Cores that this process may use, >= 1.

    Raises:
        SettingsError: If the Plan names a stage or task that the pipeline does not have, or sets what a stage cannot.
    """
    wanted = list(stages)
    plan = with_instances_as_workers(plan, wanted)
    for name in plan.stages:
        if name not in {stage.name for stage in wanted}:
            raise unknown_key(name, "[stages]", [stage.name for stage in wanted])
    keys = {model_key(stage.task, stage.name) for stage in wanted} - {""}
    for name in plan.models:
        if name not in keys:
            raise unknown_key(name, "[models]", keys)
    _check_one_model(plan, wanted)
    _check_uses(plan)
    resolved: dict[str, StagePlan] = {}
    heads: dict[str, str] = {}
    together = min(plan.source.receive_batch, _MOST_TOGETHER)
    for stage in wanted:
        written, default = plan.stages.get(stage.name, StagePlan()), stage
        head = heads.get(stage.fuse_with, stage.fuse_with)
        if head and _may_fuse(written, resolved[head]):
            heads[stage.name] = head
            default = dataclasses.replace(stage, executor="inline")
        resolved[stage.name] = _resolve_stage(written, default, cores, together)
        together = max(together, 2 * (written.batch or 1))
    return dataclasses.replace(plan, stages=_without_company(resolved, ordered=plan.run.ordered))


def with_instances_as_workers(plan: Plan, stages: Iterable[StageDefaults]) -> Plan:
    """Return the Plan with `instances` and `devices` of its models told as workers of the stages that call them.

    One worker runs one call at a time, so `instances` and `workers` say the same; and where nothing is said of either, each
    device has one. A Plan that is to be changed setting by setting has one of them.

    Raises:
        SettingsError: If a stage has another number of workers, runs in those of another stage, or its workers are no whole
            number for each device.
    """
    told = dict(plan.stages)
    for stage in stages:
        key = model_key(stage.task, stage.name)
        model = plan.model_of(stage.task, stage.name) if stage.kind == "device" else ModelPlan()
        table = f"models.{key}" if key in plan.models else "model"
        if model.instances is not None:
            told[stage.name] = _with_instances(told.get(stage.name, StagePlan()), stage, model.instances, table)
        if model.devices is not None:
            told[stage.name] = _with_devices(told.get(stage.name, StagePlan()), stage, model.devices, table)
    if told == dict(plan.stages):
        return plan
    models = {key: dataclasses.replace(model, instances=None) for key, model in plan.models.items()}
    return dataclasses.replace(plan, stages=told, model=dataclasses.replace(plan.model, instances=None), models=models)


def _with_instances(written: StagePlan, stage: StageDefaults, instances: int, table: str) -> StagePlan:
    _refuse_inline(written, stage, f"{table}.instances = {instances}")
    if written.workers not in (None, instances):
        raise SettingsError(
            f"{table}.instances = {instances} and stages.{stage.name}.workers = {written.workers} say different things of one "
            "number, the calls of the model side by side; leave one of them out"
        )
    return dataclasses.replace(written, workers=instances)


def _with_devices(written: StagePlan, stage: StageDefaults, devices: Sequence[int], table: str) -> StagePlan:
    _refuse_inline(written, stage, f"{table}.devices = {list(devices)}")
    workers = written.workers or len(devices)
    check(
        workers % len(devices) == 0, f"stages.{stage.name}.workers", workers,
        f"a multiple of the {len(devices)} of {table}.devices, so that each device has as many",
    )  # fmt: skip
    return dataclasses.replace(written, workers=workers)


def _refuse_inline(written: StagePlan, stage: StageDefaults, setting: str) -> None:
    if (written.executor or stage.executor) == "inline":
        raise SettingsError(
            f"{setting} is not possible: {stage.name} runs in the workers of the stage before it, and each of those calls the "
            f"model; set their number, or give {stage.name} workers of its own: "
            f'stages.{stage.name}.executor = "thread"'
        )


def _may_fuse(written: StagePlan, head: StagePlan) -> bool:
    """Return whether a stage may run in the workers of `head`: nothing was said of it that asks for workers of its own."""
    is_open = dataclasses.replace(written, options={}, cache=None) == StagePlan()
    # Processes get what can be pickled, and a group is tried again as a whole.
    return is_open and head.executor == "thread" and head.attempts == 1


def _without_company(stages: Mapping[str, StagePlan], *, ordered: bool) -> dict[str, StagePlan]:
    """Return resolved stages with threads for those whose calls one thread cannot carry.

    An inline stage behind would hold up all calls; and in order the last stage tries again in place, which would, too.
    """
    resolved = dict(stages)
    names = list(stages)
    for name, after in zip(names, [*names[1:], None], strict=True):
        in_company = ordered if after is None else stages[after].executor == "inline"
        if stages[name].executor == "events" and in_company:
            resolved[name] = dataclasses.replace(stages[name], executor="thread")
    return resolved


def _check_one_model(plan: Plan, stages: Iterable[StageDefaults]) -> None:
    """Raise SettingsError where `[model]` would put one file in the place of several modules' models."""
    if plan.model.artifact is None:
        return
    replaced = {
        model_key(stage.task, stage.name): stage.model
        for stage in stages
        if stage.kind == "device" and stage.model and model_key(stage.task, stage.name) not in plan.models
    }
    if len(set(replaced.values())) > 1:
        tables = ", ".join(f"[models.{key}]" if key else "[model]" for key in replaced)
        raise SettingsError(
            f"[model] artifact = {plan.model.artifact!r} would take the place of {len(set(replaced.values()))} models: "
            f"{', '.join(replaced.values())}; name it for the module that it belongs to, as one of {tables}"
        )


def _check_uses(plan: Plan) -> None:
    """Raise SettingsError where a model uses what there is not, or not enough of."""
    for table, model in {"model": plan.model, **{f"models.{key}": model for key, model in plan.models.items()}}.items():
        for name, amount in model.uses.items():
            if name not in plan.resources:
                raise unknown_key(name, f"{table}.uses: the Plan's [resources]", plan.resources)
            most = plan.resources[name]
            check(amount <= most, f"{table}.uses.{name}", amount, f"1 to {most}, for there is no more of it")


_DEFAULT_QUEUE_BYTES = 256 * 10**6
#: The most items of one receive for which there is room in a queue by default.
_MOST_TOGETHER = 64


def _resolve_stage(plan: StagePlan, stage: StageDefaults, cores: int, together: int) -> StagePlan:
    """Return a stage's settings filled in; `together`: items that come at once, and are to find room in its queue."""
    # 1 is what resolving fills in, and a resolved Plan is one to run again.
    check(
        plan.batch in (None, 1) or stage.kind == "device",
        f"stages.{stage.name}.batch",
        plan.batch,
        "only on device stages",
    )
    check(
        plan.max_wait_seconds == 0 or stage.kind == "device",
        f"stages.{stage.name}.max_wait_seconds",
        plan.max_wait_seconds,
        "only on device stages",
    )
    check(
        plan.executor != "events" or stage.may_carry,
        f"stages.{stage.name}.executor",
        plan.executor,
        "thread, process or inline: what this stage calls cannot be carried",
    )
    by_kind = {"io": 16, "cpu": cores, "device": 1}
    workers = plan.workers or stage.workers or by_kind[stage.kind]
    batch = plan.batch or 1
    # A stage that the Plan gives workers to is meant to have them.
    executor = plan.executor or ("thread" if plan.workers and stage.executor == "inline" else stage.executor)
    return dataclasses.replace(
        plan,
        executor=executor,
        workers=workers,
        batch=batch,
        queue_items=plan.queue_items or max(4 * workers * batch, 16, together),
        queue_bytes=plan.queue_bytes or _DEFAULT_QUEUE_BYTES,
        attempts=plan.attempts or (3 if stage.kind == "io" else 1),
    )


def _drop_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _drop_none(part) for key, part in value.items() if part is not None and part != {}}
    return value


def _canonical(value: Any) -> Any:
    # Plans that are equal have one id: 5 from a program, 5.0 from a file.
    if isinstance(value, Mapping):
        return {key: _canonical(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _stage_setting(keys: list[str]) -> list[str]:
    # A stage's name may hold dots: it ends before the first key that stages have.
    known = {part.name for part in dataclasses.fields(StagePlan)}
    end = next((index for index, key in enumerate(keys) if index >= 2 and key in known), max(2, len(keys) - 1))
    return ["stages", ".".join(keys[1:end]), *keys[end:]]


def _toml_value(written: str) -> Any:
    try:
        return parse_toml(f"value = {written}")["value"]
    except ValueError:
        return written  # a bare word is text, as people type it


def _toml(table: Mapping[str, Any], prefix: str = "") -> str:
    # tomllib only reads; a Plan holds nothing but scalars, lists and tables, so writing it takes few lines.
    lines = [
        f"{_toml_key(key)} = {_toml_scalar(value)}" for key, value in table.items() if not isinstance(value, Mapping)
    ]
    text = "\n".join(lines) + ("\n" if lines else "")
    for key, value in table.items():
        if isinstance(value, Mapping):
            name = f"{prefix}{_toml_key(key)}"
            body = _toml(value, f"{name}.")
            has_scalars = any(not isinstance(part, Mapping) for part in value.values())
            text += (f"\n[{name}]\n" if has_scalars else "") + body
    return text


def _toml_scalar(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_scalar(part) for part in value) + "]"
    if isinstance(value, Mapping):  # within a list
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_scalar(part)}" for key, part in value.items()) + "}"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, str):
        return _toml_text(value)
    return str(value) if isinstance(value, float) else json.dumps(value)


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _toml_text(key)


def _toml_text(text: str) -> str:
    # JSON's escapes are TOML's but for two: no pairs of surrogates, and DEL is escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


_BARE_KEY = re.compile("[A-Za-z0-9_-]+")


#: Of a Plan's repr.
_SHOWN_SETTINGS = 6


def _settings(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key as in `--set`, value) of nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

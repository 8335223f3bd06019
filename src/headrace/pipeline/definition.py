"""What is done: source, stages, module, delivery. How it is done stands in the Plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.base.errors import SettingsError
from headrace.base.protocols import (
    Addressed,
    CarriesCalls,
    DeliversMany,
    Delivery,
    IsInstant,
    Source,
    find_missing_members,
    has_member,
)
from headrace.base.records import Job
from headrace.base.signature import check_takes
from headrace.delivery.collect import Collect
from headrace.stages.fetch import FetchStage
from headrace.stages.inputs import ArrayInput
from headrace.stages.module import Module
from headrace.stages.stage import Stage, StageContext

FETCH = "fetch"
DELIVER = "deliver"


class DeliverStage(Stage):
    """The last stage of every pipeline: hands each result to the pipeline's delivery."""

    kind = "io"
    releases_gil = True
    role = "deliver"
    work = "deliver"

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(DELIVER)
        self.delivery = delivery
        self.workers = delivery.default_workers
        self._addressed = delivery if isinstance(delivery, Addressed) else None
        self.waits_on_many = self._addressed is not None
        self.may_carry = carries_calls(delivery)
        self.is_instant = isinstance(delivery, IsInstant)
        self.executor = "events" if self.may_carry else "thread"

    def goes_to(self, job: Job, value: Any) -> tuple[str, str]:
        """Return the receiver and its group, where the delivery has several."""
        return ("", "") if self._addressed is None else self._addressed.goes_to(job)

    def open(self, context: StageContext) -> Callable[..., Any]:
        """Return the delivery; the pipeline has opened it once for all workers."""
        offers = carries_calls(self.delivery) or delivers_many(self.delivery)
        return _WorkersDelivery(self.delivery) if offers else self.delivery.deliver


class _WorkersDelivery:
    """What one worker calls with a result, and what else it may call: see `OpenedGroup.carried` and `Group`."""

    def __init__(self, delivery: Any) -> None:
        self._deliver = delivery.deliver
        self.carried = delivery.delivering if carries_calls(delivery) else None
        self.together = delivery.deliver_many if delivers_many(delivery) else None

    def __call__(self, job: Job, result: Any) -> bool:
        """Deliver one result; see `Delivery.deliver`."""
        durable: bool = self._deliver(job, result)
        return durable


def carries_calls(delivery: Delivery) -> bool:
    """Return whether `delivering` does what `deliver` does."""
    return isinstance(delivery, CarriesCalls) and _is_as_new(delivery, "delivering")


def delivers_many(delivery: Delivery) -> bool:
    """Return whether `deliver_many` does what `deliver` does."""
    return isinstance(delivery, DeliversMany) and _is_as_new(delivery, "deliver_many")


def _is_as_new(delivery: Delivery, name: str) -> bool:
    """Return whether a method belongs to the class that `deliver` comes from: a subclass may have another `deliver` only."""
    return next(name in vars(kind) for kind in type(delivery).__mro__ if {"deliver", name} & vars(kind).keys())


class Pipeline:
    """What is done with each job: source -> stages -> delivery.

    Args:
        source: Where jobs come from; `headrace.queue(...)`, `headrace.folder(...)`, `headrace.urls(...)`.
        module: The user's module; gives the stages fetch, decode, resize, preprocess, process, postprocess.
        modules: Several, by the job's `task`; they share fetch and deliver, and the names of their own stages start with
            the task (`faces.process`).
        stages: Instead of a module: the stages one by one.
        delivery: Where results go; a list in memory by default.
        name: For people to read.

    Raises:
        SettingsError: If not exactly one of module, modules and stages is given, or their names clash.
    """

    def __init__(
        self,
        source: Source,
        *,
        module: Module | None = None,
        modules: Mapping[str, Module] | None = None,
        stages: Sequence[Stage] | None = None,
        delivery: Delivery | None = None,
        name: str = "pipeline",
    ) -> None:
        _check_parts(source, module, modules, stages, delivery)
        given = [key for key, value in (("module", module), ("modules", modules), ("stages", stages)) if value]
        if len(given) != 1:
            raise SettingsError(
                f"a Pipeline takes exactly one of module, modules and stages, got {', '.join(given) or 'none'}"
            )
        self.name = name
        self.options: tuple[str, ...] = ()  # of the command line, for the record
        self.source = source
        self.delivery: Delivery = Collect() if delivery is None else delivery
        deliver = DeliverStage(self.delivery)
        self.routes: Mapping[str, tuple[Stage, ...]]
        if stages is not None:
            self.routes = {"": (*stages, deliver)}
        elif modules:
            fetch = FetchStage(FETCH)
            self.routes = {
                task: (*_fetch_for(one, fetch), *one.stages(f"{task}.", task), deliver) for task, one in modules.items()
            }
        elif module is not None:
            self.routes = {"": (*_fetch_for(module, FetchStage(FETCH)), *module.stages(), deliver)}
        _check(self.stages)

    def replace_delivery(self, delivery: Delivery) -> Pipeline:
        """Return the pipeline with another delivery; source and stages are the same objects."""
        other = copy.copy(self)
        other.delivery = delivery
        last = DeliverStage(delivery)
        other.routes = {task: (*route[:-1], last) for task, route in self.routes.items()}
        return other

    def replace_source(self, source: Source) -> Pipeline:
        """Return the pipeline with another source; stages and delivery are the same objects."""
        other = copy.copy(self)
        other.source = source
        return other

    @property
    def stages(self) -> list[Stage]:
        """Every stage once, in the order an item meets them."""
        unique: dict[int, Stage] = {}
        for route in self.routes.values():
            unique.update((id(stage), stage) for stage in route[:-1])
        last = next(iter(self.routes.values()))[-1]
        return [*unique.values(), last]


def _check_parts(source: Any, module: Any, modules: Any, stages: Any, delivery: Any) -> None:
    """Raise SettingsError for what is easily mistaken: a class for an instance, an address for a source."""
    parts = [("module", module, "process", "an instance of your Module")]
    parts += [
        (f"modules[{task!r}]", one, "process", "an instance of your Module") for task, one in (modules or {}).items()
    ]
    parts += [
        (f"stages[{index}]", one, "defaults", "a Stage such as headrace.stage(name, function)")
        for index, one in enumerate(stages or ())
    ]
    check_source(source)
    for name, part, method, expected in parts:
        if part is not None:
            _check_is(part, name, method, expected)
    if delivery is not None:
        check_delivery(delivery)
    for stage in stages or ():
        check_takes(stage.open, ("context",), f"stage {stage.name}")


def check_source(source: Any) -> None:
    """Raise SettingsError unless this is a source."""
    expected = "headrace.queue(...), headrace.folder(...), headrace.urls(...) or headrace.items(...)"
    _check_is(source, "source", "receive", expected)
    _check_members("source", source, Source)
    check_takes(source.receive, ("limit", "wait_seconds"), "the source")


def check_delivery(delivery: Any) -> None:
    """Raise SettingsError unless this is a delivery."""
    expected = "headrace.callback(), headrace.jsonl(...) or headrace.parquet(...)"
    _check_is(delivery, "delivery", "deliver", expected)
    _check_members("delivery", delivery, Delivery)
    check_takes(delivery.deliver, ("job", "result"), "the delivery")


def _check_is(part: Any, name: str, method: str, expected: str) -> None:
    if isinstance(part, type) or not has_member(part, method):
        got = f"the class {part.__name__}" if isinstance(part, type) else repr(part)
        raise SettingsError(f"{name} is {got}; expected {expected}")


def _check_members(name: str, part: Any, protocol: type) -> None:
    """Raise SettingsError unless a part has everything that its protocol asks for; names all that is missing."""
    missing = find_missing_members(part, protocol)
    if missing:
        hint = "; a class that derives from it has them" if protocol is Source else ""
        raise SettingsError(
            f"{name} is {part!r}, which has no {', '.join(missing)}; expected all that "
            f"headrace.base.protocols.{protocol.__name__} names{hint}"
        )


def _fetch_for(module: Module, fetch: FetchStage) -> list[Stage]:
    return [] if isinstance(module.input, ArrayInput) else [fetch]


def _check(stages: Sequence[Stage]) -> None:
    names = [stage.name for stage in stages]
    for name in names:
        if not name or not name.isprintable():
            raise SettingsError(f"a stage is named {name!r}; expected letters, digits or signs, and no line break")
        if names.count(name) > 1:
            raise SettingsError(f"two stages are named {name!r}; give each its own name")
    depth = 0
    for stage in stages:
        depth += {"fan_out": 1, "join": -1}.get(stage.role, 0)
        if depth < 0:
            raise SettingsError(f"stage {stage.name} joins, but no fan_out stage stands before it")
    if depth:
        raise SettingsError("a fan_out stage needs a join stage after it")

"""What a stage is, and the ways to write one's own.

A stage maps one value to one value (a device stage: a batch to a batch). `open` is called once in each worker and returns
what the worker calls from then on, so a stage keeps per-worker state (a connection, a buffer, a loaded model) in a closure
and the Stage itself stays an immutable description that can be sent to another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from headrace.base.meaning import Output
from headrace.base.plan import Executor, Kind, Plan, StageDefaults
from headrace.base.protocols import Model
from headrace.base.records import Job
from headrace.base.settings import refuse_options
from headrace.base.signature import check_takes
from headrace.store.code_hash import hash_code

Role = Literal["map", "fan_out", "join", "deliver"]


class OpenModel(Protocol):
    """Opens the model that the Plan names for this stage's task."""

    def __call__(self, path: str | None = None) -> Model:
        """Return the model; `path` is used where the Plan names no artifact."""
        ...


@dataclass(slots=True)
class StageContext:
    """What a stage knows of its worker and its Plan when it is opened."""

    stage: str
    worker: int
    """Number of the worker within the stage, from 0."""
    plan: Plan
    """The resolved Plan."""
    options: Mapping[str, Any]
    """The Plan's `[stages.NAME.options]`."""
    next_stage: Stage | None
    """The next stage in the same worker, which gets this one's result; None if the result goes to another worker."""
    open_model: OpenModel
    counts: dict[str, int] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    """Shared by the stage's workers in this process; the first worker fills it. `servers`: the `Destinations` that it calls."""

    def count(self, name: str, number: int = 1) -> None:
        """Add to one of the run's counters, such as `decode.decoder.simplejpeg`."""
        self.counts[name] = self.counts.get(name, 0) + number


class Stage:
    """One step of a pipeline.

    Attributes:
        name: Unique in its pipeline.
        kind: `io` waits on the outside, `cpu` computes, `device` takes batches.
        releases_gil: Whether threads of a cpu stage can run side by side; if not, use the process executor.
        role: `fan_out` cuts one item into many, `join` puts them together again.
        executor: Default executor, which a Plan can change; see `plan.StagePlan.executor`.
        workers: Default number of workers, which a Plan can change; None: chosen by the kind.
        task: The task whose model `open_model` opens, in pipelines with several modules.
        computes: Whether its workers keep cores busy.
        work: What it does, for reports: `download`, `decode`, `resize`, `preprocess`, `model`, `postprocess`, `deliver`; empty
            for a user's own stage.
        may_carry: Whether what `open` returns has an attribute `carried` (`base.carrier.Carried`), so that one thread can carry
            the calls of all workers; see `plan.StagePlan.executor`.
        waits_on_many: Whether its calls wait on several servers or receivers; `goes_to` names the one of each call. The
            workers are then shared among them, so that one that hangs delays only its own items; see
            `headrace.base.policies.shares`.
        is_instant: Whether it takes less time than waking a thread, and never waits: whoever brings an item runs it.
        keeps_streams: Whether it knows more of a stream than one item, so that its one worker must get the items of each in the
            order of receipt.
        follows: The stage whose options in the Plan say what this one does as well; empty where none does.
    """

    kind: Kind = "cpu"
    releases_gil: bool = False
    role: Role = "map"
    executor: Executor = "thread"
    workers: int | None = None
    computes: bool = True
    work: str = ""
    may_carry: bool = False
    waits_on_many: bool = False
    is_instant: bool = False
    keeps_streams: bool = False
    follows: str = ""

    def __init__(self, name: str, *, task: str = "") -> None:
        self.name = name
        self.task = task

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return the function that one worker calls for each item (device stages: for each batch)."""
        raise NotImplementedError(f"{type(self).__name__} must define open()")

    def passes(self, value: Any) -> bool:
        """Return whether a value goes through unchanged, so that an item need not come here at all."""
        return False

    def goes_to(self, job: Job, value: Any) -> tuple[str, str]:
        """Return the server or receiver that a call for this item waits on, and its group, such as its domain."""
        return "", ""

    def defaults(self) -> StageDefaults:
        """Return what the Plan's resolution needs to know."""
        return StageDefaults(
            name=self.name,
            kind=self.kind,
            executor=self.executor,
            workers=self.workers,
            task=self.task,
            computes=self.computes,
            may_carry=self.may_carry,
        )

    def recipe(self, plan: Plan) -> Mapping[str, Any] | None:
        """Return what tells this stage's results from those of another stage, given the same value; None if that is unknown.

        With it a stage says that equal values give equal results, so that these may be kept (the Plan's `cache`).
        """
        return None

    def is_emulated(self, plan: Plan) -> bool:
        """Return whether it only takes time, so that every output has to say so."""
        return False

    def elsewhere(self, plan: Plan) -> Mapping[str, tuple[str, ...]]:
        """Return settings that have the same computed at another place, {setting: its value, then those possible here}.

        What that costs no run at the present place tells, so `headrace tune` profiles each one.
        """
        return {}

    def output_of(self, path: str | None) -> Output:
        """Return the declared meaning of the answers of the model at `path`; None if nothing is declared."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class FunctionStage(Stage):
    """A stage made from a function without state."""

    def __init__(
        self,
        name: str,
        function: Callable[[Any], Any],
        *,
        kind: Kind = "cpu",
        releases_gil: bool = False,
        role: Role = "map",
        executor: Executor = "thread",
        task: str = "",
        work: str = "",
        deterministic: bool = False,
    ) -> None:
        super().__init__(name, task=task)
        check_takes(function, ("batch" if kind == "device" else "value",), f"stage {name}")
        self.function = function
        self.work = work
        self.kind = kind
        self.releases_gil = releases_gil
        self.role = role
        self.executor = executor
        self.deterministic = deterministic

    def recipe(self, plan: Plan) -> Mapping[str, Any] | None:
        """Return the hash of the function, if it is said to be deterministic."""
        if not self.deterministic:
            return None
        # Of a module, what runs behind its preprocess is another stage's.
        others = ("load", "process", "postprocess") if self.work == "preprocess" else ()
        return {"code": hash_code(self.function, f"stage {self.name}", others)}

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return the function itself."""
        refuse_options(context.options, self.name)
        return self.function


def stage(
    name: str,
    function: Callable[[Any], Any],
    *,
    kind: Kind = "cpu",
    releases_gil: bool = False,
    deterministic: bool = False,
) -> Stage:
    """Return a stage that calls a function with each value.

    Args:
        name: Unique in its pipeline.
        function: Value to value; for kind "device" a batch (array or list) to as many results, in order. Called from
            several threads.
        kind: `io`, `cpu` or `device`.
        releases_gil: For cpu stages, whether threads gain anything.
        deterministic: Whether equal values give equal results, whatever the time, chance and other items: only then may the
            Plan's `cache` keep them.
    """
    return FunctionStage(name, function, kind=kind, releases_gil=releases_gil, deterministic=deterministic)


@dataclass(frozen=True, slots=True)
class Fan:
    """Result of a fan-out stage: the values of the children, and a value that is kept for the join."""

    children: Sequence[Any]
    keep: Any = None


def fan_out(name: str, function: Callable[[Any], Fan]) -> Stage:
    """Return a stage that cuts one item into many; each runs through the following stages up to the join."""
    return FunctionStage(name, function, role="fan_out")


@dataclass(frozen=True, slots=True)
class Joined:
    """Argument of a join stage."""

    keep: Any
    """The value that the fan-out kept."""
    results: list[Any]
    """One result per child, in the children's order."""


def join(name: str, function: Callable[[Joined], Any]) -> Stage:
    """Return a stage that combines all children of an item into one value; if one child fails, the item fails."""
    return FunctionStage(name, function, role="join")

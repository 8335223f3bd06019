"""A pipeline with its surroundings, ready to run; faults and their remedies return changed copies of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from benchmarks.faults.image_server import ServerSettings
from benchmarks.faults.server import Server
from benchmarks.faults.sources import Broker, FedQueue, RepeatedList
from headrace.base.plan import Plan
from headrace.base.protocols import Delivery, Source
from headrace.delivery.callback import Callback
from headrace.delivery.collect import Collect
from headrace.pipeline.definition import Pipeline
from headrace.stages.stage import Stage, StageContext

#: Takes what a stage's worker calls, and returns what it calls instead.
Around = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]

_COPIED = ("kind", "releases_gil", "role", "executor", "workers", "computes", "work")


class ChangedStage(Stage):
    """A stage around whose calls something else happens; to everybody else it is the stage it was.

    Args:
        inner: The stage.
        around: Called once in each worker, when it opens the stage.
    """

    def __init__(self, inner: Stage, around: Around) -> None:
        super().__init__(inner.name, task=inner.task)
        for name in _COPIED:
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))
        self._inner = inner
        self._around = around

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return the stage's call with what goes around it."""
        return self._around(self._inner.open(context))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pipeline with its surroundings. Immutable: each method that begins with `with_` returns a changed copy."""

    shape: str
    """Name of the shape it was made from."""
    stages: tuple[Stage, ...]
    payloads: Callable[[], Sequence[bytes]]
    """What the jobs carry, around in a circle; with a server, what it serves."""
    plan: Plan
    seconds: float = 4.0
    """How long jobs are given out."""
    limit: int | None = None
    """Most jobs that are received."""
    server: ServerSettings | None = None
    """Where images are downloaded from and results are posted to; None: the jobs carry their bytes, results are collected."""
    broker: Broker | None = None
    """The queue that jobs come through; None: a list."""
    delivery: Callable[[], Delivery] | None = None
    """Where results go instead; called for each run."""
    beside: tuple[Callable[[], AbstractContextManager[object]], ...] = ()
    """What goes on around the run, entered before it and left after it."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[Pipeline]:
        """Start what the pipeline needs around it, and give a new pipeline to run once with `plan` and `limit`."""
        with contextlib.ExitStack() as stack:
            payloads: Sequence[str] | Sequence[bytes] = self.payloads()
            delivery: Delivery = Collect()
            if self.server is not None:
                stack.enter_context(_trusting(self.server.certificate))
                server = stack.enter_context(Server(self.server, self.payloads()))
                payloads, delivery = server.image_urls(), Callback(server.callback_url)
            for beside in self.beside:
                stack.enter_context(beside())
            if self.delivery is not None:
                delivery = self.delivery()
            # One name for all: a run folder is not to say what was done to its pipeline.
            yield Pipeline(self._source(payloads), stages=self.stages, delivery=delivery, name="images")

    def _source(self, payloads: Sequence[str] | Sequence[bytes]) -> Source:
        if self.broker is None:
            return RepeatedList(payloads, self.seconds)
        return FedQueue(payloads, self.seconds, self.broker)

    def stage(self, name: str) -> Stage:
        """Return the stage of this name.

        Raises:
            ValueError: If there is none.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise ValueError(
            f"shape {self.shape} has no stage {name!r}; it has {', '.join(one.name for one in self.stages)}"
        )

    def with_settings(self, *settings: str) -> Case:
        """Return the case with settings of its Plan replaced, each `KEY=VALUE`."""
        return replace(self, plan=self.plan.with_settings(settings))

    def with_stage(self, stage: Stage) -> Case:
        """Return the case with the stage of the same name replaced."""
        self.stage(stage.name)
        return replace(self, stages=tuple(stage if one.name == stage.name else one for one in self.stages))

    def around(self, name: str, around: Around) -> Case:
        """Return the case with something around the calls of a stage; to processes go only callables that can be pickled."""
        return self.with_stage(ChangedStage(self.stage(name), around))

    def with_server(self, **changes: Any) -> Case:
        """Return the case with another behaviour of its server; changes are fields of `ServerSettings`."""
        return replace(self, server=msgspec.structs.replace(self.server or ServerSettings(), **changes))

    def with_broker(self, **changes: Any) -> Case:
        """Return the case with its jobs from a queue; changes are fields of `Broker`."""
        return replace(self, broker=replace(self.broker or Broker(), **changes))

    def with_beside(self, beside: Callable[[], AbstractContextManager[object]]) -> Case:
        """Return the case with one more thing that goes on around the run."""
        return replace(self, beside=(*self.beside, beside))


@contextlib.contextmanager
def _trusting(certificate: str | None) -> Iterator[None]:
    """Trust the server's own certificate, as a user would who has one."""
    if certificate is None:
        yield
        return
    with environment({"SSL_CERT_FILE": certificate}):
        yield


@contextlib.contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the length of a `with` block."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

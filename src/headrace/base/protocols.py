"""What can be swapped: queue, source, delivery and engine, each as a small protocol.

A new queue implements `Queue` and passes the conformance suite in `headrace.testing.conformance`; a new engine implements
`Engine`; a new place for results implements `Delivery`. All are called from several threads unless a method says otherwise.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from headrace.base.calls import Call
from headrace.base.current_job import Returned, Worked
from headrace.base.plan import SourcePlan
from headrace.base.policies.retry import PostponePolicy
from headrace.base.records import Burial, DeadLetter, Job, Kept, Message, Postponed, QueueStatistics, SourceWork
from headrace.base.stream_tally import StreamTally

#: Why a batch call did not succeed for one receipt: the delivery is no longer ours.
STALE = "stale"
#: Prefix of a reason that no further try can change.
FINAL = "final: "


def find_missing_members(part: Any, protocol: type) -> list[str]:
    """Return what a protocol asks for and an object does not have: attributes, and methods as `open()`."""
    asked = [*protocol.__annotations__, *(member for member in vars(protocol) if member[0] != "_")]
    if "__call__" in vars(protocol):
        asked.append("__call__")
    return [
        f"{one}()" if inspect.isfunction(getattr(protocol, one, None)) else one
        for one in asked
        if not has_member(part, one)
    ]


def has_member(part: Any, name: str) -> bool:
    """Return whether an object has a member, whatever happens when it is read."""
    try:
        return hasattr(part, name)
    except Exception:  # a property that is of use only later, such as one that `load` prepares
        return True


@runtime_checkable
class Queue(Protocol):
    """A queue service with visibility timeout, receive count and dead-letter queue. Delivery is at least once.

    Batch calls take any number of receipts (the adapter cuts them to what the service allows) and return only the failures, as
    {receipt: reason}. The reason is `STALE` when the delivery is no longer ours; it begins with `FINAL` when another try would
    fail in the same way. A receipt that is not in the answer succeeded.

    `receive`, `peek` and `redrive` must not fail on messages of other programs: they mark these as `Message.malformed`.

    Raises (all methods):
        QueueUnavailable: If the service cannot be reached or refuses the call as a whole.
        QueueRefused: If waiting does not help: no permission, a wrong key. A subclass of QueueUnavailable.
        SourceError: If the queue itself is gone or broken; the run ends.
    """

    @property
    def name(self) -> str:
        """Address without secrets, for people to read."""
        ...

    @property
    def visibility_seconds(self) -> float:
        """Visibility timeout of each delivery."""
        ...

    def send(self, bodies: Sequence[bytes], *, delay_seconds: float = 0.0) -> list[str]:
        """Store messages durably and return their ids, in order."""
        ...

    def receive(self, max_messages: int, *, wait_seconds: float = 0.0) -> list[Message]:
        """Return up to max_messages, each lent for the visibility timeout; wait up to wait_seconds for the first."""
        ...

    def ack(self, receipts: Sequence[str]) -> dict[str, str]:
        """Remove messages for good."""
        ...

    def nack(self, receipts: Sequence[str], *, delay_seconds: float = 0.0) -> dict[str, str]:
        """Offer messages again after a delay."""
        ...

    def extend(self, receipts: Sequence[str], seconds: float) -> dict[str, str]:
        """Extend the loans to this many seconds from now."""
        ...

    def postpone(self, postponed: Sequence[Postponed]) -> dict[str, str]:
        """Offer messages again after their delays as if they were new: with a receive count of zero and the kept result.

        The id stays the same. If the kept result is too large for the service, keep `kept_brief` instead; never drop the
        message.
        """
        ...

    def dead_letter(self, burials: Sequence[Burial]) -> dict[str, str]:
        """Move messages with their reasons to the dead-letter queue: store each there before removing it here."""
        ...

    def statistics(self) -> QueueStatistics:
        """Return depth, in flight, dead and age of the oldest."""
        ...

    def peek(self, max_messages: int, *, dead: bool = False) -> list[Message] | list[DeadLetter]:
        """Return messages without receiving them, or dead letters, as far as the service can."""
        ...

    def redrive(self, max_messages: int | None = None, *, rework: bool = False) -> int:
        """Move dead letters back to the queue with a receive count of zero and return how many.

        Args:
            max_messages: The most to move; None for all.
            rework: Leave kept results behind, so that the jobs are worked on again.
        """
        ...

    def purge(self, *, dead: bool = False) -> int:
        """Remove all messages, or all dead letters, and return how many (as far as the service tells)."""
        ...

    def close(self) -> None:
        """Release connections; messages in flight come back after their visibility timeout."""
        ...


@runtime_checkable
class HasIdentity(Protocol):
    """A queue whose name depends on where it was opened."""

    @property
    def identity(self) -> str:
        """A name that is unique among all queues and the same wherever the queue was opened; without secrets."""
        ...


@runtime_checkable
class LimitsReceives(Protocol):
    """A queue whose service may bury messages itself."""

    @property
    def most_receives(self) -> int | None:
        """Deliveries after which the service moves a message away, without a reason; None: it does not."""
        ...


@runtime_checkable
class CostsCalls(Protocol):
    """A queue whose calls cost money, so that an idle worker should make few."""

    @property
    def idle_wait_seconds(self) -> float:
        """How long one receive waits while no message comes."""
        ...


@runtime_checkable
class AdoptsLoans(Protocol):
    """A queue that keeps a list of its loans and can take over those of a process that died."""

    def adopt(self, lent_at: Mapping[str, float]) -> None:
        """Take over the receipts that another process received, so that they can be acked and nacked here.

        Args:
            lent_at: When each was lent or last extended, {receipt: seconds on the host's monotonic clock}.
        """
        ...


class Source(Protocol):
    """Where jobs come from. It learns through `Job.settle` how each one ended.

    A class that derives from it needs only `receive`; every other member has a safe default. A class that does not derive from
    it needs every member.
    """

    @property
    def is_remote(self) -> bool:
        """Whether its jobs may come from other machines, which may not name files of this one."""
        return True

    @property
    def is_endless(self) -> bool:
        """Whether only a signal or a limit ends it."""
        return False

    @property
    def is_exhausted(self) -> bool:
        """Whether every job was given out and only those in flight may come back; always False for an endless source."""
        return False

    @property
    def shown_address(self) -> str | None:
        """Address for `headrace queue`, without secrets; None if there is no queue behind the source."""
        return None

    @property
    def visibility_seconds(self) -> float | None:
        """How long a received job is lent; None if there is no limit, or the source is not open."""
        return None

    def open(self, settings: SourcePlan) -> None:
        """Make ready; `settings` is the Plan's `[source]` table."""
        return  # else type checkers take it for abstract

    @abc.abstractmethod
    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return up to limit jobs, [] if none came within wait_seconds, None once there are no more."""

    def tend(self) -> None:
        """Do what is due: send acks, extend loans. Called by the heartbeat thread every few tens of milliseconds."""
        return

    def in_flight_limit(self, throughput: float | None, at_least: int) -> int | None:
        """Return how many jobs may be in flight at this throughput (items/s), or None if the source sets no limit."""
        return None

    def close(self) -> None:
        """Send the acks that are still pending and release connections."""
        return


@runtime_checkable
class PushesJobs(Protocol):
    """A source whose jobs come by themselves, and that has a bound of its own on how many are inside."""

    def push_to(self, push: Callable[[Sequence[Job]], object]) -> None:
        """Take what lets jobs in at once, from any thread, without waiting; called once the source is open.

        Where this is not called, jobs are received as from any source.
        """
        ...


@runtime_checkable
class HearsOfEnd(Protocol):
    """A source that has something to do before the run takes no more, and refuses new work from then on."""

    def may_stop(self) -> bool:
        """Return whether a first signal may end the run now; asked again until it may. A second signal does not ask."""
        ...

    def stop(self) -> None:
        """Note that nothing more will be received; called once, while what was received is still worked on."""
        ...


@runtime_checkable
class Thins(Protocol):
    """A Source of what never ends to come, and may give less of it: the Plan's `source.every`."""

    def thin(self, every: int) -> None:
        """Give each so many-th alone of what it would give of each stream, from now on; from any thread."""
        ...


@runtime_checkable
class NamesUnit(Protocol):
    """A source whose jobs have a name that people use."""

    @property
    def unit(self) -> str:
        """What one job is, as spans and reports call it: `frame`."""
        ...


@runtime_checkable
class TellsStreams(Protocol):
    """A source of several streams that counts what becomes of each one's frames."""

    def tallies(self) -> Sequence[StreamTally]:
        """Return what is counted of each stream; from any thread, and after the run too."""
        ...


@runtime_checkable
class TellsBacklog(Protocol):
    """A source that knows how many jobs wait to be received."""

    def backlog(self) -> QueueStatistics:
        """Return how much waits, how much is in flight and the age of the oldest; thread-safe while the source is open.

        Raises:
            HeadraceError: If this is not known now.
        """
        ...


@runtime_checkable
class WorksForJobs(Protocol):
    """A source that has all its jobs from the start, and works for each."""

    @property
    def work(self) -> SourceWork:
        """What it does; so that a run which waits for it is not taken for one that waits for a sender."""
        ...


@runtime_checkable
class TellsLoans(Protocol):
    """A source that lends its jobs, and knows how long each loan still lasts."""

    def least_remaining_seconds(self) -> float | None:
        """Return after what time the first loan runs out unless it is extended; None: none is under way.

        Thread-safe while the source is open.
        """
        ...


@runtime_checkable
class TakesNotes(Protocol):
    """A source that counts further events for the run's notes."""

    def notes(self) -> Mapping[str, int]:
        """Return the counts so far, {name: number}; thread-safe while the source is open."""
        ...


@runtime_checkable
class GivesFiles(Protocol):
    """A source that knows whether its jobs are files of this machine."""

    @property
    def gives_files(self) -> bool:
        """Whether they are: threads of their own read them at less cost than one thread that carries calls."""
        ...


class Delivery(Protocol):
    """Where results go. A job is settled as delivered only when its result is durable.

    `deliver` returns True when the result is durable now, False when it will be at the next `flush`; the runtime then
    flushes after `flush_items` or `flush_seconds`, whichever comes first, and at the end.
    """

    flush_items: int
    flush_seconds: float
    default_workers: int
    """Threads that deliver side by side unless the Plan says otherwise; 1 for a delivery that is not thread-safe."""

    def open(self, context: Any) -> None:
        """Make ready, once, before the first result."""
        ...

    def deliver(self, job: Job, result: Any) -> bool:
        """Deliver one result.

        Raises:
            DeliveryFailed: If another try may succeed.
            DeliveryRejected: If no try can succeed.
        """
        ...

    def flush(self) -> None:
        """Make everything delivered so far durable.

        Whatever else it raises, the results stay undelivered and it is called again a second later, for as long as the run
        lasts: a disk or service may come back. Refuse a result that can never be written in `deliver`.

        Raises:
            ResultsRefused: If all are durable but some, which only now turned out never to be; these jobs are rejected.
        """
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


@runtime_checkable
class IsInstant(Protocol):
    """A delivery that takes less time than waking a thread and never waits, from any thread: it needs none of its own."""

    is_instant: bool
    """True."""


@runtime_checkable
class Addressed(Protocol):
    """A delivery that sends results to many receivers: one that hangs must not delay the others."""

    def goes_to(self, job: Job) -> tuple[str, str]:
        """Return the receiver of a job's result, and the group that it belongs to, such as its host; any thread."""
        ...


@runtime_checkable
class CarriesCalls(Protocol):
    """A delivery for which one thread can wait for the ends of many deliveries."""

    def delivering(self, job: Job, result: Any) -> Call[bool]:
        """Return a call that does what `deliver` does, and holds up its thread nowhere but in what it yields."""
        ...


@runtime_checkable
class DeliversMany(Protocol):
    """A delivery for which several results at once cost less than one by one."""

    def deliver_many(self, results: Sequence[tuple[Job, Any]]) -> Sequence[bool | Exception]:
        """Do what `deliver` does for each, in order; return what it would return or raise.

        Raises:
            DeliveryFailed: If none was delivered.
        """
        ...


@runtime_checkable
class Checkable(Protocol):
    """A delivery that can show what it would do with a result, without doing it."""

    def check(self, job: Job, result: Any) -> bytes:
        """Return what would be sent or written.

        Raises:
            DeliveryFailed: As `deliver` would.
            DeliveryRejected: As `deliver` would, as far as this is known without contacting anybody.
        """
        ...


@runtime_checkable
class Recoverable(Protocol):
    """A delivery whose results can be read back, so that a run can be resumed without doing one twice.

    The results are the only record of what was delivered, so no second record can disagree with them.
    """

    @property
    def checkpoint(self) -> Path | None:
        """Folder beside the results for the rest of the run's state; None if these results cannot be read back."""
        ...

    @property
    def has_results(self) -> bool:
        """Whether any are there."""
        ...

    def mark(self) -> dict[str, Any]:
        """Return, before `open`, a JSON mark that separates the results of a new run from the existing ones."""
        ...

    def recover(self, mark: Mapping[str, Any]) -> set[str]:
        """Repair, before `open`, what a killed process left unfinished; return the ids of the results since a mark.

        Args:
            mark: The value of `mark` when the run began; empty: all results count.

        Raises:
            FileNotFoundError: If the results are gone.
            SettingsError: If they are not those of the mark.
        """
        ...


@runtime_checkable
class KeepsResults(Protocol):
    """A delivery whose undelivered results the source may keep and deliver later."""

    postponement: PostponePolicy
    """How long results are held back; known once the delivery is open."""

    def keep(self, job: Job, kept: Kept) -> bytes:
        """Return a result, or its absence (see `Kept.result`), as bytes that `take_up` reads in any process.

        Raises:
            DeliveryRejected: If it cannot be written down.
        """
        ...

    def take_up(self, job: Job) -> Kept | None:
        """Return the content of `job.kept`; None if it cannot be trusted, so that the job is worked on again."""
        ...


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model."""

    name: str
    dtype: str
    """Type of its numbers, as ONNX Runtime names it, `tensor(float)`, or as NumPy does, `float32`."""
    shape: tuple[int | str, ...]
    """Axis lengths; a str where the length is free."""

    @property
    def numpy_type(self) -> str:
        """NumPy's name of the type."""
        name = self.dtype.removeprefix("tensor(").removesuffix(")")
        return {"float": "float32", "double": "float64"}.get(name, name)


class Model(Protocol):
    """A model opened by an engine. Thread-safe; calls may run side by side where the engine allows it."""

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """Inputs of the model."""
        ...

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """Outputs of the model."""
        ...

    @property
    def variant(self) -> Mapping[str, Any]:
        """The variant as resolved on this machine: artifact hash, engine, precision, threads, versions, ..."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the model file, such as the names of its classes; empty if there are none."""
        ...

    def __call__(self, batch: np.ndarray | Mapping[str, np.ndarray]) -> Any:
        """Return the output array, or {name: array} where the model has several outputs."""
        ...


class Engine(Protocol):
    """Opens models. One module per engine; the heavy library is imported there and nowhere else.

    What else an engine can do is in its `headrace.engines.EngineTraits`.
    """

    def open(self, artifact: Path | None, *, threads: int, options: Mapping[str, Any], calls: int = 1) -> Model:
        """Open an artifact.

        Args:
            artifact: Model file; None for engines that need none (emulated).
            threads: Threads inside one call; 1 to the cores this process may use.
            options: The engine's own settings from the Plan's `[model.options]`.
            calls: Workers that will share the model, whose calls should run side by side; >= 1.

        Raises:
            EngineError: If the file is missing, unreadable or not for this engine.
            SettingsError: If an option is unknown or impossible.
        """
        ...


@runtime_checkable
class KeepsBuffers(Protocol):
    """A Model that keeps memory for the largest batch that it was called with."""

    def give_back_buffers(self) -> None:
        """Give back with the next call, or at once, what later calls may not need; from any thread."""
        ...


@runtime_checkable
class SaysWhyNot(Protocol):
    """An engine that knows before it opens a file that it cannot: another machine is needed, or another build."""

    def why_not(self, options: Mapping[str, Any]) -> str | None:
        """Return why the engine cannot be used here with these options; None if it can.

        Raises:
            SettingsError: If an option is unknown or impossible.
        """
        ...


@runtime_checkable
class ShowsTensors(Protocol):
    """An engine that can show what lies between a model's layers."""

    def open_showing(self, artifact: Path, names: Sequence[str], *, threads: int, options: Mapping[str, Any]) -> Model:
        """Open a model whose answer is {tensor: array}: those of these names that it has, and its own outputs.

        Raises:
            EngineError: If the file cannot be opened so.
        """
        ...


class Instrument(Protocol):
    """Wraps the calls of stages: a profiler of one stage's code, ranges for a vendor's tool, an injected fault.

    A worker applies it when it opens its stages, in its own thread. With the process executor it must be picklable. Its cost
    is part of the spans.
    """

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that the worker calls instead of `call` (the result of the stage's `open`), or `call` itself."""
        ...


@runtime_checkable
class Correspondent(Protocol):
    """An instrument that also learns what its copies see in child processes (`executor = "process"`).

    There no job is at hand. So each request carries what the copy has to know of its items, and each answer what the copy
    noted: plain values and arrays, which go the way of the items' own. The pickled instrument has the methods of
    `Correspondence`. None of them may raise.
    """

    def brief(self, items: Sequence[Worked]) -> Any:
        """Return what the copy has to know of the items that it is about to see."""
        ...

    def learn(self, stages: Sequence[str], items: Sequence[Returned], notes: Any) -> None:
        """Take what a copy noted of items that have been through these stages, and have their values or errors now.

        `notes` is None if the process died with the items in its hands.
        """
        ...


@runtime_checkable
class Correspondence(Protocol):
    """The copy of a `Correspondent` in a child process."""

    def begin(self, items: Sequence[Worked], brief: Any) -> None:
        """Take note of the items that come next, in the order of the brief."""
        ...

    def report(self) -> Any:
        """Return what was noted since `begin`, and forget it."""
        ...

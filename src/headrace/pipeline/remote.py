"""The process executor: a group that runs in a child process of its own, supervised.

How this works: each worker thread of the station owns one child, started by `spawn` (a fork of a process with threads may
hang). It writes a request (values in shared memory), waits for the answer without holding the GIL, and copies the results
out. Each side watches for the end of the other: a dead parent ends the child, a dead child is noticed at once, blamed on the
items in its hands and replaced. One that ends while it starts, as where memory is short, is started some more times. With
several items in hand they are tried again one by one, so that the culprit stands alone. This is the only place where a time
limit can be enforced: the child is killed. The standard pools do none of this: after one killed child `ProcessPoolExecutor`
is unusable and `multiprocessing.Pool` hangs.

Who ends a child: the worker's thread, which alone talks to it, when it leaves (`close`). Any other thread may only `kill`
it; the worker's thread then notices, and starts no other. A child whose parent was killed ends by itself, also in the midst
of an item.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pickle
import random
import signal
import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.base import errors
from headrace.base.child_setup import Setup, list_setups
from headrace.base.clock import SystemClock
from headrace.base.error_origin import Origin, describe, find_origin
from headrace.base.errors import (
    HeadraceError,
    ItemError,
    SettingsError,
    Shortage,
    StageFailed,
    TimeLimitExceeded,
    WorkerDied,
    as_item_error,
)
from headrace.base.metering import Metering
from headrace.base.policies.batching import ReleaseReason
from headrace.base.policies.restart import RestartPolicy, Restarts
from headrace.base.records import Job
from headrace.base.signals import ignore_signals, start_sheltered
from headrace.pipeline.child_line import ChildLine, watch_for_end
from headrace.pipeline.correspondence import Copies, Letters
from headrace.pipeline.garbage import GrowthWatch, calm_garbage_collector
from headrace.pipeline.group import Group, new_batch_id
from headrace.pipeline.item import Item, StageTiming
from headrace.pipeline.opening import GroupSpec, make_opening_error, open_group
from headrace.pipeline.shared_values import Arena, new_prefix, pack, sweep, unpack
from headrace.pipeline.sizes import measure
from headrace.pipeline.thread_budget import limit_memory
from headrace.pipeline.warm_up import CostCurve
from headrace.stages.placement import Placement

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

#: A child must open its stages (import libraries, load the model) within this time.
_START_SECONDS = 120.0
_STOP_SECONDS = 2.0
#: In the place of a child that died, so many others are started if each ends while it starts.
_MOST_STARTS = 5
_now_ns = SystemClock.now_ns
#: What a child says before each call of a warm-up, followed by the size of the batch: each has the time limit of its items. No
#: answer begins like this: those are arrays.
_CALLING = b"calling "


class _Request(msgspec.Struct, array_like=True):
    values: bytes
    arena: str
    reason: str | None
    warm_up: bool
    metered: bool
    placements: list[Placement | None]
    deadlines: list[int | None]
    """Of the items' jobs, ns of the clock that all processes of a host share: waits in the child end with them."""
    briefs: list[Any]
    """Of instruments, see `correspondence`; empty at warm-up, of which nothing is noted."""


class _Failure(msgspec.Struct, array_like=True):
    kind: str
    reason: str
    stage: str | None
    origin: Origin | None
    retry_after_seconds: float
    patience_seconds: float


class _NotStarted(msgspec.Struct, array_like=True):
    reason: str
    origin: Origin | None = None


class _Answer(msgspec.Struct, array_like=True):
    values: bytes
    """Of the items, and behind them what the copies of instruments noted."""
    arena: str
    timings: list[list[StageTiming]]
    failures: list[_Failure | None]
    counts: dict[str, int]
    curve: CostCurve | None
    variants: list[dict[str, Any]]
    placements: list[Placement | None]


# Built before threads start: where two decode the first message of a type at once, msgspec compiles it twice and crashes.
_requests, _answers = msgspec.msgpack.Decoder(_Request), msgspec.msgpack.Decoder(_Answer)
_not_started = msgspec.msgpack.Decoder(_NotStarted)


class RemoteGroup:
    """The parent's side of one child; has the methods of `Group`.

    Args:
        spec: What the child opens; must be picklable, because a spawned process starts from a pickle of ours.
        time_limit_seconds: Longest service of one item; None for none.
        counts: Where the child's counters are added.
        variants: Where the models that the child opened are noted.
        metering: Whether the child is to read what each passage costs; None: not.
    """

    def __init__(
        self,
        spec: GroupSpec,
        time_limit_seconds: float | None,
        counts: dict[str, int],
        variants: list[dict[str, Any]],
        metering: Metering | None = None,
    ) -> None:
        self._spec = spec
        self._metering = metering or Metering()
        self._limit = time_limit_seconds
        own = spec.plan.stages[spec.stages[0].name].time_limit_seconds
        self._limit_name = "run.stall_seconds" if own is None else "time_limit_seconds"
        self._counts = counts
        self._variants = variants
        self._letters = Letters(spec.instruments, spec.stages)
        self.process_id = os.getpid()
        self._killed = threading.Event()
        self._restarts = Restarts(RestartPolicy())
        self._started_ns = 0
        self._has_answered = False
        self._answers: Arena | None = None
        self._answers_prefix = ""
        self._process: BaseProcess | None = None
        self._line: ChildLine | None = None
        self._arena = Arena()
        _alive.add(self)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def run(self, items: Sequence[Item], reason: ReleaseReason | None) -> None:
        """Run items in the child; see `Group.run`."""
        started = _now_ns()
        answer = self._pack_and_ask(items, reason)
        error = self._accept(items, answer) if isinstance(answer, _Answer) else answer
        if error is None:
            return
        if len(items) == 1:
            (item,) = items
            item.error = error.locate(self._spec.stages[0].name, item.id)
            item.timings.append(StageTiming(0, started, _now_ns(), item.num_bytes, 0, None, "failed"))
            self._letters.learn(items, None)
        else:
            for item in items:
                self.run([item], ReleaseReason.SPLIT)

    def _pack_and_ask(self, items: Sequence[Item], reason: ReleaseReason | None) -> _Answer | ItemError:
        try:
            values = pack([item.value for item in items], self._arena)
        except (StageFailed, Shortage) as error:
            return error
        except MemoryError as error:
            return as_item_error(error)
        limit = None if self._limit is None else self._limit * len(items)
        metered = self._metering.on and any(item.weight for item in items)
        return self._ask(
            _Request(
                *(values, self._arena.name, reason, False, metered),
                placements=[item.placement for item in items],
                deadlines=[item.job.deadline_ns for item in items],
                briefs=self._letters.brief(items),
            ),
            limit,
        )

    def warm_up(self, item: Item) -> CostCurve | None:
        """Warm the child up; see `Group.warm_up`."""
        device = next((stage.name for stage in self._spec.stages if stage.kind == "device"), None)
        if device is None:
            return None
        try:
            values = pack([item.value], self._arena)
        except (StageFailed, Shortage, MemoryError):
            return CostCurve(device)  # the item's own turn will tell
        answer = self._ask(
            _Request(values, self._arena.name, None, True, False, [item.placement], [None], []), self._limit
        )
        if isinstance(answer, ItemError):
            return CostCurve(device, not_measured=f"the stage's process was lost during warm-up: {answer}")
        curve = answer.curve or CostCurve(device)
        curve.cpu_seconds = 0.0  # the child's, which no thread here has used
        return curve

    def close(self) -> None:
        """Let the child end, and end it if it does not. Only from the thread that runs items."""
        self._killed.set()  # no other is started
        self._stop()
        self._arena.close()

    def kill(self) -> None:
        """End the child at once, from any thread; the thread that waits for its answer gets WorkerDied."""
        self._killed.set()
        process = self._process
        if process is not None:
            process.kill()

    def _ask(self, request: _Request, limit: float | None) -> _Answer | ItemError:
        line, process = self._line, self._process
        if line is None or process is None:
            return WorkerDied("the run was stopped")
        try:
            message = line.receive(limit) if line.send(msgspec.msgpack.encode(request)) else None
            while message is not None and message.startswith(_CALLING):  # a warm-up that goes on
                limit = None if self._limit is None else self._limit * int(message.removeprefix(_CALLING))
                message = line.receive(limit)
            if message is None:
                process.kill()
                self._restart()
                return TimeLimitExceeded(
                    f"took longer than {self._limit_name} = {self._limit:g} and was stopped; raise the limit or look at "
                    "the item"
                )
            answer = _answers.decode(message)
            self._has_answered = True
            return answer
        except (EOFError, OSError):
            line.wait_for_end(_STOP_SECONDS)
            died = _describe_end(process.exitcode)
            self._restart()
            return WorkerDied(
                f"the process working on it died ({died}); a crash in native code or too little memory (the machine's, or "
                "memory_limit_bytes) are the usual causes: look at the item"
            )

    def _accept(self, items: Sequence[Item], answer: _Answer) -> ItemError | None:
        """Give items what came of them; return why that cannot be had here, after which they are as they were."""
        try:
            values = self._unpack(answer)
        except (OSError, MemoryError) as error:  # no file handle or no memory for it
            return as_item_error(error)
        values, notes = values[: len(items)], values[len(items) :]
        # A child counts from one again when it is replaced: what is told is counted here.
        numbers: defaultdict[int, int] = defaultdict(new_batch_id)
        for rows in answer.timings:
            for row in rows:
                if row.batch_id is not None:
                    row.batch_id = numbers[row.batch_id]
        for item, placement in zip(items, answer.placements, strict=True):
            item.placement = placement
        for item, value, rows, failure in zip(items, values, answer.timings, answer.failures, strict=True):
            item.timings.extend(rows)
            if failure is not None:
                item.error = self._of_item(_revive(failure)).locate(self._spec.stages[0].name, item.id)
            else:
                item.value = value
                item.num_bytes, item.shape_key = measure(value)
        self._letters.learn(items, notes)
        for name, number in answer.counts.items():
            self._counts[name] = self._counts.get(name, 0) + number
        for variant in answer.variants:
            if variant not in self._variants:
                self._variants.append(variant)
        return None

    def _unpack(self, answer: _Answer) -> list[Any]:
        if self._answers is None or self._answers.name != answer.arena:
            attached = Arena(answer.arena)
            if self._answers is not None:
                self._answers.close()
            self._answers = attached
        values: list[Any] = unpack(answer.values, self._answers, copy=True)
        return values

    def _of_item(self, error: ItemError) -> ItemError:
        """Return an error of the child: memory that it may not have by the Plan's limit is no shortage of the machine."""
        code, _, what = error.reason.partition(": ")
        if code != "shortage.memory" or self._spec.plan.stages[self._spec.stages[0].name].memory_limit_bytes is None:
            return error
        failure = StageFailed(what)
        failure.stage, failure.origin = error.stage, error.origin
        return failure

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._started_ns, self._has_answered = _now_ns(), False
        ours, theirs = context.Pipe()
        self._answers_prefix = new_prefix()
        process = context.Process(
            target=child_main,
            args=(theirs, self._spec, self._answers_prefix, list_setups()),
            name=f"headrace-{self._spec.stages[0].name}-{self._spec.worker}",
            daemon=True,
        )
        try:
            start_sheltered(process)
            self._process = process
            self._line = ChildLine(ours, process, self._limit)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise SettingsError(
                f"stage {self._spec.stages[0].name} cannot be sent to another process: {error}; define its class or "
                "function at the top of a module that can be imported, or use executor = 'thread'"
            ) from None
        finally:
            theirs.close()
            if self._line is None:
                ours.close()
        if self._killed.is_set():
            process.kill()
        self._await_start()
        # Told when its interpreter is up: whoever looks at it before would find another memory than it will have.
        self.process_id = process.pid or 0

    def _await_start(self) -> None:
        if self._line is None or self._process is None:
            raise RuntimeError("not started")
        try:
            message = self._line.receive(_START_SECONDS) or b""
        except (EOFError, OSError):
            message = b""
        if message == b"ready":
            return
        if not self._killed.is_set():
            self._line.wait_for_end(_STOP_SECONDS)  # one that ends by itself is to say how, not that it was killed here
        self._process.kill()
        self._process.join()
        if self._killed.is_set():
            return  # nothing is to start any more
        end = _describe_end(self._process.exitcode)
        guard = 'a script that runs a pipeline itself does so below `if __name__ == "__main__":`, for its processes import it'
        why = _NotStarted(f"it died ({end}); what it wrote to stderr says more; {guard}")
        if message:
            why = _not_started.decode(message)
        failure = HeadraceError(f"the process for stage {self._spec.stages[0].name} could not start: {why.reason}")
        failure.origin = why.origin
        raise failure

    def _restart(self) -> None:
        """Start a child in the place of one that died.

        Raises:
            HeadraceError: If none of them can start, or one takes too long over it.
        """
        began, failure = _now_ns(), None
        for _ in range(_MOST_STARTS):
            self._stop()
            if not self._killed.is_set():
                self._counts["worker_restarts"] = self._counts.get("worker_restarts", 0) + 1
                # One that dies of whatever it is given would otherwise cost a start, half a second of CPU, for each.
                lived = (_now_ns() - self._started_ns) / 1e9
                self._killed.wait(self._restarts.pause(0, lived, self._has_answered, random.random()))
            if self._killed.is_set():
                return
            try:
                self._start()
                return
            except (HeadraceError, OSError, MemoryError) as error:
                failure = make_opening_error(self._spec.stages[0].name, error)
                if _now_ns() - began > _START_SECONDS * 1e9:
                    break
        if failure is not None:
            raise failure

    def _stop(self) -> None:
        line, process = self._line, self._process
        self._line = self._process = None
        if line is not None:
            line.hang_up()
        if process is not None:
            if line is not None:
                line.wait_for_end(_STOP_SECONDS)
            if process.is_alive():
                process.kill()
            process.join()
        if line is not None:
            line.close()
        if self._answers is not None:
            self._answers.close()
            self._answers = None
        if self._answers_prefix:
            sweep(self._answers_prefix)


#: What is left of these at exit is killed: multiprocessing would ask with SIGTERM, which children leave to the parent, and
#: then wait for them for ever.
_alive: weakref.WeakSet[RemoteGroup] = weakref.WeakSet()


@atexit.register
def _kill_all() -> None:
    for group in list(_alive):
        group.kill()


def _describe_end(code: int | None) -> str:
    try:
        return signal.Signals(-(code or 0)).name
    except ValueError:
        return f"exit code {code}"


def _revive(failure: _Failure) -> ItemError:
    cls = getattr(errors, failure.kind, None)
    known = isinstance(cls, type) and issubclass(cls, ItemError)
    error: ItemError = cls(failure.reason) if known and cls is not None else StageFailed(failure.reason)
    error.stage, error.origin = failure.stage, failure.origin
    if isinstance(error, errors.ItemFailed):
        error.retry_after_seconds = failure.retry_after_seconds
        error.patience_seconds = failure.patience_seconds
    return error


def child_main(connection: Connection, spec: GroupSpec, answers_prefix: str, setups: Sequence[Setup] = ()) -> None:
    """Serve requests until the parent is gone. Runs in the child."""
    ignore_signals(signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
    for setup in setups:
        setup()
    results: Arena | None = None
    try:
        results = Arena(prefix=answers_prefix)
        threading.Thread(target=_leave_with_parent, args=(results,), name="leave-with-parent", daemon=True).start()
        metering = Metering()
        opened = open_group(spec, SystemClock(), metering)
        memory = spec.plan.stages[spec.stages[0].name].memory_limit_bytes
        if memory is not None:
            limit_memory(memory)
    except BaseException as error:
        origin = find_origin(error)
        connection.send_bytes(msgspec.msgpack.encode(_NotStarted(describe(error, origin)[:4000], origin)))
        if results is not None:
            results.close()
        return
    connection.send_bytes(b"ready")
    copies = Copies(spec.instruments)
    child = _Child(opened.group, opened.counts, opened.variants, results, metering, connection, copies)
    growth = GrowthWatch()
    with calm_garbage_collector(), contextlib.suppress(EOFError, OSError):
        while True:
            growth.look()
            connection.send_bytes(child.answer(_requests.decode(connection.recv_bytes())))
    child.close()


def _leave_with_parent(results: Arena) -> None:
    # The main thread hears of the parent's end between items; one that hangs in an item never would, nor would any while
    # something that the parent forked keeps the parent's side of the line open.
    parent = multiprocessing.parent_process()
    if parent is not None:
        end = watch_for_end(parent.pid or 0)
        if end is None or os.getppid() == parent.pid:  # else it had died before, and its number may be another's
            wait([parent.sentinel] if end is None else [parent.sentinel, end])
        results.close()
        os._exit(1)


@dataclass
class _Child:
    group: Group
    counts: dict[str, int]
    variants: list[dict[str, Any]]
    results: Arena
    metering: Metering
    connection: Connection
    copies: Copies
    requests: Arena | None = None

    def answer(self, request: _Request) -> bytes:
        """Return the encoded answer to one request."""
        if self.requests is None or self.requests.name != request.arena:
            if self.requests is not None:
                self.requests.close()
            self.requests = Arena(request.arena)
        values = unpack(request.values, self.requests, copy=False)
        items = [
            Item(Job("", value, deadline_ns=deadline), value, ())
            for value, deadline in zip(values, request.deadlines, strict=True)
        ]
        for item, placement in zip(items, request.placements, strict=True):
            item.placement = placement
        curve = None
        self.metering.on = request.metered
        if request.warm_up:
            curve = self.group.warm_up(items[0], lambda size: self.connection.send_bytes(b"%s%d" % (_CALLING, size)))
        else:
            self.copies.begin(items, request.briefs)
            give_results = self.group.run(items, ReleaseReason(request.reason) if request.reason else None)
            if give_results is not None:
                give_results()
        return self._encode(items, curve, [] if request.warm_up else self.copies.report())

    def close(self) -> None:
        """Give the shared memory back."""
        self.results.close()
        if self.requests is not None:
            self.requests.close()

    def _encode(self, items: list[Item], curve: CostCurve | None, notes: list[Any]) -> bytes:
        packed = self._pack(items, notes)
        answer = _Answer(
            packed,
            self.results.name,
            [item.timings for item in items],
            [None if item.error is None else _failure(item.error) for item in items],
            dict(self.counts),
            curve,
            list(self.variants),
            [item.placement for item in items],
        )
        self.counts.clear()
        return msgspec.msgpack.encode(answer)

    def _pack(self, items: list[Item], notes: list[Any]) -> bytes:
        try:
            return pack([*(None if item.error else item.value for item in items), *notes], self.results)
        except (StageFailed, Shortage):
            # Find out whose value it is; the others travel.
            for item in items:
                try:
                    pack(None if item.error else item.value, self.results)
                except (StageFailed, Shortage) as error:
                    item.error = error
            return pack([None if item.error else item.value for item in items] + [None] * len(notes), self.results)


def _failure(error: ItemError) -> _Failure:
    # A user's own subclass means what the nearest class of ours means: to try again or not.
    kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    failed = error if isinstance(error, errors.ItemFailed) else errors.ItemFailed("")
    return _Failure(kind, error.reason, error.stage, error.origin, failed.retry_after_seconds, failed.patience_seconds)

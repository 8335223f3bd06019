"""The process executor: a group that runs in a child process of its own, supervised.

How this works: each worker thread of the station owns one child, started by `spawn` (a fork of a process with threads may
hang). It writes a request (values in shared memory), waits for the answer without holding the GIL, and copies the results
out. The child's pipe closes when either side dies: a dead parent ends the child, a dead child is noticed at once, blamed on
the items in its hands and replaced. With several items in hand they are tried again one by one, so that the culprit stands
alone. This is the only place where a time limit can be enforced: the child is killed. The standard pools do none of this:
after one killed child `ProcessPoolExecutor` is unusable and `multiprocessing.Pool` hangs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.base import errors
from headrace.base.clock import SystemClock
from headrace.base.errors import HeadraceError, ItemError, SettingsError, StageFailed, TimeLimitExceeded, WorkerDied
from headrace.base.policies.batching import ReleaseReason
from headrace.base.records import Job
from headrace.pipeline.group import CostCurve, Group
from headrace.pipeline.item import Item, Mark, measure
from headrace.pipeline.opening import GroupSpec, open_group
from headrace.pipeline.shared_values import Arena, pack, unpack

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

#: A child must open its stages (import libraries, load the model) within this time.
_START_SECONDS = 120.0
_STOP_SECONDS = 2.0


class _Request(msgspec.Struct, array_like=True):
    values: bytes
    arena: str
    reason: str | None
    warm_up: bool


class _MarkRow(msgspec.Struct, array_like=True):
    stage: int
    started: int
    ended: int
    bytes_in: int
    bytes_out: int
    shape_key: str | None
    outcome: str
    batch_id: int | None
    batch_size: int | None
    reason: str | None


class _Failure(msgspec.Struct, array_like=True):
    kind: str
    reason: str
    stage: str | None
    detail: str


class _Answer(msgspec.Struct, array_like=True):
    values: bytes
    arena: str
    marks: list[list[_MarkRow]]
    failures: list[_Failure | None]
    counts: dict[str, int]
    curve: dict[int, float] | None
    variants: list[dict[str, Any]]


class RemoteGroup:
    """The parent's side of one child; has the methods of `Group`.

    Args:
        spec: What the child opens; must be picklable, because a spawned process starts from a pickle of ours.
        time_limit_seconds: Longest service of one item; None for none.
        counts: Where the child's counters are added.
        variants: Where the models that the child opened are noted.
    """

    def __init__(
        self,
        spec: GroupSpec,
        time_limit_seconds: float | None,
        counts: dict[str, int],
        variants: list[dict[str, Any]],
    ) -> None:
        self._spec = spec
        self._limit = time_limit_seconds
        self._counts = counts
        self._variants = variants
        self._arena = Arena()
        self._answers: Arena | None = None
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._start()

    @property
    def process_id(self) -> int:
        """The child's."""
        return (self._process.pid if self._process else None) or os.getpid()

    def run(self, items: Sequence[Item], reason: ReleaseReason | None) -> None:
        """Run items in the child; see `Group.run`."""
        try:
            values = pack([item.value for item in items], self._arena)
        except StageFailed as error:
            for item in items:
                item.error = self._located(error, item)
            return
        request = _Request(values, self._arena.name, reason, False)
        limit = None if self._limit is None else self._limit * len(items)
        answer = self._ask(request, limit)
        if isinstance(answer, _Answer):
            self._accept(items, answer)
        elif len(items) == 1:
            items[0].error = self._located(answer, items[0])
        else:
            for item in items:
                self.run([item], ReleaseReason.SPLIT)

    def warm_up(self, item: Item) -> CostCurve | None:
        """Warm the child up; see `Group.warm_up`."""
        device = next((stage.name for stage in self._spec.stages if stage.kind == "device"), None)
        if device is None:
            return None
        request = _Request(pack([item.value], self._arena), self._arena.name, None, True)
        answer = self._ask(request, None)
        if isinstance(answer, ItemError):
            return CostCurve(device)
        return CostCurve(device, dict(answer.curve or {}))

    def close(self) -> None:
        """Let the child end, and end it if it does not."""
        self._stop()
        self._arena.close()
        if self._answers:
            self._answers.close()

    def kill(self) -> None:
        """End the child at once; the thread that waits for its answer gets WorkerDied."""
        if self._process is not None:
            self._process.kill()

    def _located(self, error: ItemError, item: Item) -> ItemError:
        return error.located(self._spec.stages[0].name, item.id)

    def _ask(self, request: _Request, limit: float | None) -> _Answer | ItemError:
        connection, process = self._connection, self._process
        if connection is None or process is None:
            raise RuntimeError("the child was closed")
        try:
            connection.send_bytes(msgspec.msgpack.encode(request))
            if not connection.poll(limit):
                process.kill()
                self._restart()
                return TimeLimitExceeded(
                    f"took longer than time_limit_seconds = {self._limit:g} and was stopped; raise the limit or look at "
                    "the item"
                )
            return msgspec.msgpack.decode(connection.recv_bytes(), type=_Answer)
        except (EOFError, OSError):
            process.join(_STOP_SECONDS)
            code = process.exitcode
            self._restart()
            cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            return WorkerDied(
                f"the process working on it died ({cause}); a crash in native code or too little memory are the usual "
                "causes: look at the item"
            )

    def _accept(self, items: Sequence[Item], answer: _Answer) -> None:
        if self._answers is None or self._answers.name != answer.arena:
            if self._answers is not None:
                self._answers.close()
            self._answers = Arena(answer.arena)
        values = unpack(answer.values, self._answers, copy=True)
        for item, value, rows, failure in zip(items, values, answer.marks, answer.failures, strict=True):
            item.marks.extend(Mark(*msgspec.structs.astuple(row)) for row in rows)
            if failure is not None:
                item.error = self._located(_revived(failure), item)
            else:
                item.value = value
                item.num_bytes, item.shape_key = measure(value)
        for name, number in answer.counts.items():
            self._counts[name] = self._counts.get(name, 0) + number
        for variant in answer.variants:
            if variant not in self._variants:
                self._variants.append(variant)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        name = f"headrace-{self._spec.stages[0].name}-{self._spec.worker}"
        self._process = context.Process(target=child_main, args=(theirs, self._spec), name=name, daemon=True)
        try:
            self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise SettingsError(
                f"stage {self._spec.stages[0].name} cannot be sent to another process: {error}; define its class or "
                "function at the top of a module that can be imported, or use executor = 'thread'"
            ) from None
        theirs.close()
        self._await_start()

    def _await_start(self) -> None:
        if self._connection is None or self._process is None:
            raise RuntimeError("not started")
        try:
            message = self._connection.recv_bytes() if self._connection.poll(_START_SECONDS) else b""
        except (EOFError, OSError):
            message = b""
        if message == b"ready":
            return
        self._process.kill()
        self._process.join()
        reason = message.decode() if message else f"it ended with exit code {self._process.exitcode}"
        raise HeadraceError(f"the process for stage {self._spec.stages[0].name} could not start: {reason}")

    def _restart(self) -> None:
        self._counts["worker_restarts"] = self._counts.get("worker_restarts", 0) + 1
        self._stop()
        self._start()

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.join(_STOP_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._connection = self._process = None


def _revived(failure: _Failure) -> ItemError:
    cls = getattr(errors, failure.kind, None)
    known = isinstance(cls, type) and issubclass(cls, ItemError)
    error: ItemError = cls(failure.reason) if known and cls is not None else StageFailed(failure.reason)
    error.stage = failure.stage
    if failure.detail:
        error.add_note(failure.detail)
    return error


def child_main(connection: Connection, spec: GroupSpec) -> None:
    """Serve requests until the parent is gone. Runs in the child."""
    # Ctrl-C goes to the whole foreground group; the parent decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        opened = open_group(spec, SystemClock())
    except BaseException as error:
        connection.send_bytes(f"{type(error).__name__}: {error}"[:4000].encode())
        return
    connection.send_bytes(b"ready")
    child = _Child(opened.group, opened.counts, opened.variants)
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send_bytes(child.answer(msgspec.msgpack.decode(connection.recv_bytes(), type=_Request)))
    child.close()


@dataclass
class _Child:
    group: Group
    counts: dict[str, int]
    variants: list[dict[str, Any]]
    requests: Arena | None = None
    results: Arena = dataclasses.field(default_factory=Arena)

    def answer(self, request: _Request) -> bytes:
        """Return the encoded answer to one request."""
        if self.requests is None or self.requests.name != request.arena:
            if self.requests is not None:
                self.requests.close()
            self.requests = Arena(request.arena)
        values = unpack(request.values, self.requests, copy=False)
        items = [Item(Job("", value), value, ()) for value in values]
        curve = None
        if request.warm_up:
            measured = self.group.warm_up(items[0])
            curve = measured.seconds if measured else None
        else:
            self.group.run(items, ReleaseReason(request.reason) if request.reason else None)
        return self._encode(items, curve)

    def close(self) -> None:
        """Give the shared memory back."""
        self.results.close()
        if self.requests is not None:
            self.requests.close()

    def _encode(self, items: list[Item], curve: dict[int, float] | None) -> bytes:
        packed = self._pack(items)
        answer = _Answer(
            packed,
            self.results.name,
            [[_row(mark) for mark in item.marks] for item in items],
            [None if item.error is None else _failure(item.error) for item in items],
            dict(self.counts),
            curve,
            list(self.variants),
        )
        self.counts.clear()
        return msgspec.msgpack.encode(answer)

    def _pack(self, items: list[Item]) -> bytes:
        try:
            return pack([None if item.error else item.value for item in items], self.results)
        except StageFailed:
            # Find out whose value it is; the others travel.
            for item in items:
                try:
                    pack(None if item.error else item.value, self.results)
                except StageFailed as error:
                    item.error = error
            return pack([None if item.error else item.value for item in items], self.results)


def _row(mark: Mark) -> _MarkRow:
    return _MarkRow(
        mark.stage,
        mark.started,
        mark.ended,
        mark.bytes_in,
        mark.bytes_out,
        mark.shape_key,
        mark.outcome,
        mark.batch_id,
        mark.batch_size,
        mark.reason,
    )


def _failure(error: ItemError) -> _Failure:
    cause = error.__cause__
    detail = "".join(traceback.format_exception(cause))[-4000:] if cause else ""
    return _Failure(type(error).__name__, error.reason, error.stage, detail)

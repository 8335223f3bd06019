"""Inline, in threads or in processes: the answers are the same, and a bad item hurts nobody else."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.base.errors import HeadraceError, ItemRejected, SettingsError, StageFailed
from headrace.base.plan import Plan
from headrace.base.records import Job, OutcomeKind
from headrace.delivery.collect import Collect
from headrace.pipeline import remote
from headrace.pipeline.child_line import ChildLine
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import run as execute
from headrace.pipeline.shared_values import Arena, pack, unpack
from headrace.stages.fetch import FetchStage
from headrace.stages.stage import FunctionStage, Stage, StageContext
from headrace.testing import FaultyStage, ListSource

Run = Callable[..., Any]
IN_PROCESS = {"executor": "process", "workers": 1}


def arenas() -> set[str]:
    """Return the pieces of shared memory that runs of this process made."""
    return {path.name for path in Path("/dev/shm").glob(f"headrace-{os.getpid()}-*")}


def children() -> set[int]:
    """Return this process's children, except for multiprocessing's tracker."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread or a child may end while it is looked at
            for child in (task / "children").read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.add(int(child))
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """After each test there are no more children and no more shared memory than before."""
    before = arenas(), children()
    yield
    assert (arenas(), children()) == before


class NotAPhoto(ItemRejected):
    """A user's own rejection."""


class Refuses(Stage):
    """Raises an error of the user's own class."""

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return a refusal."""
        return refuse


def refuse(value: Any) -> Any:
    """Refuse a value."""
    raise NotAPhoto("a drawing")


@pytest.fixture
def _importable(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    # A child imports what it is sent by name, from the parent's path.
    monkeypatch.syspath_prepend(str(pytestconfig.rootpath))


# --- same answers

ARRAYS = [np.full(4, float(n)) for n in range(9)] + [np.arange(5.0), np.ones((2, 2), np.float32), np.arange(5.0) - 9]
OBJECTS = [
    np.arange(6.0), "text", 7, b"\x00" * 3000, [1, [2.5, None]], {"k": np.arange(3, dtype=np.uint8)}, "!raise", "!reject",
    np.arange(4000, dtype=np.int32), True, (1, ("a", np.float32(2.5))), np.zeros((0, 2)), "", np.datetime64("2026-01-01"),
]  # fmt: skip


def families() -> list[tuple[list[Any], list[Stage]]]:
    """Return payloads with stages for them that can be sent anywhere."""
    return [
        (ARRAYS, [
            FunctionStage("first", np.negative),
            FunctionStage("second", np.cbrt),
            FunctionStage("device", np.abs, kind="device"),
            FunctionStage("last", np.sum),
        ]),
        (OBJECTS, [FaultyStage("first"), FaultyStage("second"), FaultyStage("device", kind="device"),
                   FaultyStage("last")]),
    ]  # fmt: skip


def answers(payloads: list[Any], stages: list[Stage], plan: dict[str, Any]) -> dict[str, str]:
    """Return how each job ended, and its result with its type."""
    source, delivery = ListSource(payloads), Collect()
    execute(Pipeline(source, stages=stages, delivery=delivery), Plan.from_table(plan))
    ends = {id_: str(outcomes[0].kind) for id_, outcomes in source.outcomes.items()}
    return ends | {id_: f"{type(value).__name__} {value!r}" for id_, value in delivery.results}


plans = st.fixed_dictionaries(
    {
        "first": st.sampled_from(["thread", "inline"]),
        "second": st.sampled_from(["thread", "inline", "process"]),
        "device": st.sampled_from(["thread", "inline", "process"]),
        "last": st.sampled_from(["thread", "inline"]),
        "deliver": st.sampled_from(["thread", "inline"]),
    }
)


@pytest.mark.timeout(100)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(plans, st.integers(1, 5), st.integers(1, 3), st.booleans(), st.integers(0, 1))
def test_same_answers_everywhere(
    executors: dict[str, str], batch: int, queue_items: int, warm_up: bool, family: int
) -> None:
    """Whatever runs inline, in threads or in a process, and however small the queues, the answers are the same."""
    payloads, stages = families()[family]
    workers = {"thread": 2, "process": 1, "inline": 1}
    plan: dict[str, Any] = {
        name: {"executor": executor, "workers": workers[executor], "queue_items": queue_items}
        for name, executor in executors.items()
    }
    if "process" in executors.values():
        plan["deliver"]["executor"] = "thread"  # deliver cannot run in a child
    plan["device"]["batch"] = batch
    wanted = answers(payloads, stages, {})
    assert len(wanted) == len(payloads)
    assert answers(payloads, stages, {"stages": plan, "run": {"warm_up": warm_up}}) == wanted


# --- one bad item


def test_killed_child_fails_its_item_alone(run: Run) -> None:
    """A child that dies in a batch fails the item that kills it, and the rest of the batch succeeds."""
    payloads = ["x"] * 5 + ["!kill"] + ["y"] * 4 + ["!exit"]
    ran = run(
        [FaultyStage("p", kind="device")],
        payloads,
        {"stages": {"p": {**IN_PROCESS, "batch": 8}}, "run": {"warm_up": False}},
    )
    assert ran.ids(OutcomeKind.DEAD_LETTERED) == {"5", "10"}
    assert ran.reason("5").startswith("p: item 5: the process working on it died (SIGKILL)")
    assert "exit code 3" in ran.reason("10")
    assert ran.result.counters.notes["worker_restarts"] >= 2


def leave_a_helper_and_die(value: Any) -> Any:
    """Fork a helper, which has all that its parent has open, and die, where the value says so."""
    if value != "!die":
        return value
    helper = os.fork()
    if not helper:
        time.sleep(60)
        os._exit(0)
    Path(os.environ["HELPERS"]).write_text(str(helper))
    return os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("_importable")
def test_a_death_is_noticed_beside_what_the_child_forked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper that the child forked keeps the child's side of the line open; that it has died is noticed all the same."""
    helpers = tmp_path / "helpers"
    monkeypatch.setenv("HELPERS", str(helpers))
    try:
        ran = run([FunctionStage("only", leave_a_helper_and_die)], ["a", "!die", "b"], {"stages": {"only": LIMITED}})
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(helpers.read_text()), signal.SIGKILL)
    assert ran.ids(OutcomeKind.DELIVERED) == {"0", "2"}
    assert "died (SIGKILL)" in ran.reason("1")


LIMITED = {**IN_PROCESS, "time_limit_seconds": 20}


class DiesOpening(Stage):
    """Dies by SIGKILL in some of its openings, as by the kernel where memory is short.

    Args:
        folder: Where it counts.
        which: The openings, from 0.
    """

    def __init__(self, folder: Path, which: range) -> None:
        super().__init__("only")
        self.folder = folder
        self.which = which

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return what dies of `!die`, unless it is time to die."""
        number = len(list(self.folder.iterdir()))
        (self.folder / str(number)).touch()
        if number in self.which:
            os.kill(os.getpid(), signal.SIGKILL)
        return die_if_told


def die_if_told(value: Any) -> Any:
    """Return a value, if it is not the one to die of."""
    if value == "!die":
        os.kill(os.getpid(), signal.SIGKILL)
    return value


@pytest.mark.usefixtures("_importable")
def test_a_child_that_dies_as_it_starts_is_replaced_too(run: Run, tmp_path: Path) -> None:
    """Where the one in the place of a dead child dies while it starts, another is started, and the run goes on."""
    ran = run([DiesOpening(tmp_path, range(1, 3))], ["a", "!die", "b"], {"stages": {"only": IN_PROCESS}})
    assert ran.ids(OutcomeKind.DELIVERED) == {"0", "2"}
    assert ran.result.counters.notes["worker_restarts"] == 3


@pytest.mark.usefixtures("_importable")
def test_no_child_that_can_start_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other can start, the run ends with the reason, and what was not done goes back."""
    monkeypatch.setattr(remote, "_MOST_STARTS", 2)
    source = ListSource(["a", "!die", "b"])
    pipeline = Pipeline(source, stages=[DiesOpening(tmp_path, range(1, 9))], delivery=Collect())
    with pytest.raises(HeadraceError, match=r"stage only could not start: it died \(SIGKILL\)"):
        execute(pipeline, Plan.from_table({"stages": {"only": IN_PROCESS}}))
    assert len(list(tmp_path.iterdir())) == 3
    assert not source.in_flight


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "too many open files"), MemoryError()], ids=["files", "memory"]
)
@pytest.mark.usefixtures("_importable")
def test_an_answer_that_finds_no_room_ends_its_item_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A file handle or memory that this process lacks for an answer is a shortage that the item met, and no end of the run."""
    short = [error]

    def unpack_later(*args: Any, **named: Any) -> Any:
        if short:
            raise short.pop()
        return unpack(*args, **named)

    monkeypatch.setattr(remote, "unpack", unpack_later)
    ran = run([FunctionStage("only", die_if_told)], ["a", "b"], {"stages": {"only": IN_PROCESS}})
    assert ran.ids(OutcomeKind.DELIVERED) >= {"1"}
    first = ran.source.outcomes["0"][0]
    assert first.kind != OutcomeKind.DELIVERED
    assert "shortage." in first.reason


def test_restarted_child_has_its_own_spans(run: Run) -> None:
    """After a restart spans name the new process, and the item whose process died has a span that failed."""
    ran = run([FaultyStage("p")], ["x", "!kill", "y"], {"stages": {"p": IN_PROCESS}})
    spans = {span.unit_id: span for span in ran.spans if span.stage == "p"}
    assert spans["0"].process != spans["2"].process
    assert os.getpid() not in (spans["0"].process, spans["2"].process)
    assert {id_: span.outcome for id_, span in spans.items()} == {"0": "ok", "1": "failed", "2": "ok"}


@pytest.mark.full
def test_batch_ids_stay_unique_over_restarts(run: Run) -> None:
    """Rows of one process and batch id are one batch, also when the child was replaced between batches and within one."""
    ran = run(
        [FaultyStage("p", kind="device")],
        ["x", "!kill", "y", "z"] * 3,
        {"stages": {"p": {**IN_PROCESS, "batch": 4, "max_wait_seconds": 5}}, "run": {"warm_up": False}},
    )
    sizes = Counter((span.process, span.batch_id) for span in ran.spans if span.batch_id is not None)
    told = {(s.process, s.batch_id): s.batch_size for s in ran.spans if s.batch_id is not None}
    assert len(sizes) >= 9
    assert sizes == told


@pytest.mark.real_clock
def test_time_limit_blames_one_item(run: Run) -> None:
    """An item that hangs is stopped after the limit and named; the others go on."""
    ran = run([FaultyStage("p")], ["x", "!hang", "y"], {"stages": {"p": {**IN_PROCESS, "time_limit_seconds": 0.3}}})
    assert set(ran.results) == {"0", "2"}
    assert "longer than time_limit_seconds = 0.3" in ran.reason("1")


@pytest.mark.real_clock
def test_time_limit_in_a_batch(run: Run) -> None:
    """A batch may take the limit times its size; when it hangs, the culprit alone fails."""
    ran = run(
        [FaultyStage("p", kind="device")],
        ["x", "!hang", "y"],
        {"stages": {"p": {**IN_PROCESS, "batch": 3, "max_wait_seconds": 5, "time_limit_seconds": 0.6}},
         "run": {"warm_up": False}},
    )  # fmt: skip
    assert set(ran.results) == {"0", "2"}


@pytest.mark.full
@pytest.mark.real_clock
@pytest.mark.parametrize("limit", ["time_limit_seconds", "stall_seconds"])
def test_the_first_item_has_a_limit_too(run: Run, limit: str) -> None:
    """The model is warmed up with the first item: where it hangs, it is stopped and blamed like any other."""
    stage = {**IN_PROCESS, "batch": 2, **({limit: 0.6} if limit == "time_limit_seconds" else {})}
    plan = {"stages": {"p": stage}, "run": {"stall_seconds": 0.6} if limit == "stall_seconds" else {}}
    ran = run([FaultyStage("p", kind="device")], ["!hang", "x", "y"], plan)
    assert set(ran.results) == {"1", "2"}
    assert "0.6 and was stopped" in ran.reason("0")


def test_a_slow_warm_up_is_no_hang(run: Run) -> None:
    """Each of its calls may take as long as its items may: together they may take longer."""
    plan = {"stages": {"p": {**IN_PROCESS, "batch": 4, "time_limit_seconds": 0.6}}}
    ran = run([FaultyStage("p", kind="device")], ["!sleep 0.25"], plan)
    assert set(ran.results) == {"0"}
    assert "worker_restarts" not in ran.result.counters.notes
    assert list(ran.result.cost_curves["p"]) == [1, 2, 4]


class Dated(ListSource):
    """Gives each job a deadline, so many seconds after it is given out."""

    seconds = 0.3

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return jobs that are wanted for a while."""
        jobs = super().receive(limit, wait_seconds)
        for job in jobs or []:
            job.deadline_ns = time.monotonic_ns() + int(self.seconds * 1e9)
        return jobs


def ended_by_deadline(payload: Any, stage: Stage) -> str:
    """Return why a job was rejected whose stage ran in a child, which went on living."""
    source = Dated([payload])
    plan = {"stages": {stage.name: IN_PROCESS}, "network": {"allow": ["127.0.0.1"]}}
    result = execute(Pipeline(source, stages=[stage], delivery=Collect()), Plan.from_table(plan))
    [outcome] = source.outcomes["0"]
    assert outcome.kind is OutcomeKind.REJECTED
    assert "worker_restarts" not in result.counters.notes
    return outcome.reason


def test_a_wait_in_a_child_ends_with_the_deadline() -> None:
    """A download of a server that never answers is given up when its job is no longer wanted, and the child lives on."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reason = ended_by_deadline(f"http://127.0.0.1:{silent.getsockname()[1]}/", FetchStage("fetch"))
    assert "the job's deadline passed before http://127" in reason


def test_users_code_in_a_child_goes_on_beyond_the_deadline() -> None:
    """It is not cut off, for that would cost its process; what it returns is late and goes nowhere."""
    assert "deliver: item 0: deadline.passed" in ended_by_deadline(0.5, FunctionStage("nap", time.sleep))


def test_memory_limit_blames_one_item(run: Run) -> None:
    """An item that asks for more memory than the limit fails with a MemoryError; its process lives and serves the others."""
    plan = {"stages": {"p": {**IN_PROCESS, "memory_limit_bytes": "256MB"}}}
    ran = run([FaultyStage("p")], ["x", "!memory 1e9", "!memory 1e8", "y"], plan)
    assert set(ran.results) == {"0", "2", "3"}
    assert ran.reason("1").startswith("p: item 1: MemoryError ")
    assert "worker_restarts" not in ran.result.counters.notes
    assert {span.process for span in ran.spans if span.stage == "p"} != {os.getpid()}


@pytest.mark.full
def test_without_a_limit_memory_is_the_machines(run: Run) -> None:
    """What the limit forbids is done without it, so that it is the limit that forbids it."""
    ran = run([FaultyStage("p")], ["!memory 1e9"], {"stages": {"p": IN_PROCESS}})
    assert set(ran.results) == {"0"}


def test_exceptions_bring_their_traceback() -> None:
    """An exception in a child says where in the child's code it was raised."""
    from headrace.pipeline.item import Item
    from headrace.pipeline.opening import GroupSpec
    from headrace.pipeline.remote import RemoteGroup

    stage = FaultyStage("p")
    group = RemoteGroup(GroupSpec((stage,), _resolved(stage), 0, 1, 1), None, {}, [])
    try:
        item = Item(hr.Job("7", "!raise deep"), "!raise deep", ())
        group.run([item], None)
    finally:
        group.close()
    assert str(item.error).startswith("p: item 7: ValueError: as asked: deep (")
    assert item.error is not None
    assert item.error.origin is not None
    assert "in act" in item.error.origin.traceback


def _resolved(stage: Stage) -> Plan:
    from headrace.base.plan import resolve

    return resolve(Plan.from_table({"stages": {stage.name: IN_PROCESS}}), [stage.defaults()], 1)


@pytest.mark.usefixtures("_importable")
def test_users_own_rejection_stays_one(run: Run) -> None:
    """A subclass of ItemRejected rejects in a process as it does in a thread."""
    ran = run([Refuses("p")], ["x"], {"stages": {"p": IN_PROCESS}}, source={"max_receives": 3})
    assert ran.ids(OutcomeKind.REJECTED) == {"0"}


@pytest.mark.parametrize(
    "value",
    [{1, 2}, object(), 1 << 70, np.zeros(2, dtype=[("a", int)]), {(1, 2): 3}, np.array([None])],
    ids=["set", "object", "large number", "structured array", "tuple as key", "array of objects"],
)
def test_what_cannot_travel_fails_its_item(value: Any) -> None:
    """A value that would not arrive as it was sent is refused, saying what can be sent."""
    arena = Arena()
    try:
        with pytest.raises(StageFailed, match=r"cannot travel between processes.*arrays, bytes, text"):
            pack([value], arena)
    finally:
        arena.close()


def test_one_of_a_batch_cannot_travel(run: Run) -> None:
    """In a batch the item that cannot be sent fails alone, also at warm-up and also on the way back."""
    itself: list[Any] = []
    itself.append(itself)
    ran = run(
        [FaultyStage("p", kind="device")],
        [{1, 2}, "x", itself, "y", np.broadcast_to(np.uint8(0), (1 << 40,))],
        {"stages": {"p": {**IN_PROCESS, "batch": 5}}},
    )
    assert set(ran.results) == {"1", "3"}
    assert "does not fit into shared memory" in ran.reason("4")


def test_values_larger_than_the_arena(run: Run) -> None:
    """Arrays that grow beyond the shared memory travel there and back."""
    payloads = [np.full(n, 7, np.uint8) for n in (10, 3 << 20, 100, 9 << 20, 1)] + [b"z" * (5 << 20)]
    ran = run([FaultyStage("p")], payloads, {"stages": {"p": IN_PROCESS}})
    for index, payload in enumerate(payloads):
        assert np.array_equal(ran.results[str(index)], payload)


def test_results_own_their_memory(run: Run) -> None:
    """Results of a child are not overwritten by its next answer."""
    ran = run([FaultyStage("p")], [np.full(1000, n) for n in range(20)], {"stages": {"p": IN_PROCESS}})
    assert all((ran.results[str(n)] == n).all() for n in range(20))


def test_nothing_is_pickled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data crosses without the calls of a pipe that pickle."""
    from multiprocessing.connection import Connection

    def forbidden(*_: Any) -> Any:
        raise AssertionError("pickled")

    monkeypatch.setattr(Connection, "send", forbidden)
    monkeypatch.setattr(Connection, "recv", forbidden)
    ran = run([FaultyStage("p")], [np.arange(10)], {"stages": {"p": IN_PROCESS}})
    assert ran.results["0"].tolist() == list(range(10))


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
        | st.binary(max_size=3000),
        lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(-9, 9), inner),
        max_leaves=12,
    )
)  # fmt: skip
def test_values_arrive_as_sent(value: Any) -> None:
    """Any nest of plain values comes back equal, of the same types."""
    sender = Arena()
    try:
        message = pack(value, sender)
        receiver = Arena(sender.name)
        assert repr(unpack(message, receiver, copy=True)) == repr(value)
        receiver.close()
    finally:
        sender.close()


# --- opening and ending


def test_stage_that_cannot_be_sent(run: Run) -> None:
    """A stage that cannot be pickled is told before any job is received, with what to do."""
    with pytest.raises(SettingsError, match=r"stage p cannot be sent to another process.*executor = 'thread'"):
        run([hr.stage("p", lambda x: x)], ["x"], {"stages": {"p": IN_PROCESS}})


class CannotOpen(Stage):
    """Fails to open."""

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Raise."""
        raise RuntimeError("no such weights")


@pytest.mark.usefixtures("_importable")
def test_stage_that_cannot_open_in_a_child(run: Run) -> None:
    """An error while a child opens its stages ends the run with that error."""
    with pytest.raises(HeadraceError, match="stage p could not start: RuntimeError: no such weights"):
        run([CannotOpen("p")], ["x"], {"stages": {"p": {**IN_PROCESS, "workers": 2}}})


class EndsAtOpening(Stage):
    """Ends its process while it opens, as a library does that finds no device."""

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Leave without a word."""
        os._exit(7)


@pytest.mark.usefixtures("_importable")
def test_a_child_that_ends_while_it_starts_says_how(run: Run) -> None:
    """The message has the exit code that the process chose, not the signal that cleans up behind it."""
    with pytest.raises(HeadraceError, match=r"stage p could not start: it died \(exit code 7\).*__main__"):
        run([EndsAtOpening("p")], ["x"], {"stages": {"p": IN_PROCESS}})


HANGING = """
import os, sys, threading, time
from headrace.base.plan import Plan
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import run
from headrace.testing import FaultyStage, ListSource

def tell_when_it_hangs():
    while "0" not in source.outcomes:
        time.sleep(0.01)
    helper = 0
    if "helper" in sys.argv:
        helper = os.fork()
        if not helper:
            os.close(1)
            time.sleep(60)
            os._exit(0)
    print(f"hanging {helper}", flush=True)

if __name__ == "__main__":
    source = ListSource(["x", "!hang"])
    threading.Thread(target=tell_when_it_hangs, daemon=True).start()
    plan = Plan.from_table({"stages": {"p": {"executor": "process", "workers": 1}}})
    run(Pipeline(source, stages=[FaultyStage("p")]), plan)
"""


@pytest.mark.full
@pytest.mark.parametrize("how", ["alone", "helper"])
def test_killed_parent_leaves_nothing(tmp_path: Path, how: str) -> None:
    """When the parent is killed while a child hangs, the child ends and the shared memory is removed.

    Also where something that the parent forked lives on, with the parent's side of the line.
    """
    script = tmp_path / "parent.py"
    script.write_text(HANGING)
    parent = subprocess.Popen([sys.executable, str(script), how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    with parent.stdout:
        told, helper = parent.stdout.readline().decode().split()
        assert told == "hanging"
        descendants = [
            child
            for task in Path(f"/proc/{parent.pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
        workers = {child for child in descendants if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()}
        assert list(Path("/dev/shm").glob(f"headrace-{parent.pid}-*"))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    try:
        # The tracker of the shared memory waits for the helper.
        awaited = descendants if how == "alone" else [child for child in descendants if child in workers]
        assert awaited
        _wait_until(lambda: all(_is_zombie(child) for child in awaited))
    finally:
        if how == "helper":
            os.kill(int(helper), signal.SIGKILL)
    _wait_until(lambda: not list(Path("/dev/shm").glob(f"headrace-{parent.pid}-*")))


def _wait_until(is_so: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 50
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def _is_zombie(process_id: str) -> bool:
    try:
        return ") Z " in Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return True


def test_the_environment_is_changed_before_threads_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker threads that open their stages change no variable: another thread may be starting a process right then."""
    changed: list[str] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environment = type(os.environ)
    change = environment.__setitem__

    def noted(self: Any, name: str, value: str) -> None:
        changed.append(threading.current_thread().name)
        change(self, name, value)

    monkeypatch.setattr(environment, "__setitem__", noted)
    hr.run(hr.Pipeline(ListSource([b"1"]), stages=[hr.stage("same", len)]))
    assert set(changed) == {threading.current_thread().name}
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_a_message_that_stands_still_is_given_up() -> None:
    """Neither a child that is stopped in the midst of a message, nor one that takes none, is waited for without end."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    line = ChildLine(ours, multiprocessing.current_process(), 0.1)
    with theirs, contextlib.closing(line):
        assert not line.send(b"x" * (1 << 24))
        os.write(theirs.fileno(), b"\x00\x00\x10\x00 and no more of 4,096 bytes")
        assert line.receive(60.0) is None


def test_a_line_that_cannot_be_had_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors are short, so one more is refused: those that were opened before it are given back."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr("socket.fromfd", refuse)
        with pytest.raises(OSError, match="Too many"):
            ChildLine(ours, multiprocessing.current_process(), 0.1)
        assert len(os.listdir("/proc/self/fd")) == before

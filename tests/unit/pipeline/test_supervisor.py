"""How a supervisor answers workers that misbehave at their begin and end."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

# Forks, so it runs in a process of its own; `hook` may change what the system does.
PROGRAM = """
import os, signal, sys, threading, time
from headrace.pipeline.supervisor import Supervisor
from headrace.base.worker_slot import Ended

options = {{}}
{hook}

def work(slot):
    {work}

supervisor = Supervisor({num_workers}, work, say=print, grace_seconds=1.0, leave_seconds=0.3, **options)
result = supervisor.run()
print("status", result.status, "restarts", result.restarts)
"""
STAYS = """slot.begin()
    threading.Thread(target=time.sleep, args=(1000,)).start()
    slot.finish(Ended({status}))
    return {status}
"""
ASKED_AT_THE_FORK = """
def setpgid(*_):
    os.kill(os.getppid(), signal.SIGTERM)
    until = time.monotonic() + 0.5
    while signal.SIGINT not in signal.sigpending() and time.monotonic() < until:
        time.sleep(0.01)
os.setpgid = setpgid
"""


def supervised(work: str, hook: str = "", num_workers: int = 1) -> str:
    """Run a supervisor to its end and return what was printed."""
    program = PROGRAM.format(work=work, hook=hook, num_workers=num_workers)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def test_a_worker_that_has_finished_and_stays_is_not_started_again() -> None:
    """A thread that is no daemon keeps a drained worker's process: it is killed, that is said, and its own status counts."""
    said = supervised(STAYS.format(status=0))
    assert "does not leave" in said
    assert "status 0 restarts 0" in said


def test_a_crash_in_the_clean_up_is_no_death() -> None:
    """A worker that has finished with 0 and whose process then dies of a library's clean-up is not started again."""
    said = supervised("slot.begin(); slot.finish(Ended(0)); os.kill(os.getpid(), signal.SIGSEGV)")
    assert "status 0 restarts 0" in said
    assert "died" not in said


def test_a_worker_that_is_asked_to_stop_at_its_fork_hears_it() -> None:
    """The signal that a supervisor sends before its newest worker has a handler is not lost."""
    said = supervised('print("worked", flush=True); slot.begin(); time.sleep(1000)', ASKED_AT_THE_FORK)
    assert "worked" not in said
    assert "KeyboardInterrupt" in said
    assert "restarts 0" in said


FORK_FAILS_ONCE = """
import errno
real, calls = os.fork, []
def fork():
    calls.append(1)
    if len(calls) == {failing}:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return real()
os.fork = fork
"""


FIRST_ALONE_BEGINS = """if slot.number or slot.generation > 1:
        return slot.finish(Ended(2))
    slot.begin()
    time.sleep(0.5)
    {first}
"""


@pytest.mark.parametrize(("first", "status"), [("slot.finish(Ended(0))", 0), ("os._exit(11)", 2)])
def test_a_worker_that_can_never_begin_is_not_started_again(first: str, status: int) -> None:
    """Settings that keep the second worker from beginning keep each after it: the first decides how the run ends."""
    said = supervised(FIRST_ALONE_BEGINS.format(first=first), num_workers=2)
    assert "worker 1 cannot begin (status 2; what it said stands above) and is not started again" in said
    assert f"status {status} restarts {int(status > 0)}" in said


def test_a_fork_that_fails_is_tried_again() -> None:
    """Where no process is to be had when a worker is started again, that is said, tried later, and ends nobody."""
    work = "slot.begin(); slot.finish(Ended(0)) if slot.generation > 1 else os._exit(11)"
    said = supervised(work, FORK_FAILS_ONCE.format(failing=2))
    assert "worker 0 could not be started: Resource temporarily unavailable; tried again in" in said
    assert "status 0 restarts 1" in said


def test_the_first_fork_may_fail_too() -> None:
    """It is tried again like any other, and counts as no life of the worker."""
    said = supervised(
        'print("life", slot.generation, flush=True); slot.begin(); slot.finish(Ended(0))',
        FORK_FAILS_ONCE.format(failing=1),
    )
    assert "life 1" in said
    assert "status 0 restarts 0" in said


def test_a_terminal_that_is_gone_ends_no_workers() -> None:
    """What the supervisor has to say may be refused by a closed pipe or a full disk: the workers go on."""
    hook = "import builtins\ndef print_(*a): raise BrokenPipeError\nsaid, print = print, print_"
    work = "slot.begin(); slot.finish(Ended(0)) if slot.generation > 1 else os._exit(11)"
    program = PROGRAM.replace('print("status"', 'said("status"').format(work=work, hook=hook, num_workers=1)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "status 0 restarts 1" in done.stdout, done.stderr


def test_the_first_line_waits_for_all_workers() -> None:
    """The second worker begins after the first: that it does not run yet is not the news of a short run."""
    hook = """
told = os.pipe()
options = dict(progress=lambda text: (print("progress:", text), os.write(told[1], b"both")))
"""
    said = supervised("slot.begin(); os.read(told[0], 1); slot.finish(Ended(0))", hook, num_workers=2)
    assert [line for line in said.splitlines() if line.startswith("progress:")] == [
        "progress: 2 of 2 workers run; nothing ended yet"
    ]


def test_how_far_it_is_is_said_and_noted() -> None:
    """At once and then every ten seconds of its clock: who looks on sees that workers live, and what came of the jobs."""
    hook = """
from headrace.testing import FakeClock
class Hurried(FakeClock):
    def now_ns(self):
        self.advance(1.0)
        return super().now_ns()
options = dict(
    clock=Hurried(), progress=lambda text: print("progress:", text), note=lambda so_far: print("noted:", dict(so_far.outcomes)))
"""
    work = """slot.begin()
    from headrace.base.records import OutcomeKind
    slot.table.count(OutcomeKind.REJECTED)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        time.sleep(0.01)
    slot.finish(Ended(0))
"""
    said = supervised(work, hook)
    assert "progress: 1 of 1 workers run; 1 rejected" in said
    assert "<OutcomeKind.REJECTED: 'rejected'>: 1" in said


BEGUN = """
def begun():
    print("listening", flush=True)
    os.kill(os.getpid(), signal.SIGHUP)
options = {"begun": begun, "renews": True}
"""


RESTARTED = """try:
        slot.begin()
        while slot.generation < 2:
            time.sleep(0.01)
    except KeyboardInterrupt:
        pass
    slot.finish(Ended(0))
"""


def test_who_is_told_that_it_began_may_signal_at_once() -> None:
    """A restart that is asked for as soon as the first worker has begun is done, and ends nobody."""
    said = supervised(RESTARTED, BEGUN).splitlines()
    assert said[:2] == ["listening", "restarting 1 workers, one after the other"]
    assert said[-1] == "status 0 restarts 0"


BAD_SUCCESSOR = """
from headrace.base.policies.restart import RestartPolicy
from headrace.pipeline import renewal
renewal._LEAST_SECONDS, afterwards = 0.5, 0.5
stops = []
def print(text, *more):
    sys.stdout.write(" ".join(map(str, (text, *more))) + chr(10))
    sys.stdout.flush()
    if "rolling restart stops" in str(text):  # a second try, and then the end
        stops.append(1)
        renewal._LEAST_SECONDS = afterwards
        os.kill(os.getpid(), signal.SIGHUP if len(stops) == 1 else signal.SIGTERM)
    if "all workers were restarted" in str(text):
        os.kill(os.getpid(), signal.SIGTERM)
options = dict(renews=True, policy=RestartPolicy(base_seconds=0.001, max_seconds=0.001, storm_deaths=2))
"""
SERVES_UNLESS_RESTARTED = """slot.expect_serving()
    slot.begin()
    try:
        while slot.generation > 1:
            {as_successor}
        slot.note_serving()
        if (slot.number, slot.generation) == (1, 1):
            os.kill(os.getppid(), signal.SIGHUP)
        while True:
            time.sleep(0.01)
    except KeyboardInterrupt:
        slot.finish(Ended(0, is_drained=True))
"""


@pytest.mark.parametrize("as_successor", ["time.sleep(0.01)", "os._exit(70)", "slot.finish(Ended(70)); return 70"])
def test_a_restart_whose_first_successor_never_serves_ends_nobody_else(as_successor: str) -> None:
    """It may wait for ever, die or end again and again: the other worker serves on, and a second restart asks one as well."""
    said = supervised(SERVES_UNLESS_RESTARTED.format(as_successor=as_successor), BAD_SUCCESSOR, num_workers=2)
    assert said.count("the rolling restart stops: worker 0 has not come to do its work") == 2
    assert said.count("1 workers were not restarted, and 1 do their work") == 2
    assert "died 4 times" not in said
    assert not re.search(r"worker 1 \(process \d+\) died", said)
    assert "stopping: workers finish what they have" in said


def test_a_restart_brings_back_a_worker_that_could_not_begin() -> None:
    """Its settings may have been mended meanwhile."""
    work = """slot.expect_serving()
    if (slot.number, slot.generation) == (0, 2):
        slot.finish(Ended(2))
        return 2
    slot.begin()
    slot.note_serving()
    try:
        if (slot.number, slot.generation) == (1, 1):
            os.kill(os.getppid(), signal.SIGHUP)
        while True:
            time.sleep(0.01)
    except KeyboardInterrupt:
        slot.finish(Ended(0, is_drained=True))
"""
    said = supervised(work, BAD_SUCCESSOR.replace("0.5, 0.5", "50.0, 50.0"), num_workers=2)
    assert "worker 0 cannot begin (status 2" in said
    assert "the rolling restart stops: worker 0 cannot begin; 1 workers were not restarted" in said
    assert "all workers were restarted" in said

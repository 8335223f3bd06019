"""Runs a program as if nobody had started it for the user: same streams, same terminal, signals passed on, its own exit status.

How this works: the caller's thread blocks the signals that end or inform programs, spawns the program with the mask as it was,
and takes signals one by one until the program has ended. What a terminal (Ctrl-C), `timeout` or a batch system sends to the
whole process group the program has already, which `Lookout` knows; what somebody sent to this process alone is sent on. If
this process is killed, the kernel sends the program SIGTERM, and one that goes on is killed: it would train on, and nobody
would know. A second Ctrl-C is for a program that does not end: it is killed.

Other threads of this process (NumPy's) do not block these signals, and may be given one while the caller's thread does not wait
for it. So each has a handler meanwhile: it would end this process otherwise. What such a handler saw is passed on within a
second.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import SettingsError
from headrace.base.parent_death import die_with_parent
from headrace.train.lookout import Lookout

#: Passed on, or seen by both. SIGKILL and SIGSTOP cannot be; SIGTSTP and SIGCONT do to both what they are for.
_TAKEN = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH),
    signal.SIGCHLD,
)
#: `si_code` of a signal that the kernel made: of a terminal, which sends it to the whole foreground group.
_SI_KERNEL = 0x80
#: How variables begin by which a program is asked to record.
_ASKING = ("HEADRACE_TRAIN", "HEADRACE_TORCH_PROFILER")
#: Seconds between two looks at the program, should its SIGCHLD be lost.
_LOOK_SECONDS = 1.0
#: Seconds that a program has to end by itself after a second Ctrl-C.
_GRACE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a program ended."""

    exit_status: int
    """Its own, or 128 + the signal that ended it, as shells say."""
    signal: str
    """Name of the signal that ended it; empty: it ended by itself."""
    was_asked: bool
    """SIGINT or SIGTERM came before it ended."""

    @property
    def status(self) -> str:
        """`finished`, `interrupted` or `failed`, as in `run.json`."""
        if not self.exit_status:
            return "finished"
        return "interrupted" if self.was_asked or self.signal in ("SIGINT", "SIGTERM") else "failed"

    @property
    def reason(self) -> str:
        """What ended it, in a few words; empty: it ended well."""
        if self.signal:
            return f"ended by {self.signal}"
        return f"exit status {self.exit_status}" if self.exit_status else ""


def run_program(argv: Sequence[str], environment: Mapping[str, str], *, stdout: int = 1) -> Ending:
    """Run a program to its end.

    Args:
        argv: Program and arguments; the program is looked up on PATH.
        environment: All of its variables.
        stdout: File descriptor that becomes its stdout.

    Raises:
        SettingsError: If it cannot be started.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    elsewhere: list[int] = []
    handlers = _handle(elsewhere)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    lookout = Lookout([one for one in _TAKEN if one != signal.SIGCHLD])
    try:
        process = _start(argv, environment, stdout, _beginning(os.getpid(), before))
        lookout.follow(process.pid)
        code, was_asked = _attend(process.pid, elsewhere, lookout)
        process.returncode = code  # it was waited for here
        _drop_pending()
    finally:
        lookout.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    name = name_signal(-code) if code < 0 else ""
    return Ending(exit_status=128 - code if code < 0 else code, signal=name, was_asked=was_asked)


def _start(
    argv: Sequence[str], environment: Mapping[str, str], stdout: int, begin: Callable[[], None]
) -> subprocess.Popen[bytes]:
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of NumPy's threads: `begin` needs no lock that one of them could hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            return subprocess.Popen(
                list(argv),
                env=environment,
                stdout=None if stdout == 1 else stdout,
                close_fds=False,
                preexec_fn=begin,
            )
    except OSError as error:
        raise SettingsError(
            f"{argv[0]!r} cannot be started: {error.strerror}; expected a Python script (`train.py`), "
            "`-m MODULE`, or a program on PATH"
        ) from error


def _beginning(parent: int, mask: Any) -> Callable[[], None]:
    """Return what the new process does before it becomes the program."""

    def begin() -> None:
        # SIGTERM: a launcher ends its ranks then, and a script may save its state.
        if not die_with_parent(parent, signal.SIGTERM):
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return begin


def armed_environment(folder: Path, script: str) -> dict[str, str]:
    """Return the variables of this process, and what makes the Pythons of a program record into a run folder.

    What another `headrace train`, which runs this one, asks of its program by variables is asked of that alone.

    Args:
        folder: The run folder.
        script: What runs, for `training/HOST-PID.json`.
    """
    armed = Path(__file__).resolve().parent / "armed"
    path = os.environ.get("PYTHONPATH")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_ASKING)}
    return {
        **inherited,
        "PYTHONPATH": f"{armed}{os.pathsep}{path}" if path else str(armed),
        "HEADRACE_TRAIN": str(folder.absolute()),
        "HEADRACE_TRAIN_SCRIPT": script,
    }


def name_signal(number: int) -> str:
    """Return a signal's name; real-time signals have none, and are numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _handle(elsewhere: list[int]) -> dict[int, Any]:
    """Let signals that another thread is given be noted; return the handlers as they were. Those that are ignored stay so."""
    before: dict[int, Any] = {}
    for number in _TAKEN:
        handler = signal.getsignal(number)
        if number != signal.SIGCHLD and handler not in (signal.SIG_IGN, None):
            before[number] = signal.signal(number, lambda number, _: elsewhere.append(number))
    return before


def _attend(process: int, elsewhere: list[int], lookout: Lookout) -> tuple[int, bool]:
    """Pass signals on until the program has ended; return its exit code (negative: a signal) and whether it was asked to.

    Args:
        process: Of the program.
        elsewhere: Signals that another thread of this process was given; taken from here.
        lookout: Knows what the program was sent too.
    """
    was_asked, deadline = False, float("inf")
    interrupts = [0, 0]  # to this process alone, and to all: `timeout` sends one of each, and means one

    def pass_on(number: int, *, is_of_kernel: bool = False) -> None:
        nonlocal was_asked, deadline
        has_it = lookout.saw(number) or is_of_kernel
        was_asked |= number in (signal.SIGINT, signal.SIGTERM)
        interrupts[has_it] += number == signal.SIGINT
        if max(interrupts) == 2:
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if not has_it:
            os.kill(process, number)

    while True:
        while elsewhere:
            pass_on(elsewhere.pop(0))
        if time.monotonic() >= deadline:
            deadline = float("inf")
            os.kill(process, signal.SIGKILL)
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), was_asked
        came = signal.sigtimedwait(_TAKEN, max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic())))
        if came is not None and came.si_signo != signal.SIGCHLD:
            pass_on(came.si_signo, is_of_kernel=came.si_code == _SI_KERNEL)


def _drop_pending() -> None:
    while signal.sigtimedwait(_TAKEN, 0) is not None:
        pass

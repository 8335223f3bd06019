"""The processes of leases: what `headrace run --on` runs on the nodes; see `ray.worker`.

python -m headrace.cli.leased PARENT FOLDER < leases
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.signals import block_signals

if TYPE_CHECKING:
    from headrace.ray.leases import Outcome

_PAUSE_SECONDS = 0.1
#: Beyond its grace period, the process of a dead worker needs to close its files.
_LEAVE_SECONDS = 10.0
#: How soon it is seen that a process has died.
_POLL_SECONDS = 0.1
#: A process that holds so many times the memory of its first lease goes: what leaks does not grow beyond a few leases.
_MOST_GROWTH = 2


def main() -> int:
    """Do leases until there are no more; return the exit status."""
    # Ray blocks SIGINT in all that it starts.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    import headrace.cli.run
    import headrace.pipeline.execute  # noqa: F401 - once, here: the process of each lease is forked with it

    return serve(int(sys.argv[1]), Path(sys.argv[2]), _work)


def serve(parent: int, folder: Path, work: Callable[[dict[str, Any]], Outcome]) -> int:
    """Fork a process that does the leases which come on the standard input; in that process this returns its exit status.

    It stays for the next lease, with what it has loaded, as long as leases end well and leave nothing behind; else another
    one is forked. So a lease begins at once, and what the user's code does to a process ends with it. This process runs none
    of it.

    Args:
        parent: The worker; without it, leases are asked to end.
        folder: Where `warm`, each lease's `outcome` and `loaded`, and `ended` are left: process and exit status of the last
            lease. Once the worker is gone, by whatever kills it, the folder is removed.
        work: Does a lease.
    """
    from headrace.base.parent_death import die_with_parent
    from headrace.ray.leases import receive_lease

    child = 0
    pipe: Connection | None = None  # to the child
    is_at_work = False
    asked: list[int] = []  # signals of this lease, or before the next one

    def ask_to_stop(number: int, _: object) -> None:
        asked.append(number)  # before a lease: it is not begun; where the worker has died, there is none
        if is_at_work:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, ask_to_stop)
    if not die_with_parent(parent, signal.SIGTERM):
        shutil.rmtree(folder, ignore_errors=True)
        return 1
    leases = os.fdopen(os.dup(0), "rb")  # the standard input of the user's code is empty
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _leave(folder, "warm", b"")
    while lease := receive_lease(leases):
        mine = os.getpid()
        if pipe is not None and os.waitpid(child, os.WNOHANG)[0]:  # killed while it had nothing to do
            pipe = None
        with block_signals(signal.SIGTERM), warnings.catch_warnings():
            if asked:
                asked.clear()
                _leave_unbegun(folder, lease)
                _leave(folder, "ended", f"{mine} 0".encode())
                continue
            if pipe is None:
                # Of the threads of NumPy's and Arrow's libraries, which hold nothing: no code of the user has run here.
                warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
                pipe, its = Pipe()
                child = os.fork()
                if child == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
            is_at_work = True
        if child == 0:
            pipe.close()
            leases.close()
            return _do(mine, its, folder, work)
        its.close()
        status = _have_done(child, pipe, lease)
        is_at_work = False
        if asked and status == -signal.SIGTERM:
            _leave_unbegun(folder, lease)  # a run hears that signal from its beginning on
        asked.clear()
        _leave(folder, "ended", f"{child} {status or 0}".encode())
        if status is not None:
            pipe = None
            _load(folder)
    _end(child, pipe)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _end(child: int, pipe: Connection | None) -> None:
    """End the process that waits for a lease, if there is one."""
    if pipe is not None:
        pipe.close()
        os.waitpid(child, 0)


def _have_done(child: int, pipe: Connection, lease: dict[str, Any]) -> int | None:
    """Have a process do a lease, and return its exit status; None: it waits for another one."""
    try:
        pipe.send(lease)
        while not pipe.poll(_POLL_SECONDS):  # what the user's code has forked keeps the pipe open when it dies
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
        pipe.recv_bytes()
        return None
    except (EOFError, OSError):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _do(parent: int, pipe: Connection, folder: Path, work: Callable[[dict[str, Any]], Outcome]) -> int:
    """Do leases until there are no more, or until one does not end well; return the exit status."""
    from headrace.base.parent_death import die_with_parent
    from headrace.pipeline.garbage import resident_bytes
    from headrace.ray.leases import encode

    if not die_with_parent(parent, signal.SIGTERM):
        return 1
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()  # as Python does for `random`: else each process draws the same numbers
    first_bytes = 0
    while True:
        try:
            lease = pipe.recv()
        except (EOFError, OSError):
            return 0
        num_threads = threading.active_count()
        outcome = work(lease)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # also where the user's code has left another handler
        _leave(folder, "loaded", " ".join(name for name in sys.modules if name.startswith("headrace.")).encode())
        _leave(folder, "outcome", encode(outcome))
        first_bytes = first_bytes or resident_bytes()
        has_left = threading.active_count() > num_threads or resident_bytes() > _MOST_GROWTH * first_bytes
        if outcome.status or outcome.interrupted or has_left:
            return outcome.status
        with contextlib.suppress(OSError):  # nobody is there any more: no lease will come either
            pipe.send_bytes(b"")


def _leave_unbegun(folder: Path, lease: dict[str, Any]) -> None:
    """Say of a lease that none of it was done, if nothing was said: nothing is left undone of a place at a queue."""
    from headrace.ray.leases import Outcome, encode

    if not (folder / "outcome").exists():
        _leave(folder, "outcome", encode(Outcome(status=0, interrupted=lease["args"].get("shard") is not None)))


def _load(folder: Path) -> None:
    """Load what the last process needed of headrace, engines and decoders with it: the next one begins that much sooner.

    It is half of what beginning costs. What the user's code loads stays with its process: a fork would lose its threads.
    """
    try:
        names = (folder / "loaded").read_text().split()
    except OSError:  # it died, or the worker did
        return
    for name in names:
        with contextlib.suppress(Exception):  # whatever it is, the next lease will say so
            importlib.import_module(name)


def _leave(folder: Path, name: str, content: bytes) -> None:
    """Write a file for the worker, whole; without a worker nobody needs it."""
    with contextlib.suppress(FileNotFoundError):
        unfinished = folder / f"{name}.part"
        unfinished.write_bytes(content)
        unfinished.replace(folder / name)


def _work(lease: dict[str, Any]) -> Outcome:
    import msgspec

    from headrace.cli import begin_log, run_reporting
    from headrace.cli.terminal import set_style
    from headrace.ray.leases import Outcome

    args = argparse.Namespace(**lease["args"])
    set_style(quiet=args.quiet, timestamps=args.timestamps)
    outcome = Outcome(status=0)

    def run() -> int:
        nonlocal outcome
        if args.resume and lease["place"]:
            _wait_for_the_one_before(lease["place"], lease["grace_seconds"])
        outcome = _run(args)
        return outcome.status

    with contextlib.ExitStack() as log:
        begin_log(args, log)
        status = run_reporting(run)
    return msgspec.structs.replace(outcome, status=status)


def _run(args: argparse.Namespace) -> Outcome:
    from headrace.cli import EXIT_INTERRUPTED
    from headrace.cli.run import run_once, say_how_it_ended, status_of
    from headrace.cli.terminal import say
    from headrace.ray.leases import Outcome

    result = run_once(args)
    ended = say_how_it_ended(result, args.queue or "")
    if result.ended_early:
        say(f"headrace run: ended early: {result.ended_early}", level=logging.WARNING)
    return Outcome(
        status=1 if result.ended_early else 0,
        document=ended.document,
        queue=ended.queue,
        interrupted=status_of(result) == EXIT_INTERRUPTED,
    )


def _wait_for_the_one_before(place: str, grace_seconds: float) -> None:
    """Wait until the process of a worker that died has let go of the checkpoint: it finishes what it has in hand."""
    from headrace.pipeline.resuming import is_held

    until = time.monotonic() + grace_seconds + _LEAVE_SECONDS
    while is_held(Path(place)) and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())

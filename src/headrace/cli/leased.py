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
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from headrace.base.signals import block_signals

if TYPE_CHECKING:
    from headrace.ray.leases import Outcome

_PAUSE_SECONDS = 0.1
#: Beyond its grace period, the process of a dead worker needs to close its files.
_LEAVE_SECONDS = 10.0


def main() -> int:
    """Do leases until there are no more; return the exit status."""
    # Ray blocks SIGINT in all that it starts.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    import headrace.cli.run
    import headrace.pipeline.execute  # noqa: F401 - once, here: the process of each lease is forked with it

    return serve(int(sys.argv[1]), Path(sys.argv[2]), _work)


def serve(parent: int, folder: Path, work: Callable[[dict[str, Any]], Outcome]) -> int:
    """Fork a process for each lease that comes on the standard input; in that process this returns its exit status.

    So a lease begins at once, and what the user's code does to a process ends with its lease. This process runs none of it.

    Args:
        parent: The worker; without it, leases are asked to end.
        folder: Where `warm`, each lease's `outcome` and `loaded`, and `ended` are left: process and exit status of the last
            lease. Once the worker is gone, by whatever kills it, the folder is removed.
        work: Does a lease.
    """
    from headrace.base.parent_death import die_with_parent
    from headrace.ray.leases import receive_lease

    child = 0
    is_asked = False

    def ask_to_stop(*_: object) -> None:
        nonlocal is_asked
        if not child:
            is_asked = True  # the next lease is not begun; where the worker has died, there is none
        else:
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
        with block_signals(signal.SIGTERM), warnings.catch_warnings():
            if is_asked:
                return 0
            # Of the threads of NumPy's and Arrow's libraries, which hold nothing: no code of the user has run here.
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if child == 0:
            return _do(mine, leases, folder, lease, work)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        _leave(folder, "ended", f"{child} {status}".encode())
        child = 0
        _load(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _do(
    parent: int, leases: IO[bytes], folder: Path, lease: dict[str, Any], work: Callable[[dict[str, Any]], Outcome]
) -> int:
    from headrace.base.parent_death import die_with_parent
    from headrace.ray.leases import encode

    if not die_with_parent(parent, signal.SIGTERM):
        return 1
    leases.close()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()  # as Python does for `random`: else each lease draws the same numbers
    outcome = work(lease)
    _leave(folder, "loaded", " ".join(name for name in sys.modules if name.startswith("headrace.")).encode())
    _leave(folder, "outcome", encode(outcome))
    return outcome.status


def _load(folder: Path) -> None:
    """Load what the last lease needed of headrace, engines and decoders with it: the next one begins that much sooner.

    It is half of what beginning costs. What the user's code loads stays with its lease: a fork would lose its threads.
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

"""The process of one lease: what `headrace run --on` runs on the nodes; see `ray.worker`.

python -m headrace.cli.leased PARENT OUTCOME < lease
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.ray.leases import Outcome

_PAUSE_SECONDS = 0.1
#: Beyond its grace period, the process of a dead worker needs to close its files.
_LEAVE_SECONDS = 10.0


def main() -> int:
    """Wait for a lease, do it, and leave its outcome; return the exit status."""
    # Ray blocks SIGINT in all that it starts.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    from headrace.base.parent_death import die_with_parent

    if not die_with_parent(int(sys.argv[1]), signal.SIGTERM):
        return 1
    import headrace.cli.run
    import headrace.pipeline.execute  # noqa: F401 - now, while there is nothing to do
    from headrace.ray.leases import decode_lease, encode

    with contextlib.suppress(OSError):  # the worker is dead
        Path(sys.argv[2]).with_name("warm").touch()
    data = sys.stdin.buffer.read()
    if not data:  # nobody needs it
        return 0
    outcome = _work(decode_lease(data))
    path = Path(sys.argv[2])
    with contextlib.suppress(FileNotFoundError):  # the worker is dead, and its files are gone
        unfinished = path.with_name("outcome.part")
        unfinished.write_bytes(encode(outcome))
        unfinished.replace(path)
    return outcome.status


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
    from headrace.cli.run import run_once, say_how_it_ended
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
        interrupted=result.interrupted,
    )


def _wait_for_the_one_before(place: str, grace_seconds: float) -> None:
    """Wait until the process of a worker that died has let go of the checkpoint: it finishes what it has in hand."""
    from headrace.pipeline.resuming import is_held

    until = time.monotonic() + grace_seconds + _LEAVE_SECONDS
    while is_held(Path(place)) and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())

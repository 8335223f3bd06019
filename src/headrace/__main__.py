"""The program `headrace`, also as `python -m headrace`: runs the command, and ends at Ctrl-C before and after it too.

Nothing but what Python has loaded anyway is imported here, so that the time without a handler is short.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130
#: Commands that SIGUSR2 must not end, at whatever moment it comes: it asks a run for an incident, and `snapshot` writes that.
_ASKED = {"run", "serve", "snapshot"}


def main() -> int:
    """Run the command of the command line and return its exit status."""
    kept: list[int] = []
    atexit.register(_keep_status, kept)  # the first to be registered is the last to be called
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's `nohup` and `&` may ignore it
    if is_ours:
        signal.signal(signal.SIGINT, _leave)
    if _ASKED.intersection(sys.argv):
        from headrace.base.early_signal import note_sigusr2

        note_sigusr2()
    from headrace.cli import main as run_command

    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    status = _INTERRUPTED
    try:
        status = run_command()
    except KeyboardInterrupt:  # a second one, while the first was being reported
        pass
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, _leave)  # Python would print a traceback while it shuts down
    if status == _INTERRUPTED:
        kept.append(_INTERRUPTED)
    return status


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: modules are half imported or half gone, and an exception among them may be swallowed."""
    os.write(2, b"headrace: interrupted\n")
    os._exit(_INTERRUPTED)


def _keep_status(status: list[int]) -> None:
    """End with this status, if there is one, before Python does.

    Where Ctrl-C came while a text was executed, as for every dataclass, Python ends itself by SIGINT, whatever the status.
    """
    for one in status:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            sys.stdout.flush()
        os._exit(one)


if __name__ == "__main__":
    raise SystemExit(main())

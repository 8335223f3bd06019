"""Says on a terminal that a command is still at work, and at what, where that takes longer than people wait in silence.

A log gets none of it: how long something took on a busy machine is no news there, and two logs of the same work stay alike.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator

from headrace.cli.terminal import speaker

#: Until the first line, and between two of them.
_FIRST_SECONDS, _BETWEEN_SECONDS = 2.0, 10.0


@contextlib.contextmanager
def patience(
    command: str, what: str, *, first_seconds: float = _FIRST_SECONDS, speak: Callable[[object], None] | None = None
) -> Iterator[None]:
    """Say what is being done, and for how long, once it has taken a while; nothing where that is over sooner.

    Args:
        command: The command's name.
        what: What it is doing, as "simulating the run".
        first_seconds: From when on.
        speak: Takes the lines; None: stderr, if it is a terminal and the command is not to be quiet.
    """
    if speak is None and not sys.stderr.isatty():
        yield
        return
    over, speak = threading.Event(), speak or speaker(command)
    began = time.monotonic()

    def tell() -> None:
        for number in itertools.count():
            if over.wait(_BETWEEN_SECONDS if number else first_seconds):
                return
            speak(f"{what}; {time.monotonic() - began:.0f} s so far")

    thread = threading.Thread(target=tell, name="headrace-patience", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

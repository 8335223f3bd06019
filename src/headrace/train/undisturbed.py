"""Calls what must not be broken off by an exception that a signal's handler raises in the main thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


def call_undisturbed(call: Callable[[], object]) -> None:
    """Call a function in a thread of its own, which no handler of a signal enters, and wait until it has ended.

    PyTorch's handler raises when a loader's worker was killed, wherever the main thread is then: that must not cost what was
    recorded. What was raised meanwhile is raised afterwards.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="headrace-train-close")
    try:
        thread.start()
    except RuntimeError:  # the interpreter is about to end
        call()
        return
    while thread.is_alive():
        try:
            thread.join()
        except BaseException as error:
            failures.append(error)
    if failures:
        raise failures[0]

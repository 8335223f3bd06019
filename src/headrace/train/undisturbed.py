"""Calls what must not be broken off by an exception that a signal's handler raises in the main thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


def call_undisturbed(call: Callable[[], object]) -> None:
    """Call a function once in a thread of its own, which no handler of a signal enters, and wait until it has ended.

    PyTorch's handler raises when a loader's worker was killed, wherever the main thread is then: that must not cost what was
    recorded. What was raised meanwhile is raised afterwards.
    """
    failures: list[BaseException] = []
    turn = threading.Lock()  # whoever takes it makes the call
    has_ended = threading.Event()

    def run() -> None:
        if turn.acquire(blocking=False):
            try:
                call()
            except BaseException as error:
                failures.append(error)
            finally:
                has_ended.set()

    try:
        threading.Thread(target=run, name="headrace-train-close").start()
    except BaseException as error:
        if not _is_for_want_of_threads(error):
            failures.append(error)
        run()  # by the thread, if it has begun
    while not has_ended.is_set():
        try:
            has_ended.wait()
        except BaseException as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _is_for_want_of_threads(error: BaseException) -> bool:
    """Tell whether no thread can begin, as when the interpreter is about to end; a handler may raise a RuntimeError as well."""
    return isinstance(error, RuntimeError) and "new thread" in str(error)

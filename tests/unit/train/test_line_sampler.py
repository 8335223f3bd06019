"""Lines of the user's code, found on the stack of a thread."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import FrameType

import pytest

from headrace.runs.training_phases import Phase
from headrace.train.line_sampler import LineSampler, find_line


def test_the_innermost_line_of_the_user_is_found() -> None:
    """A call into the standard library counts for the line that makes it."""
    found: list[str | None] = []

    def look(_: object) -> object:
        found.append(find_line(sys._getframe(1)))
        return ""

    json.dumps(object(), default=look)  # the encoder calls back from the standard library
    here = look.__code__.co_firstlineno + 4
    assert found[0] is not None
    assert found[0].endswith(f"test_line_sampler.py:{here}")


def test_code_that_is_not_the_users_has_no_line() -> None:
    """A stack of the standard library alone."""
    frames: list[FrameType] = []
    thread = threading.Thread(target=time.monotonic)
    thread.run = lambda: frames.append(sys._getframe(1))  # type: ignore[method-assign]
    thread.start()
    thread.join()
    assert find_line(frames[0]) is None


@pytest.mark.real_clock
def test_a_thread_that_computes_is_seen_where_it_does() -> None:
    """In its phase; nearly all samples are of the loop below, and shares are of that phase."""
    here = threading.get_ident()
    sampler = LineSampler(lambda: Phase.AFTER, lambda: here)
    until = time.monotonic() + 30.0
    while not sampler.describe() and time.monotonic() < until:
        pass
    sampler.close()
    lines = sampler.describe()["after"]
    assert all(str(line).partition(":")[0].endswith("test_line_sampler.py") for line, _ in lines)
    assert sum(float(share) for _, share in lines) <= 1.0 + 1e-9

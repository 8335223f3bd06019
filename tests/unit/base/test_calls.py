"""Calls as generators, driven by a thread that waits."""

from __future__ import annotations

import time
from typing import Any

import pycurl
import pytest

from headrace.base.calls import Call, LookUp, Pause, Transfer, run_call
from headrace.base.look_ups import Unresolved


def test_a_call_ends_with_its_value() -> None:
    """What the generator returns is the result; a wait is really waited for."""

    def call() -> Call[str]:
        began = time.monotonic()
        yield Pause(0.02)
        return "done" if time.monotonic() - began >= 0.02 else "too soon"

    assert run_call(call()) == "done"


def test_a_call_that_waits_for_nothing() -> None:
    """A generator that ends at once is a call, too."""

    def call() -> Call[int]:
        return 1
        yield

    assert run_call(call()) == 1


def test_the_answer_comes_back_into_the_call() -> None:
    """A look-up answers with the addresses."""

    def call() -> Call[Any]:
        return (yield LookUp("localhost", 80, 5.0))

    assert any(address.is_loopback for address in run_call(call()))


def test_a_failed_wait_is_thrown_in() -> None:
    """The call can catch what its wait came to, and go on."""

    def call() -> Call[str]:
        try:
            yield LookUp("nowhere.invalid", 80, 5.0)
        except Unresolved as error:
            yield Pause(0.0)
            return str(error)
        return ""

    assert "resolved" in run_call(call())


def test_an_error_of_the_call_is_raised() -> None:
    """What the generator raises comes out."""

    def call() -> Call[None]:
        yield Pause(0.0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_call(call())


class Handle:
    """A handle of libcurl that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def setopt(self, option: int, value: int) -> None:
        """Note an option."""
        self.told.append((option, value))

    def perform(self) -> None:
        """Note that the request is run."""
        self.told.append((0, 0))


@pytest.mark.parametrize("is_enough", [None, lambda: False])
def test_a_request_that_was_carried_before_is_asked_about_again(is_enough: Any) -> None:
    """Who carries a request has libcurl stop asking; where a thread waits for it, nobody else would."""
    handle = Handle()
    transfer = Transfer(handle, None, Any, is_enough=is_enough)
    transfer.block()
    transfer.block()
    asks = [] if is_enough is None else [(pycurl.NOPROGRESS, 0)]
    assert handle.told == [*asks, (0, 0), (0, 0)]

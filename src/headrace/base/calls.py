"""Calls that wait on the outside, written once and driven in two ways.

How this works: a call is a generator. It yields what it waits for, and is resumed with the answer; a failure of the wait is
thrown into it. Who drives it decides how to wait: `run_call` waits in the calling thread, a `Carrier`
(`headrace.base.carrier`) lets one thread wait for hundreds of calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headrace.base.address_ranges import Address
from headrace.base.look_ups import look_up

T = TypeVar("T")


class Wait(Protocol):
    """What a call can wait for: one of the classes below, which a carrier tells apart."""

    def block(self) -> Any:
        """Wait in this thread and return the answer; raises what is to be thrown into the call."""
        ...


#: A call that ends with a T.
Call = Generator[Wait, Any, T]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for a time; the answer is None."""

    seconds: float

    def block(self) -> None:
        """Sleep."""
        time.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class LookUp:
    """Wait for the addresses of a host; `look_ups.Unresolved` is thrown in if there are none in time."""

    host: str
    port: int
    seconds: float

    def block(self) -> tuple[Address, ...]:
        """Look the host up."""
        return look_up(self.host, self.port, self.seconds)


@dataclass(frozen=True, slots=True)
class InThread:
    """Wait for a function that nothing tells the end of, such as reading a file; what it raises is thrown in."""

    function: Callable[[], Any]

    def block(self) -> Any:
        """Call it."""
        return self.function()


class OpensSockets(Protocol):
    """What a handle of libcurl opens its sockets by."""

    on_open: Callable[[int], object] | None
    """Called with each new descriptor, before libcurl uses it; None: nobody wants to know."""
    opened: int
    """The descriptor that the request under way opened last; -1: none so far."""


@dataclass(slots=True, eq=False)
class Transfer:
    """Wait for a request of libcurl; the answer is None.

    `pycurl.error` is thrown in if it fails, OSError if the system lacks what it takes.
    """

    curl: Any
    """The handle, with the request set; nobody touches it until the wait is over."""
    connections: Hashable
    """Transfers for which it is equal may use one another's connections, others never."""
    opener: OpensSockets
    """Of the handle."""
    is_enough: Callable[[], bool] | None = None
    """Asked once a second at least; True ends the request with `pycurl.E_ABORTED_BY_CALLBACK`. None: nothing is asked."""
    curl_asks: bool = False
    """Whether libcurl asks that by itself, ten times in a request; who carries the request asks instead."""
    is_first: bool = False
    """Whether the handle brings addresses that the transfers after this one are to find."""

    def block(self) -> None:
        """Run the request."""
        if self.is_enough is not None and not self.curl_asks:  # it was carried before
            import pycurl  # not needed by who only pauses

            self.curl.setopt(pycurl.NOPROGRESS, 0)
            self.curl_asks = True
        self.curl.perform()


def run_call(call: Call[T]) -> T:
    """Return what a call ends with, waiting in this thread; raises what the call raises."""
    try:
        wait = next(call)
        while True:
            try:
                answer = wait.block()
            except BaseException as error:  # also Ctrl-C: the call has its own to put away
                wait = call.throw(error)
            else:
                wait = call.send(answer)
    except StopIteration as ended:
        result: T = ended.value
        return result

"""What is around a pipeline: jobs that come, services that it calls, other programs on its cores.

Services and neighbours are programs of their own. They end when the pipe that is their standard input does, so that they cannot
outlive the one who started them. A service is started once, by the first who calls it, and stays.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

from headrace.base.plan import SourcePlan
from headrace.base.protocols import Delivery, Source
from headrace.base.records import Job, Outcome
from headrace.sources.finite import Entry, FiniteSource

_WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "but", "are", "they")
NUM_ITEMS = 64
#: So many gaps at random together are as long as they should be: a block of some dozen jobs, which are always the same ones,
#: would else be offered a sixth less than was asked for (jobs 24 to 94), and the prediction be blamed for that.
_EVEN_AFTER = 16


@functools.cache
def items() -> tuple[bytes, ...]:
    """Return texts of different lengths: 0.5 to 2 times 3,000 characters; the first byte, a letter or so, tells the item."""
    numbers = random.Random(1)
    found = []
    for number in range(NUM_ITEMS):
        words = numbers.choices(
            [*_WORDS, "Ada Byron", "12/10/1815", "engine's"], k=round(700 * 2 ** numbers.uniform(-1, 1))
        )
        found.append(bytes([64 + number]) + " ".join(words).encode())
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """How jobs come."""

    per_second: float | None = None
    """On average; None: there are always more."""
    burst: int = 1
    """So many at once."""
    jitter: bool = False
    """At random times, with that mean."""
    poll_seconds: float = 0.0
    """What one receive takes, whatever it brings."""
    per_poll: int = 1000
    """Jobs that one receive brings at most."""
    tasks: tuple[str, ...] = ("",)
    """What the jobs are for, in turn."""


class _Items(FiniteSource):
    """The items again and again."""

    def entries(self) -> Iterator[Entry]:
        """Return them all."""
        for number, item in enumerate(itertools.cycle(items())):
            yield Entry(str(number), item)


class Jobs(Source):
    """The items again and again for some seconds, as they arrive; no list, which an experiment could go around in its own way.

    Args:
        seconds: How long, from the end of the first job on: it goes ahead alone, while the pipeline warms up.
        arrivals: How they come.
    """

    is_remote = False

    def __init__(self, seconds: float, arrivals: Arrivals) -> None:
        self._seconds = seconds
        self._arrivals = arrivals
        self._items = _Items()
        self._due: Iterator[float] = iter(())
        self._starting = threading.Lock()
        self._polling = threading.Lock()
        self._begun: float | None = None
        self._is_first = True
        self._is_warm = threading.Event()

    def open(self, settings: SourcePlan) -> None:
        """Begin anew."""
        self._items.open(settings)
        self._begun, self._is_first, self._due = None, True, _times(self._arrivals)
        self._is_warm.clear()

    @property
    def is_exhausted(self) -> bool:
        """Whether the time is over."""
        return self._begun is not None and time.monotonic() >= self._begun + self._seconds

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return jobs that have come by now, [] if none came in time, None when the time is over."""
        with self._starting:
            if self._is_first:
                self._is_first = False
                return self._with_tasks(self._note_end(self._items.receive(1, wait_seconds)))
        if not self._is_warm.wait(wait_seconds):
            return []
        with self._starting:
            if self._begun is None:
                self._begun, self._next = time.monotonic(), next(self._due, math.inf)
        if self.is_exhausted:
            return None
        if self._arrivals.poll_seconds:
            with self._polling:  # one connection
                time.sleep(self._arrivals.poll_seconds)
        most = min(limit, self._arrivals.per_poll)
        number = most if self._arrivals.per_second is None else self._come(most, wait_seconds)
        return self._with_tasks(self._items.receive(number, 0.0)) if number else []

    def _note_end(self, jobs: list[Job] | None) -> list[Job] | None:
        """Have the first job say when it has ended, however: the others come then."""
        for job in jobs or []:
            job.intercept_settle(functools.partial(self._settle_first, job.intercept_settle(_answer_nobody)))
        return jobs

    def _settle_first(self, answer: Callable[[Outcome], None], job: Job, outcome: Outcome) -> None:
        answer(outcome)
        self._is_warm.set()

    def _with_tasks(self, jobs: list[Job] | None) -> list[Job] | None:
        for job in jobs or []:
            job.task = self._arrivals.tasks[int(job.id) % len(self._arrivals.tasks)]
        return jobs

    def _come(self, most: int, wait_seconds: float) -> int:
        """Wait until a job is due, and return how many are."""
        assert self._begun is not None
        until = min(time.monotonic() + wait_seconds, self._begun + self._seconds)
        while True:
            now = time.monotonic()
            with self._starting:
                number = 0
                while number < most and self._begun + self._next <= now:
                    self._next, number = next(self._due), number + 1
                pause = self._begun + self._next - now
            if number or now >= until:
                return number
            time.sleep(max(0.0, min(pause, until - now)))


def _answer_nobody(job: Job, outcome: Outcome) -> None:
    """Stand in for what a job tells until it tells more."""


def _times(arrivals: Arrivals) -> Iterator[float]:
    """Give the seconds from the start at which jobs come, in order."""
    if arrivals.per_second is None:
        return
    numbers, at = random.Random(2), 0.0
    mean = arrivals.burst / arrivals.per_second
    while True:
        gaps = [numbers.expovariate(1.0) if arrivals.jitter else 1.0 for _ in range(_EVEN_AFTER)]
        for gap in gaps:
            for _ in range(arrivals.burst):
                yield at
            at += gap * mean * _EVEN_AFTER / sum(gaps)


def jobs(seconds: float, **arrivals: Any) -> Source:
    """Return a source; `arrivals` are fields of `Arrivals`."""
    return Jobs(seconds, Arrivals(**arrivals))


# --- Services


@dataclass(frozen=True, kw_only=True)
class Service:
    """How a service behaves."""

    latency: float = 0.0
    """Seconds before each answer."""
    jitter: float = 0.0
    """Latency varies by this share, evenly."""
    per_second: float = 0.0
    """Most answers a second: those beyond wait their turn, or are refused. 0: no limit."""
    refuses: bool = False
    """Answers 429 beyond that, with a Retry-After."""
    bytes_per_second: float = 0.0
    """Of all request bodies together, as through one link. 0: no limit."""


_SERVICE = """
import asyncio, os, random, sys, threading, time
latency, jitter, per_second, refuses, bytes_per_second = eval(sys.argv[1])
turn = link = 0.0

async def serve(reader, writer):
    global turn, link
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\\r\\n")[0])
            await reader.readexactly(length)
            now = time.monotonic()
            if per_second and refuses and turn > now + 1 / per_second:
                await asyncio.sleep(0.002)
                text = "HTTP/1.1 429 Too Many Requests\\r\\nRetry-After: 0.05\\r\\nContent-Length: 0\\r\\n\\r\\n"
                writer.write(text.encode())
                continue
            wait = latency * (1 + jitter * random.uniform(-1, 1))
            if per_second:
                turn = max(turn, now) + 1 / per_second
                wait = max(wait, turn - now)
            if bytes_per_second:
                link = max(link, now) + length / bytes_per_second
                wait = max(wait, link - now)
            await asyncio.sleep(wait)
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()

threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
asyncio.run(main())
"""
_NEIGHBOUR = """
import os, sys, threading, time
on, off = eval(sys.argv[1])
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(flush=True)
while True:
    ends = time.monotonic() + on
    while time.monotonic() < ends:
        pass
    time.sleep(off)
"""
#: The shell ends at once, and its child has no parent left to be counted with.
_LEAVE_BEHIND = 'exec 3<&0; "$@" <&3 3<&- &'
_STARTING = threading.Lock()


class Outside:
    """A program that is nobody's child, for as long as it is not stopped.

    Args:
        code: Python code that prints a line once it is ready.
        settings: What it evaluates as its argument.

    Attributes:
        answer: The line.
    """

    def __init__(self, code: str, settings: tuple[object, ...]) -> None:
        command = ["/bin/sh", "-c", _LEAVE_BEHIND, "sh", sys.executable, "-I", "-c", code, repr(settings)]
        self._shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._shell.stdout is not None
        self.answer = self._shell.stdout.readline()
        self._shell.wait()
        if not self.answer:
            raise RuntimeError(
                "a program to run beside the pipeline ended before it was ready; what it printed says why"
            )

    def stop(self) -> None:
        """End it."""
        for pipe in (self._shell.stdin, self._shell.stdout):
            if pipe is not None:
                pipe.close()


_SERVICES: dict[Service, tuple[Outside, tuple[str, int]]] = {}


def service_of(service: Service) -> tuple[str, int]:
    """Return host and port of a service that behaves like this; it is started if nobody has yet."""
    found = _SERVICES.get(service)
    if found is None:
        with _STARTING:
            if service not in _SERVICES:
                program = Outside(_SERVICE, astuple(service))
                _SERVICES[service] = program, ("127.0.0.1", int(program.answer))
            found = _SERVICES[service]
    return found[1]


def receiver_of(service: Service) -> str:
    """Return the address of a service that takes results."""
    host, port = service_of(service)
    return f"http://{host}:{port}/"


class Both:
    """A delivery that hands each result to a file, then to a receiver, which may refuse it."""

    flush_items = 1
    flush_seconds = 0.0

    def __init__(self, file: Delivery, receiver: Delivery) -> None:
        self.deliveries = file, receiver
        self.default_workers = receiver.default_workers

    def open(self, context: Any) -> None:
        """Open both."""
        for delivery in self.deliveries:
            delivery.open(context)

    def deliver(self, job: Job, result: Any) -> bool:
        """Deliver to both."""
        durable = [delivery.deliver(job, result) for delivery in self.deliveries]
        return all(durable)

    def flush(self) -> None:
        """Flush both."""
        for delivery in self.deliveries:
            delivery.flush()

    def close(self) -> None:
        """Close both."""
        for delivery in self.deliveries:
            delivery.close()


def stop_services() -> None:
    """End all services."""
    while _SERVICES:
        _SERVICES.popitem()[1][0].stop()


@contextlib.contextmanager
def neighbours(number: int, on: float = 1.0, off: float = 0.0) -> Iterator[None]:
    """Run so many programs that keep a core busy each, for `on` seconds out of `on + off`."""
    programs = [Outside(_NEIGHBOUR, (on, off)) for _ in range(number)]
    try:
        yield
    finally:
        for program in programs:
            program.stop()


if __name__ == "__main__":  # python surroundings.py NUMBER ON OFF: until Ctrl-C
    with neighbours(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])), contextlib.suppress(KeyboardInterrupt):
        print(f"{sys.argv[1]} neighbours of process {os.getpid()}; Ctrl-C ends them", flush=True)
        time.sleep(1e9)

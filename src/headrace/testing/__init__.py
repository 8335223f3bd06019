"""What headrace's own tests use and yours may: no servers, no sleeping, no mocks.

`FakeClock` stands still until it is moved; `MemoryQueue` is a queue service in memory that can do everything unpleasant a
real one may (`Lies`); `FaultyQueue` makes single calls of any queue fail; `ListSource` is a list of jobs that remembers how
each ended, `FaultyStage` fails on demand, and `Receiver` takes callbacks, or does not.
`headrace.testing.conformance` is the suite that every queue adapter passes, `headrace.testing.delivery_conformance` that of
deliveries which can be read back; they need pytest and are therefore imported by
name only.
"""

from headrace.testing.clock import FakeClock
from headrace.testing.faulty_queue import FaultyQueue
from headrace.testing.faulty_stage import FaultyStage
from headrace.testing.list_source import ListSource
from headrace.testing.memory_queue import Lies, MemoryQueue, lying
from headrace.testing.receiver import Call, Receiver, Reply

__all__ = [
    "Call",
    "FakeClock",
    "FaultyQueue",
    "FaultyStage",
    "Lies",
    "ListSource",
    "MemoryQueue",
    "Receiver",
    "Reply",
    "lying",
]

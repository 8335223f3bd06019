"""What headrace's own tests use and yours may: no servers, no sleeping, no mocks.

`FakeClock` stands still until it is moved; `MemoryQueue` is a queue service in memory that can do everything unpleasant a
real one may (`Lies`). `headrace.testing.conformance` is the suite that every queue adapter passes; it needs pytest and is
therefore imported by name only.
"""

from headrace.testing.clock import FakeClock
from headrace.testing.memory_queue import Lies, MemoryQueue, lying

__all__ = ["FakeClock", "Lies", "MemoryQueue", "lying"]

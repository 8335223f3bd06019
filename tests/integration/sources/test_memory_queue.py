"""The memory queue keeps the same promises as the real services, when it does not lie."""

from collections.abc import Callable, Sequence

import pytest

from headrace.base.protocols import Queue
from headrace.testing import MemoryQueue
from headrace.testing.conformance import QueueConformance

pytestmark = pytest.mark.real_clock


class _Shared(MemoryQueue):
    """One queue that several workers open and close."""

    def close(self) -> None:
        """Stay open for the others."""


class TestMemoryQueue(QueueConformance):
    @pytest.fixture
    def shared(self) -> MemoryQueue:
        """Make the queue of one test."""
        return _Shared(visibility_seconds=self.visibility_seconds)

    @pytest.fixture
    def make_queue(self, shared: MemoryQueue) -> Callable[[], Queue]:
        """Give the same object each time: memory is not shared otherwise."""
        return lambda: shared

    @pytest.fixture
    def put_malformed(self, shared: MemoryQueue) -> Sequence[Callable[[], object]]:
        """Put what the queue is told to find unreadable."""
        return [lambda: shared.put_malformed(b"?")]

"""The memory queue keeps the same promises as the real services, when it does not lie."""

from collections.abc import Callable

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
    def make_queue(self) -> Callable[[], Queue]:
        """Give the same object each time: memory is not shared otherwise."""
        queue = _Shared(visibility_seconds=self.visibility_seconds)
        return lambda: queue

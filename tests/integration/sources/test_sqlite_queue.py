"""The SQLite queue on a real file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.protocols import Queue
from headrace.sources.addresses import open_queue
from headrace.testing.conformance import QueueConformance

pytestmark = pytest.mark.real_clock


class TestSqliteQueue(QueueConformance):
    @pytest.fixture
    def make_queue(self, tmp_path: Path) -> Callable[[], Queue]:
        """Open the same file each time."""
        return lambda: open_queue(f"sqlite:///{tmp_path}/jobs.db", visibility_seconds=self.visibility_seconds)

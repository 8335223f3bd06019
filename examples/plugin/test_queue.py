"""The suite that every queue passes, on the queue in a folder."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from headrace_spool.queue import SpoolQueue

from headrace.testing.conformance import QueueConformance


class TestSpoolQueue(QueueConformance):
    """What `headrace.base.protocols.Queue` promises."""

    @pytest.fixture
    def make_queue(self, tmp_path: Path) -> Callable[[], SpoolQueue]:
        """Return what opens the queue: each call as another worker would."""
        return lambda: SpoolQueue(tmp_path / "jobs", visibility_seconds=self.visibility_seconds)

    @pytest.fixture
    def put_malformed(self, tmp_path: Path, make_queue: Callable[[], SpoolQueue]) -> Sequence[Callable[[], object]]:
        """Return calls that put files into the folder that are no messages."""
        make_queue()
        folder = tmp_path / "jobs" / "messages"
        return [
            lambda: (folder / "0-text").write_text("no JSON"),
            lambda: (folder / "0-types").write_text('{"body": 7, "sent_at": "now"}'),
            lambda: (folder / "0-bytes").write_bytes(b"\xff\xfe"),
            lambda: (folder / "0-empty").touch(),
        ]

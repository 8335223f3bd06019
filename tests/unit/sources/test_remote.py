"""Which queues count as the network's: their jobs may name no files of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.base.protocols import Source
from headrace.base.records import Job
from headrace.sources.queue_source import QueueSource
from headrace.testing import MemoryQueue


@pytest.mark.parametrize(
    ("address", "is_remote"),
    [
        ("sqlite:///jobs.db", False),
        ("sqs://jobs", True),
        ("https://sqs.eu-west-1.amazonaws.com/1/jobs", True),
        ("redis://localhost:6379/0", True),
        ("rediss://queue.example.com/0", True),
    ],
)
def test_by_address(address: str, is_remote: bool) -> None:
    """A file of this machine is local; what is reached by a connection is not, wherever it runs."""
    assert QueueSource(address).is_remote is is_remote


def test_by_queue() -> None:
    """A queue that was passed in is local where it says so; one that says nothing is not."""

    class Unknown(MemoryQueue):
        is_local = False

    assert not QueueSource(MemoryQueue()).is_remote
    assert QueueSource(Unknown()).is_remote


class Minimal(Source):
    """A source written elsewhere, which says nothing of networks: one job that names a file."""

    def __init__(self, path: Path) -> None:
        self._jobs = [Job("1", path)]

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return the job, then None."""
        jobs, self._jobs = self._jobs, []
        return jobs or None


class Local(Minimal):
    """One that says where its jobs come from."""

    is_remote = False


@pytest.mark.parametrize(("source", "num_read"), [(Minimal, 0), (Local, 1)])
def test_a_source_that_does_not_say_is_remote(source: type[Minimal], num_read: int, tmp_path: Path) -> None:
    """Its jobs may name no file, or whoever writes them could read this machine's."""
    (tmp_path / "secret").write_bytes(b"x")
    collected = hr.collect()
    stages = [hr.fetch("fetch"), hr.stage("size", len)]
    pipeline = hr.Pipeline(source(tmp_path / "secret"), stages=stages, delivery=collected)
    hr.run(pipeline)
    assert len(collected.results) == num_read

"""Which queues count as the network's: their jobs may name no files of this machine."""

from __future__ import annotations

import pytest

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

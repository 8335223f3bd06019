"""Results in memory."""

from __future__ import annotations

from headrace.base.records import Job
from headrace.delivery.collect import Collect


def test_results_are_kept_in_order() -> None:
    """Each result stands with its job's id, in the order of delivery, and is durable at once."""
    delivery = Collect()
    delivery.open(None)
    assert [delivery.deliver(Job(name, b""), name.upper()) for name in "ba"] == [True, True]
    delivery.flush()
    delivery.close()
    assert delivery.results == [("b", "B"), ("a", "A")]

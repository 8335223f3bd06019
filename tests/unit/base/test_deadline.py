"""What a deadline cuts: waits on the outside, tries that would come too late, and work that nobody wants any more."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace.base.deadline import drop_late_tries, limit_to_deadline, refuse_late, seconds_left
from headrace.base.errors import DeadlinePassed
from headrace.base.http_settings import HttpSettings
from headrace.base.network_rules import NetworkPlan, NetworkRules
from headrace.base.records import Outcome, OutcomeKind


def test_what_is_left_is_known_while_it_is_worked_on() -> None:
    """Within the block the thread knows how long the job is wanted, and outside of it nothing is cut."""
    assert seconds_left() is None
    with limit_to_deadline(time.monotonic_ns() + 60 * 10**9):
        left = seconds_left()
    assert left is not None
    assert 0 < left <= 60
    assert seconds_left() is None


def test_what_is_late_is_refused_with_a_code() -> None:
    """The moment itself is in time; a moment later is not, and the reason says by how much."""
    refuse_late(2_000_000_000, 2_000_000_000)
    with pytest.raises(DeadlinePassed, match=r"passed 0\.500 s ago") as caught:
        refuse_late(2_000_000_000, 2_500_000_000)
    assert caught.value.code == "deadline.passed"


def test_a_try_that_would_come_too_late_is_none() -> None:
    """A job is not offered again after its deadline: it ends, with the reason of its last try and what was kept."""
    again = Outcome(OutcomeKind.RETRY, "fetch: busy", 10.0, kept=b"result")
    assert drop_late_tries(again, None, 0) is again
    assert drop_late_tries(again, 10 * 10**9, 0) is again
    cut = drop_late_tries(again, 9 * 10**9, 0)
    assert (cut.kind, cut.kept) == (OutcomeKind.REJECTED, b"result")
    assert cut.reason.startswith("deadline.passed: the next try would come 1.0 s after the job's deadline")
    assert cut.reason.endswith("fetch: busy")


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_request_ends_with_the_deadline(client_type: Any, server: Any, method: str) -> None:
    """A server that does not answer is waited for no longer than the job is wanted, and is not said to have failed."""
    server.routes["/hang"] = lambda handler: handler.server.over.wait()
    client = client_type(HttpSettings(timeout_seconds=600), rules=NetworkRules(NetworkPlan(allow=["127.0.0.1"])))
    request = client.get if method == "get" else lambda url: client.post(url, b"", {})
    began = time.monotonic()
    with limit_to_deadline(time.monotonic_ns() + 300_000_000), pytest.raises(DeadlinePassed, match="before http://127"):
        request(f"{server.url}/hang")
    assert time.monotonic() - began < 60
    client.close()

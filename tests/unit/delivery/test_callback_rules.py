"""Which callback addresses are posted to: the operator's own always, a job's where the Plan allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import DeliveryRejected
from headrace.base.network_rules import NetworkPlan
from headrace.base.plan import Plan
from headrace.base.records import Job
from headrace.delivery.callback import Callback

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def opened(context: Any) -> Callable[..., Callback]:
    """Opens a callback under the rules of a Plan."""

    def make(url: str | None = None, **network: Any) -> Callback:
        context.plan = Plan(network=NetworkPlan(**network))
        callback = Callback(url)
        callback.open(context)
        return callback

    return make


def test_the_operators_own_address_needs_no_leave(opened: Any, server: Any) -> None:
    """The address that the program gives may be on this machine."""
    assert opened(f"{server.url}/done").deliver(Job("1", b""), {})
    assert opened(f"{server.url}/done", public=False).deliver(Job("1", b""), {})
    assert len(server.calls) == 2


@pytest.mark.parametrize("path", ["/done", "/admin/delete"])
def test_a_job_may_not_name_this_machine(opened: Any, server: Any, path: str) -> None:
    """A job's address is refused before anything is sent, also on the operator's own host to which a connection is open."""
    callback = opened(f"{server.url}/done")
    callback.deliver(Job("1", b""), {})
    with pytest.raises(DeliveryRejected, match=r"^ssrf\."):
        callback.deliver(Job("2", b"", attributes={"callback": f"{server.url}{path}"}), {})
    assert [call.path for call in server.calls] == ["/done"]


def test_what_the_plan_allows(opened: Any, server: Any) -> None:
    """A job may name what the Plan allows; the two kinds of requests share no connection."""
    callback = opened(f"{server.url}/done", allow=["127.0.0.1"])
    for job in (Job("1", b""), Job("2", b"", attributes={"callback": f"{server.url}/other"})):
        assert callback.deliver(job, {})
    assert [call.path for call in server.calls] == ["/done", "/other"]
    assert len({call.connection for call in server.calls}) == 2


def test_deny_holds_for_the_operator_too(opened: Any, server: Any) -> None:
    """A denied address gets nothing, whoever names it."""
    with pytest.raises(DeliveryRejected, match=r"^ssrf\.denied"):
        opened(f"{server.url}/done", deny=["127.0.0.1"]).deliver(Job("1", b""), {})
    assert server.calls == []

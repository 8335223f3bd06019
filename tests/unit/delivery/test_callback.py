"""HTTP POST of each result, to a real server."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import DeliveryFailed, DeliveryRejected, SettingsError
from headrace.base.records import Job
from headrace.delivery.callback import Callback

pytestmark = pytest.mark.usefixtures("way")


def job(server: Any, name: str = "job-1", **changes: Any) -> Job:
    """A job that names the server's address."""
    return Job(name, b"", attributes={"callback": f"{server.url}/done"}, **changes)


def test_the_body_is_the_result(server: Any, context: Any) -> None:
    """The body is JSON with the job's id and task, and the result, NumPy included; then the result is durable."""
    delivery = Callback()
    delivery.open(context)
    assert delivery.deliver(job(server, task="faces"), {"scores": np.array([0.5, 1.0]), "label": np.int64(3)}) is True
    (call,) = server.calls
    assert json.loads(call.body) == {"id": "job-1", "task": "faces", "result": {"scores": [0.5, 1.0], "label": 3}}
    assert call.headers["Content-Type"] == "application/json"
    assert call.path == "/done"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("order-7/photo-2", "order-7/photo-2"),
        ("with space", "with space"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("50%", "50%25"),
        ("a\r\nX-Evil: 1", "a%0D%0AX-Evil: 1"),
    ],
)
def test_the_id_is_the_idempotency_key(server: Any, context: Any, name: str, key: str) -> None:
    """A receiver can drop a second copy by its key, whatever characters the id has; they bring no further headers."""
    delivery = Callback()
    delivery.open(context)
    delivery.deliver(job(server, name), 1)
    (call,) = server.calls
    assert call.headers["Idempotency-Key"] == key
    assert json.loads(call.body)["id"] == name
    assert "X-Evil" not in call.headers


def test_both_deliveries_of_a_job_have_one_key(server: Any, context: Any) -> None:
    """A redelivered job has the same key."""
    delivery = Callback()
    delivery.open(context)
    for attempt in (1, 2):
        delivery.deliver(job(server, attempt=attempt), 1)
    assert {call.headers["Idempotency-Key"] for call in server.calls} == {"job-1"}


def test_headers_are_added(server: Any, context: Any) -> None:
    """The pipeline's own headers go along, and may replace the content type."""
    delivery = Callback(headers={"Authorization": "Bearer x", "Content-Type": "application/vnd.x+json"})
    delivery.open(context)
    delivery.deliver(job(server), 1)
    assert server.calls[0].headers["Authorization"] == "Bearer x"
    assert server.calls[0].headers["Content-Type"] == "application/vnd.x+json"


def test_the_jobs_address_goes_before_the_default(server: Any, context: Any) -> None:
    """A job that names an address is answered there, any other at the pipeline's."""
    delivery = Callback(f"{server.url}/default")
    delivery.open(context)
    delivery.deliver(job(server), 1)
    delivery.deliver(Job("job-2", b""), 1)
    assert [call.path for call in server.calls] == ["/done", "/default"]


def test_no_address(context: Any) -> None:
    """A result without an address can never be delivered."""
    delivery = Callback()
    delivery.open(context)
    with pytest.raises(DeliveryRejected, match="names no callback address and the pipeline has no default"):
        delivery.deliver(Job("job-1", b""), 1)


@pytest.mark.parametrize("address", [5, ["http://a"], {"url": "http://a"}])
def test_an_address_that_is_no_text(context: Any, address: object) -> None:
    """What a sender wrote in the address's place is rejected, not tried again."""
    delivery = Callback()
    delivery.open(context)
    with pytest.raises(DeliveryRejected, match=r"callback address is .*; expected text"):
        delivery.deliver(Job("job-1", b"", attributes={"callback": address}), 1)


@pytest.mark.parametrize("address", ["ftp://host/a", "file:///etc/passwd", "http://"])
def test_an_address_that_cannot_be_called(context: Any, address: str) -> None:
    """Only http and https can be called back."""
    delivery = Callback(address)
    delivery.open(context)
    with pytest.raises(DeliveryRejected):
        delivery.deliver(Job("job-1", b""), 1)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_statuses_that_take_it(server: Any, context: Any, status: int) -> None:
    """Every 2xx is an acceptance."""
    server.status = status
    delivery = Callback()
    delivery.open(context)
    assert delivery.deliver(job(server), 1) is True


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 410, 422])
def test_statuses_that_will_never_take_it(server: Any, context: Any, status: int) -> None:
    """Redirects, which a POST does not follow, and errors of ours are permanent."""
    server.status = status
    delivery = Callback(f"{server.url}/done?token=secret")
    delivery.open(context)
    with pytest.raises(DeliveryRejected) as caught:
        delivery.deliver(Job("job-1", b""), 1)
    assert str(caught.value) == f"{server.url}/done?... answered {status}, expected 2xx"
    assert len(server.calls) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_statuses_that_may_take_it_later(server: Any, context: Any, status: int) -> None:
    """What may work later is worth another try."""
    server.status = status
    delivery = Callback()
    delivery.open(context)
    with pytest.raises(DeliveryFailed, match=f"answered {status}, expected 2xx"):
        delivery.deliver(job(server), 1)


def test_a_server_that_is_not_there(server: Any, context: Any) -> None:
    """A receiver that restarts is worth another try."""
    server.server_close()
    delivery = Callback()
    delivery.open(context)
    with pytest.raises(DeliveryFailed):
        delivery.deliver(job(server), 1)


def test_a_result_that_json_cannot_carry(server: Any, context: Any) -> None:
    """It is rejected before anything is sent."""
    delivery = Callback()
    delivery.open(context)
    with pytest.raises(DeliveryRejected, match="cannot be written as JSON: it holds a value of type object"):
        delivery.deliver(job(server), {"a": object()})
    assert server.calls == []


def test_a_worker_keeps_its_connection(server: Any, context: Any) -> None:
    """Results of one worker go over one connection, also after a refusal."""
    delivery = Callback()
    delivery.open(context)
    for status in (200, 503, 200):
        server.status = status
        try:
            delivery.deliver(job(server), 1)
        except DeliveryFailed:
            assert status == 503
    assert len({call.connection for call in server.calls}) == 1


def test_workers_share_no_connection(server: Any, context: Any) -> None:
    """Each thread has a connection of its own, for a handle of libcurl serves one."""
    delivery = Callback()
    delivery.open(context)

    def work() -> None:
        for _ in range(3):
            delivery.deliver(job(server), 1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.calls) == 9
    assert len({call.connection for call in server.calls}) == 3
    assert context.counts["deliver.connections"] == 3
    assert context.counts["deliver.connect_microseconds"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 1}, r"\[stages\.deliver\.options\]: unknown key 'timeout'\. Did you mean 'timeout_seconds'\?"),
        ({"timeout_seconds": 0}, r"\[stages\.deliver\.options\]: timeout_seconds = 0\.0 is not possible"),
        ({"secret_env": ""}, r"secret_env = '' is not possible; allowed: the name of an environment variable"),
        ({"secret_file": ""}, r"secret_file = '' is not possible; allowed: the path of a file"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    """Unknown and impossible options are told before the first result."""
    with pytest.raises(SettingsError, match=message):
        Callback().open(SimpleNamespace(options=options))


@pytest.mark.parametrize("place", ["secret_env", "secret_file"])
def test_a_plan_cannot_switch_signing_off(place: str) -> None:
    """An empty place of the secrets, as an unset variable of a script leaves it, is refused in a Plan and in a program."""
    with pytest.raises(SettingsError, match=f"{place} = '' is not possible"):
        Callback(secret_env="CALLBACK_SECRETS").open(SimpleNamespace(options={place: ""}))
    with pytest.raises(SettingsError, match=f"{place} = '' is not possible"):
        Callback(**{place: ""})  # type: ignore[arg-type]


def test_attributes_go_along_with_the_result(server: Any, context: Any) -> None:
    """What the sender attached comes back, but for the address itself."""
    delivery = Callback()
    delivery.open(context)
    delivery.deliver(Job("a", b"", attributes={"callback": f"{server.url}/done", "order": "7"}), 1)
    assert json.loads(server.calls[0].body) == {"id": "a", "task": "", "attributes": {"order": "7"}, "result": 1}


def test_a_receiver_may_get_another_body(server: Any, context: Any) -> None:
    """Receivers that were there before need not change; signature and key stay."""
    delivery = Callback(body=lambda job, result: {"asset": job.id, "score": np.float32(result)})
    delivery.open(context)
    delivery.deliver(job(server), 0.5)
    assert json.loads(server.calls[0].body) == {"asset": "job-1", "score": 0.5}
    assert server.calls[0].headers["Idempotency-Key"] == "job-1"

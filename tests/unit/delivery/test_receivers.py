"""What the callback does about receivers that fail, are away, or want nothing more; on a clock that stands still."""

from __future__ import annotations

import contextlib
import email.utils
import json
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import standardwebhooks

from headrace.base.errors import DeliveryFailed, DeliveryPostponed, DeliveryRejected, SettingsError
from headrace.base.records import Job, Kept
from headrace.delivery.callback import Callback
from headrace.delivery.signing import Verifier
from headrace.testing import FakeClock

pytestmark = pytest.mark.usefixtures("way")

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDAAAA"


def opened(context: Any, clock: FakeClock | None = None, /, **options: Any) -> Callback:
    """A callback with options, on a clock."""
    delivery = Callback(clock=clock)
    context.options = options
    delivery.open(context)
    return delivery


def job(server: Any, path: str = "/done", name: str = "job-1") -> Job:
    """A job that names an address of the server."""
    return Job(name, b"", attributes={"callback": f"{server.url}{path}"})


def post(delivery: Callback, one: Job) -> type[Exception] | None:
    """Deliver, and return the kind of error."""
    try:
        delivery.deliver(one, 1)
    except (DeliveryFailed, DeliveryRejected) as error:
        return type(error)
    return None


# --- signatures


def test_callbacks_are_signed(server: Any, context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a secret in the environment each callback verifies, by the reference library too, under the job's id."""
    monkeypatch.setenv("MY_SECRET", SECRET)
    opened(context, secret_env="MY_SECRET").deliver(job(server), {"größe": 1.5})
    (call,) = server.calls
    assert Verifier(SECRET).verify(call.headers, call.body) == "job-1"
    assert standardwebhooks.Webhook(SECRET).verify(call.body, call.headers)["result"] == {"größe": 1.5}
    assert call.headers["Idempotency-Key"] == call.headers["webhook-id"]


@pytest.mark.parametrize("name", ["größe", "a\r\nX-Evil: 1", "50% off", " spaces ", "   ", "order-7/photo.2"])
def test_what_is_signed_is_what_is_sent(server: Any, context: Any, tmp_path: Any, name: str) -> None:
    """An id that no header can hold is signed as it stands in the header, and verifies as it arrives."""
    (tmp_path / "secrets").write_text(f"{OTHER}\n{SECRET}\n")
    opened(context, secret_file=str(tmp_path / "secrets")).deliver(job(server, name=name), 1)
    (call,) = server.calls
    for secret in (SECRET, OTHER):
        assert Verifier(secret).verify(call.headers, call.body) == call.headers["webhook-id"]
    assert json.loads(call.body)["id"] == name


def test_without_secrets_nothing_is_signed(server: Any, context: Any) -> None:
    """The id and the time go along all the same."""
    opened(context).deliver(job(server), 1)
    headers = {name.lower() for name in server.calls[0].headers}
    assert {"webhook-id", "webhook-timestamp"} <= headers
    assert "webhook-signature" not in headers


def test_the_code_may_name_the_place(server: Any, context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Plan's place goes before that of the code."""
    monkeypatch.setenv("CODE", SECRET)
    monkeypatch.setenv("PLAN", OTHER)
    for options, secret in (({}, SECRET), ({"secret_env": "PLAN"}, OTHER)):
        delivery = Callback(secret_env="CODE")
        delivery.open(SimpleNamespace(options=options, plan=context.plan, count=context.count, shared={}))
        delivery.deliver(job(server), 1)
        assert Verifier(secret).verify(server.calls[-1].headers, server.calls[-1].body)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"secret_env": "NOT_SET"}, "the environment variable NOT_SET .* is not set"),
        ({"secret_file": "/no/such/file"}, "the file /no/such/file .* cannot be read: No such file"),
        ({"secret_env": "A", "secret_file": "b"}, "both given"),
        ({"secret_env": SECRET}, r"secret_env holds a secret \(not shown\)"),
        ({"secret_env": [SECRET]}, r"secret_env holds a secret \(not shown\)"),
        ({"secret": SECRET}, r"secret holds a secret \(not shown\)"),
        ({"secret_env": "EMPTY"}, "EMPTY .*: no secret is given"),
        ({"secret_env": "WRONG"}, "WRONG .*: secret 1 .* does not start with whsec_"),
        ({"breaker_failures": 0}, "breaker_failures = 0 is not possible"),
        ({"retry_ratio": 2}, "retry_ratio = 2 is not possible"),
    ],
)
def test_wrong_options_are_told(
    context: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    """Before the first job, and no secret is shown."""
    monkeypatch.setenv("EMPTY", " \n")
    monkeypatch.setenv("WRONG", "hunter2")
    with pytest.raises(SettingsError, match=message) as caught:
        opened(context, **options)
    assert SECRET not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_secret_in_the_code_is_refused() -> None:
    """Where it is written, and without showing it."""
    with pytest.raises(SettingsError, match="secret_env holds a secret") as caught:
        Callback(secret_env=SECRET)
    assert SECRET not in str(caught.value)


# --- answers


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("text", ["7", "date"])
def test_retry_after_is_told(server: Any, context: Any, status: int, text: str) -> None:
    """In seconds or as a date, which is measured by the server's own clock."""
    server.status = status
    if text == "date":  # a server whose clock is a year behind
        then = 1_700_000_000
        server.headers = {"Date": email.utils.formatdate(then, usegmt=True)}
        text = email.utils.formatdate(then + 7, usegmt=True)
    server.headers["Retry-After"] = text
    with pytest.raises(DeliveryFailed) as caught:
        opened(context).deliver(job(server), 1)
    assert caught.value.retry_after_seconds == 7.0


@pytest.mark.parametrize("text", ["", "soon", "-5", "1e3", "Fri, 99 Foo 2026", "99999999999999999999"])
def test_a_retry_after_that_is_none(server: Any, context: Any, text: str) -> None:
    """What cannot be understood is not heeded, and no server can have itself left alone for more than an hour."""
    server.status, server.headers = 429, {"Retry-After": text}
    with pytest.raises(DeliveryFailed) as caught:
        opened(context).deliver(job(server), 1)
    assert caught.value.retry_after_seconds in (0.0, 3_600.0)


@pytest.mark.parametrize("extra", [{}, {"Content-Length": str(10**9)}])
def test_a_long_answer_is_cut(server: Any, context: Any, extra: dict[str, str]) -> None:
    """A receiver that takes the result and then talks without end has taken it; nothing is read beyond 64 KB."""
    server.body, server.headers = b"x" * 3_000_000, extra
    delivery = opened(context, timeout_seconds=20)
    assert delivery.deliver(job(server), 1) is True
    assert len(delivery._client(is_ours=False).post(f"{server.url}/a", b"", {}).body) <= 64 * 1024
    server.headers = {}
    server.status = 500
    with pytest.raises(DeliveryFailed, match="answered 500"):
        delivery.deliver(job(server), 1)


def test_gone_is_for_good(server: Any, context: Any) -> None:
    """An address that answered 410 is not called again, whatever it would say; others of its host are."""
    server.script = {"/gone": 410}
    delivery = opened(context)
    assert post(delivery, job(server, "/gone")) is DeliveryRejected
    server.script = {}
    with pytest.raises(DeliveryRejected, match="answered 410 Gone before and gets nothing more in this run"):
        delivery.deliver(job(server, "/gone"), 1)
    assert post(delivery, job(server, "/there")) is None
    assert [call.path for call in server.calls] == ["/gone", "/there"]
    assert context.counts["deliver.disabled_addresses"] == context.counts["deliver.refused_as_gone"] == 1


def test_answers_are_counted_by_class(server: Any, context: Any) -> None:
    """2xx, 3xx, 4xx, 5xx and no answer at all."""
    server.script = {"/201": 201, "/301": 301, "/404": 404, "/500": 500}
    delivery = opened(context)
    for path in server.script:
        post(delivery, job(server, path))
    post(delivery, Job("job-1", b"", attributes={"callback": "http://127.0.0.1:1/"}))
    counted = {name.removeprefix("deliver."): number for name, number in context.counts.items()}
    assert {name: counted[name] for name in sorted(counted) if "answer" in name} == {
        "answers_2xx": 1,
        "answers_3xx": 1,
        "answers_4xx": 1,
        "answers_5xx": 1,
        "no_answer": 1,
    }


# --- circuit breaker and retry budget


def test_a_destination_that_fails_is_left_alone(server: Any, context: Any) -> None:
    """After failures in a row nobody calls it, each job is told until when; other hosts are called as ever."""
    clock = FakeClock()
    delivery = opened(context, clock, breaker_failures=3, breaker_seconds=5)
    server.status = 503
    assert [post(delivery, job(server)) for _ in range(2)] == [DeliveryFailed] * 2
    assert post(delivery, job(server)) is DeliveryPostponed  # the third opens it: no use to try again here
    with pytest.raises(DeliveryPostponed, match="was not called: it failed too often") as caught:
        delivery.deliver(job(server), 1)
    assert caught.value.retry_after_seconds == 5.0
    assert len(server.calls) == 3
    # Another name of the same machine is another destination.
    other = Job("job-2", b"", attributes={"callback": f"http://localhost:{server.server_port}/"})
    assert post(delivery, other) is DeliveryFailed
    assert context.counts["deliver.breaker_opened"] == context.counts["deliver.refused_while_open"] == 1


def test_a_destination_that_is_back_is_called_again(server: Any, context: Any) -> None:
    """One probe finds out; then everything goes through."""
    clock = FakeClock()
    delivery = opened(context, clock, breaker_failures=1, breaker_seconds=5)
    server.status = 500
    assert post(delivery, job(server)) is DeliveryPostponed
    clock.advance(5.0)
    assert post(delivery, job(server)) is DeliveryPostponed  # the probe
    server.status = 200
    clock.advance(9.9)
    assert post(delivery, job(server)) is DeliveryPostponed  # twice as long now
    clock.advance(0.1)
    assert [post(delivery, job(server)) for _ in range(3)] == [None] * 3
    assert len(server.calls) == 5


@pytest.mark.parametrize("status", [400, 404, 410, 422, 301])
def test_a_refusal_is_no_failure(server: Any, context: Any, status: int) -> None:
    """A destination that answers what it does not like works: its breaker stays closed."""
    delivery = opened(context, breaker_failures=1)
    server.status = status
    assert [post(delivery, job(server, f"/{number}")) for number in range(3)] == [DeliveryRejected] * 3
    assert len(server.calls) == 3


def test_retries_have_a_budget(server: Any, context: Any) -> None:
    """A destination that fails every second time gets a few retries at once; what is beyond them waits in the queue."""
    delivery = opened(context, breaker_failures=5)
    kinds = []
    for number in range(100):
        server.status = 500 if number % 2 else 200
        kinds.append(post(delivery, job(server)))
    assert kinds.count(None) == 50
    assert kinds.count(DeliveryFailed) <= 10 + 10  # the reserve, and a tenth of the calls
    assert kinds.count(DeliveryPostponed) == 50 - kinds.count(DeliveryFailed)
    assert context.counts["deliver.retries_withheld"] == kinds.count(DeliveryPostponed)


def test_a_tenant_that_fails_leaves_its_neighbours_alone(server: Any, context: Any) -> None:
    """On a host that many share the address that fails is left alone, and every result for another is posted."""
    server.script = {"/hooks/bad": 500}
    delivery = opened(context, FakeClock(), breaker_failures=3)
    ends = [post(delivery, job(server, "/hooks/bad")) for _ in range(20)]
    assert [post(delivery, job(server, f"/hooks/{name}")) for name in ("a", "b", "a")] == [None] * 3
    assert ends[2:] == [DeliveryPostponed] * 18
    assert [call.path for call in server.calls].count("/hooks/bad") == 3


# --- kept results


def kept_and_taken_up(context: Any, keeper: dict[str, Any], taker: dict[str, Any], **changes: Any) -> Kept | None:
    """Keep a result of a job by one callback, and take it up by another."""
    one = Job("job-1", b"", task="faces")
    kept = opened(context, **keeper).keep(one, Kept({"a": [1.5, "ü"]}, 1000.0, 3))
    again = Job(changes.pop("id", "job-1"), b"", task=changes.pop("task", "faces"))
    again.kept = changes.pop("kept", kept).replace(*changes.pop("replace", (b"", b"")))
    return opened(context, **taker).take_up(again)


def test_a_kept_result_is_the_same_json(server: Any, context: Any) -> None:
    """Delivered later, by another worker, it is the same body byte for byte."""
    one = job(server)
    delivery = opened(context)
    result = {"score": 0.1, "text": "ü"}
    delivery.deliver(one, result)
    again = job(server)
    again.kept = delivery.keep(one, Kept(result, None, 0))
    taken = opened(context).take_up(again)
    assert taken is not None
    delivery.deliver(again, taken.result)
    assert server.calls[0].body == server.calls[1].body


def test_a_history_without_a_result_is_believed_if_it_is_sealed(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the result was too large to be kept, its time goes on; nobody else can say when it began."""
    one = Job("job-1", b"", task="faces")
    monkeypatch.setenv("S", SECRET)
    keeper = opened(context, secret_env="S")
    one.kept = keeper.keep(one, Kept(msgspec.UNSET, 1000.0, 3))
    assert len(one.kept) <= 256
    assert keeper.take_up(one) == Kept(msgspec.UNSET, 1000.0, 3)
    one.kept = one.kept.replace(b"1000.0", b"2000.0")
    assert keeper.take_up(one) is None


def test_a_kept_result_knows_since_when(context: Any) -> None:
    """The time of the first failure and the number of tries go along."""
    taken = kept_and_taken_up(context, {}, {})
    assert taken is not None
    assert (bytes(taken.result), taken.since, taken.tries) == ('{"a":[1.5,"ü"]}'.encode(), 1000.0, 3)


@pytest.mark.parametrize(
    ("changes", "believed"),
    [
        ({}, True),
        ({"id": "job-2"}, False),
        ({"task": "cars"}, False),
        ({"replace": (b"1.5", b"2.5")}, False),
        ({"replace": (b"1000.0", b"9000.0")}, False),
        ({"kept": b'{"v":1,"since":null,"tries":0,"seal":"","result":1}'}, False),
        ({"kept": b'{"v":2,"since":null,"tries":0,"seal":"","result":1}'}, False),
        ({"kept": b"\xff\x00 no JSON"}, False),
        ({"kept": b"[" * 100_000}, False),
    ],
)
def test_only_a_sealed_result_is_believed(
    context: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], believed: bool
) -> None:
    """Whoever can write to the queue cannot have a result signed that nobody worked out: the job is worked on again."""
    monkeypatch.setenv("S", SECRET)
    options = {"secret_env": "S"}
    assert (kept_and_taken_up(context, options, options, **changes) is not None) is believed
    assert context.counts["deliver.kept_refused"] == (not believed)


def test_a_seal_outlives_a_rotation(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept under the old secret is believed while the old one is still known, and no longer."""
    monkeypatch.setenv("OLD", SECRET)
    monkeypatch.setenv("BOTH", f"{OTHER} {SECRET}")
    monkeypatch.setenv("NEW", OTHER)
    assert kept_and_taken_up(context, {"secret_env": "OLD"}, {"secret_env": "BOTH"}) is not None
    assert kept_and_taken_up(context, {"secret_env": "OLD"}, {"secret_env": "NEW"}) is None


# --- answers that drip


class Dripping(threading.Thread):
    """Accepts one connection after another, reads the request, and answers byte by byte."""

    def __init__(self, at_once: bytes, then: bytes) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/"
        self.stopped = threading.Event()
        self._at_once, self._then = at_once, then

    def run(self) -> None:
        """Serve until the listener is closed."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(self._at_once)
                for byte in self._then * 1000:
                    if self.stopped.wait(0.05):
                        return
                    connection.sendall(bytes([byte]))
                self.stopped.wait()

    def stop(self) -> None:
        """Stop serving."""
        self.stopped.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.join(10)


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("at_once", "then", "error"),
    [
        (b"", b"HTTP/1.1 200 OK\r\n", DeliveryFailed),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n", DeliveryFailed),
    ],
)
def test_headers_that_drip(context: Any, at_once: bytes, then: bytes, error: type[Exception] | None) -> None:
    """Whatever keeps the connection busy, it ends with the timeout, and counts as no answer."""
    server = Dripping(at_once, then)
    server.start()
    began = time.monotonic()
    try:
        one = Job("job-1", b"", attributes={"callback": server.url})
        assert post(opened(context, timeout_seconds=0.5), one) is error
    finally:
        server.stop()
    assert time.monotonic() - began < 20


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("at_once", "then", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"x", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"", None),
        (b"HTTP/1.1 500 X\r\nContent-Length: 99999\r\n\r\n", b"x", DeliveryFailed),
        (b"HTTP/1.1 400 X\r\nContent-Length: 99999\r\n\r\n", b"x", DeliveryRejected),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n", b"", DeliveryRejected),
    ],
)
def test_a_body_that_does_not_end(context: Any, at_once: bytes, then: bytes, error: type[Exception] | None) -> None:
    """The status decides once all headers came: nobody waits for the timeout, and the receiver has answered."""
    server = Dripping(at_once, then)
    server.start()
    began = time.monotonic()
    try:
        one = Job("job-1", b"", attributes={"callback": server.url})
        assert post(opened(context, timeout_seconds=600), one) is error
    finally:
        server.stop()
    assert time.monotonic() - began < 60
    assert "deliver.no_answer" not in context.counts

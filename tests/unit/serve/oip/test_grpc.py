"""The gRPC server, asked by a plain client that knows nothing of its messages but the table of KServe's protocol."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.serve.oip.inference import Inference
from tests.unit.serve.http.test_front import certificate
from tests.unit.serve.oip.answering import AnsweringDoor, Ready, answering
from tests.unit.serve.oip.sums import Sums

grpc = pytest.importorskip("grpc")

from headrace.base.errors import SettingsError  # noqa: E402 - after the check that gRPC is there
from headrace.serve.http.limits import Limits  # noqa: E402
from headrace.serve.oip.grpc_front import GrpcFront  # noqa: E402
from headrace.serve.oip.grpc_messages import make_messages  # noqa: E402

MESSAGES = make_messages()


REGION = {"key": "shared_memory_region", "value": {"string_param": "r"}}
LABELS = {"key": "classification", "value": {"int64_param": 3}}


class Client:
    """A channel to a front over a door."""

    def __init__(self, front: GrpcFront, door: AnsweringDoor) -> None:
        self.front = front
        self.door = door
        host, port = front.address
        self._channel = grpc.insecure_channel(f"{host}:{port}")

    def call(self, name: str, message: Any = None, **options: Any) -> Any:
        """Return the answer of a call."""
        raw = message if isinstance(message, bytes) else (message or MESSAGES[f"{name}Request"]()).SerializeToString()
        call = self._channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
        return MESSAGES[f"{name}Response"].FromString(call(raw, timeout=options.pop("timeout", 30), **options))

    def refusal(self, name: str, message: Any, **options: Any) -> tuple[Any, str]:
        """Return status and code of a call that fails."""
        with pytest.raises(grpc.RpcError) as failed:
            self.call(name, message, **options)
        return failed.value.code(), dict(failed.value.trailing_metadata() or ()).get("headrace-code", "")

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def serving(work_on: Callable[[Any], Any], **options: Any) -> Iterator[Client]:
    """Serve for the length of a block."""
    with answering(work_on) as door:
        pipeline = hr.Pipeline(hr.items([]), module=Sums(), name="sums")
        front = GrpcFront(Inference(pipeline, door), options.pop("health", Ready()), **options)
        front.start()
        client = Client(front, door)
        try:
            yield client
        finally:
            client.close()
            front.close()


def test_messages_in_flight_share_a_limit() -> None:
    """What does not fit beside them is refused with what a client needs to try again, and fits once they are answered."""
    goes_on, is_in = threading.Event(), threading.Event()

    def work_on(item: Any) -> Any:
        is_in.set()
        assert goes_on.wait(30)
        return Sums.add_up(item)

    one = asked([[1, 2]])
    for client in serving(work_on, limits=Limits(total_bytes=int(1.5 * one.ByteSize()))):
        first = threading.Thread(target=client.call, args=("ModelInfer", one))
        first.start()
        assert is_in.wait(30)
        assert client.refusal("ModelInfer", one) == (grpc.StatusCode.UNAVAILABLE, "oip.total_bytes")
        assert client.front.counts == {"oip.total_bytes": 1}
        goes_on.set()
        first.join(30)
        client.call("ModelInfer", one)


def test_a_connection_without_calls_is_closed() -> None:
    """A plain socket that says nothing, and a channel between two calls, which opens another for the second."""
    for client in serving(Sums.add_up, limits=Limits(idle_seconds=0.3)):
        client.call("ServerLive")
        with socket.create_connection(client.front.address) as silent:
            silent.settimeout(30)
            silent.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))  # the preface alone
            assert list(iter(lambda: silent.recv(4096), b""))  # settings and goodbye, and then the end
        assert client.call("ServerLive").live


@pytest.fixture
def client() -> Iterator[Client]:
    """Open one."""
    yield from serving(Sums.add_up)


def asked(items: list[list[float]], **parts: Any) -> Any:
    """Return a request with raw contents."""
    array = np.array(items, "<f4")
    one = {"name": "input", "datatype": "FP32", "shape": array.shape}
    said = {"model_name": "sums", "inputs": [one], "raw_input_contents": [array.tobytes()], **parts}
    return MESSAGES["ModelInferRequest"](**said)


def test_raw_contents_are_answered_so(client: Client) -> None:
    """With id and plan; parameters choose the priority."""
    urgent = {"key": "priority", "value": {"uint64_param": 1}}
    said = client.call("ModelInfer", asked([[1, 2], [3, 4]], id="a", parameters=[urgent]))
    assert (said.model_name, said.model_version, said.id) == ("sums", "1", "a")
    assert said.parameters[0].value.string_param == "plan-1"
    assert [(one.name, one.datatype, list(one.shape)) for one in said.outputs] == [
        ("sum", "FP64", [2, 1]),
        ("parts", "FP32", [2, 2]),
    ]
    assert np.frombuffer(said.raw_output_contents[0]).tolist() == [3, 7]
    assert {work.priority for work in client.door.works} == {0}
    assert all(work.deadline_ns is not None for work in client.door.works)


def test_typed_contents_are_read(client: Client) -> None:
    """The repeated fields of the tensor itself."""
    one = {"name": "input", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1, 2]}}
    said = client.call(
        "ModelInfer", MESSAGES["ModelInferRequest"](model_name="sums", inputs=[one], outputs=[{"name": "sum"}])
    )
    assert np.frombuffer(said.raw_output_contents[0]).tolist() == [3]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"raw_input_contents": [b"123"]}, "oip.size"),
        ({"raw_input_contents": [b""] * 2}, "oip.size"),
        ({"raw_input_contents": []}, "oip.size"),
        ({"inputs": []}, "oip.size"),
        ({"inputs": [], "raw_input_contents": []}, "oip.inputs"),
        ({"inputs": [{"name": "input", "datatype": "FP32", "shape": [2**62, 2]}]}, "oip.items"),
        ({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, -2]}]}, "oip.shape"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}]}, "oip.unknown_input"),
        ({"inputs": [{"name": "input", "datatype": "FP64", "shape": [1, 2]}]}, "oip.datatype"),
        ({"outputs": [{"name": "mean"}]}, "oip.output"),
        ({"outputs": [{"name": "sum", "parameters": [REGION]}]}, "oip.shared_memory"),
        ({"outputs": [{"name": "sum"}] * 10_000}, "oip.outputs"),
        ({"outputs": [{"name": "sum", "parameters": [LABELS]}]}, "oip.classification"),
        ({"parameters": [{"key": "timeout", "value": {"bool_param": True}}]}, "oip.parameter"),
    ],
)
def test_what_is_no_request_is_refused(client: Client, change: dict[str, Any], code: str) -> None:
    """As an invalid argument, with a code beside it."""
    assert client.refusal("ModelInfer", asked([[1, 2]], **change)) == (grpc.StatusCode.INVALID_ARGUMENT, code)


def test_other_failures_have_their_own_status(client: Client) -> None:
    """Unknown models, garbage, items that fail, a door that is closed."""
    status = grpc.StatusCode
    assert client.refusal("ModelInfer", asked([[1, 2]], model_name="x")) == (status.NOT_FOUND, "oip.unknown_model")
    assert client.refusal("ModelInfer", b"\xff\xff") == (status.INVALID_ARGUMENT, "oip.message")
    assert client.refusal("ModelInfer", asked([[-1, 2]])) == (status.INVALID_ARGUMENT, "decode.negative")
    client.door.refuses_from = 0
    assert client.refusal("ModelInfer", asked([[1, 2]])) == (status.RESOURCE_EXHAUSTED, "serve.busy")


def test_the_clients_time_is_the_deadline(client: Client) -> None:
    """And what waits when it has passed is cancelled."""
    before = time.monotonic_ns()
    client.call("ModelInfer", asked([[1, 2]]), timeout=20)
    deadline_ns = client.door.works[0].deadline_ns
    assert deadline_ns is not None
    assert 0 < deadline_ns - before < 21e9


def test_items_belong_to_the_trace_of_their_call(client: Client) -> None:
    """As over HTTP: a good `traceparent` becomes an attribute, a bad one is left out."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    client.call("ModelInfer", asked([[1, 2]]), metadata=[("traceparent", trace)])
    client.call("ModelInfer", asked([[1, 2]]), metadata=[("traceparent", "no trace")])
    assert [work.attributes for work in client.door.works] == [{"traceparent": trace}, {}]


def test_a_client_that_cancels_has_its_items_cancelled() -> None:
    """Those that wait are not begun."""
    begun, may_end = threading.Event(), threading.Event()

    def wait(item: np.ndarray) -> dict[str, Any]:
        begun.set()
        assert may_end.wait(30)
        return {}

    serve = serving(wait)
    client = next(serve)
    call = client._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    future = call.future(asked([[1, 2], [3, 4]]).SerializeToString())
    assert begun.wait(30)
    future.cancel()
    for _ in range(2):
        assert client.door.num_cancelled.acquire(timeout=30)
    assert client.door.cancelled == {"0", "1"}
    may_end.set()
    assert next(serve, None) is None


def test_the_service_and_its_model_describe_themselves(client: Client) -> None:
    """As over HTTP."""
    client.call("ModelInfer", asked([[1, 2]]))
    named = {"name": "sums", "version": "1"}
    assert client.call("ServerLive").live
    assert client.call("ServerReady").ready
    assert client.call("ModelReady", MESSAGES["ModelReadyRequest"](**named)).ready
    for other in ({"name": "x"}, {"name": "sums", "version": "7"}):  # over HTTP clients take the 404 for a no
        assert not client.call("ModelReady", MESSAGES["ModelReadyRequest"](**other)).ready
    assert "statistics" in client.call("ServerMetadata").extensions
    metadata = client.call("ModelMetadata", MESSAGES["ModelMetadataRequest"](**named))
    assert list(metadata.inputs[0].shape) == [-1, 2]
    config = client.call("ModelConfig", MESSAGES["ModelConfigRequest"](**named)).config
    assert (config.output[0].data_type, config.dynamic_batching.priority_levels) == (12, 2)
    (counted,) = client.call("ModelStatistics").model_stats
    assert counted.inference_stats.success.count == 1
    assert client.call("RepositoryIndex").models[0].state == "READY"
    assert client.refusal("ModelMetadata", MESSAGES["ModelMetadataRequest"](name="x"))[1] == "oip.unknown_model"


def test_a_service_that_is_not_ready_says_so() -> None:
    """The calls still succeed."""
    for client in serving(Sums.add_up, health=Ready("cold")):
        assert not client.call("ServerReady").ready
        assert client.call("RepositoryIndex").models[0].state == "UNAVAILABLE"
        assert not client.call("RepositoryIndex", MESSAGES["RepositoryIndexRequest"](ready=True)).models
        assert not client.call("ServerLive").live


def test_a_token_is_asked_for() -> None:
    """Of every call, where one is set."""
    for client in serving(Sums.add_up, token="secret"):
        for given in ([], [("authorization", "Bearer wrong")], [("authorization", "secret")]):
            refused = client.refusal("ServerLive", None, metadata=given)
            assert refused == (grpc.StatusCode.UNAUTHENTICATED, "http.token")
        assert client.call("ServerLive", metadata=[("authorization", "Bearer secret")]).live


def test_a_message_beyond_the_limit_is_refused() -> None:
    """By gRPC itself, before it is read."""
    for client in serving(Sums.add_up, limits=Limits(body_bytes=1_000)):
        status, _ = client.refusal("ModelInfer", b"\0" * 100_000)
        assert status == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_draining_answers_what_is_inside() -> None:
    """And lets nobody else in."""
    begun, may_end = threading.Event(), threading.Event()

    def wait(item: np.ndarray) -> float:
        begun.set()
        assert may_end.wait(30)
        return 7.0

    for client in serving(wait):
        call = client._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        inside = call.future(asked([[1, 2]]).SerializeToString())
        assert begun.wait(30)
        drain = threading.Thread(target=client.front.drain, args=(30,))
        drain.start()
        with grpc.insecure_channel("{}:{}".format(*client.front.address)) as other, pytest.raises(grpc.RpcError):
            keep_calling(other)  # until the other thread has closed the port
        may_end.set()
        said = MESSAGES["ModelInferResponse"].FromString(inside.result(30))
        assert np.frombuffer(said.raw_output_contents[0]).tolist() == [7]
        drain.join()


def keep_calling(channel: Any) -> None:
    """Call until that fails, or is not answered: a connection may be made just as the port closes, which nobody takes then."""
    while True:
        channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=5)


def test_calls_are_encrypted(tmp_path: Path) -> None:
    """With the certificate and key of the service."""
    files = certificate(tmp_path)
    for client in serving(Sums.add_up, tls=files):
        assert client.front.url.startswith("grpcs://")
        trusted = grpc.ssl_channel_credentials(Path(files[0]).read_bytes())
        with grpc.secure_channel(f"localhost:{client.front.address[1]}", trusted) as channel:
            raw = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=30)
        assert MESSAGES["ServerLiveResponse"].FromString(raw).live
        assert client.refusal("ServerLive", None)[0] == grpc.StatusCode.UNAVAILABLE


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Before anything is served."""
    with pytest.raises(SettingsError, match=r"http\.tls"):
        next(serving(Sums.add_up, tls=(str(tmp_path / "none"), str(tmp_path / "none"))))


def test_a_port_in_use_is_said_to_be(client: Client) -> None:
    """To whoever starts the second one."""
    inference = Inference(hr.Pipeline(hr.items([]), module=Sums()), client.door)
    other = GrpcFront(inference, Ready(), port=client.front.address[1])
    with pytest.raises(SettingsError, match=r"grpc\.address"):
        other.start()

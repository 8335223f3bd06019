"""The routes, without a connection: what a client is answered, and what its jobs are."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.serve.door import Ended
from headrace.serve.http.routes import Routes
from headrace.serve.oip.inference import Inference
from headrace.serve.oip.routes import OipRoutes
from tests.unit.serve.asking import Asker
from tests.unit.serve.oip.answering import AnsweringDoor, Ready, answering
from tests.unit.serve.oip.sums import Sums


class Service:
    """Routes over a door that answers in a thread."""

    def __init__(self, door: AnsweringDoor, health: Ready | None = None) -> None:
        self.door = door
        self.health = health or Ready()
        pipeline = hr.Pipeline(hr.items([]), module=Sums(), name="sums")
        self.routes = Routes()
        OipRoutes(Inference(pipeline, door), self.health).add_to(self.routes)

    def ask(self, method: str, path: str, value: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and JSON of an answer."""
        asker = Asker()
        request = asker.request(method, path, b"" if value is None else json.dumps(value).encode(), **headers)
        answer = self.routes.answer(request) or asker.wait()
        return answer.status, json.loads(answer.body)

    def infer(self, data: Any, **parts: Any) -> tuple[int, Any]:
        """Return the answer to items."""
        one = {"name": "input", "datatype": "FP32", "shape": [len(data), 2], "data": data}
        return self.ask("POST", "/v2/models/sums/infer", {"inputs": [one], **parts})


@pytest.fixture
def service() -> Iterator[Service]:
    """Open one."""
    with answering(Sums.add_up) as door:
        yield Service(door)


def test_a_request_of_items_is_as_many_jobs(service: Service) -> None:
    """And its response has their results in their order."""
    status, said = service.infer([[1, 2], [3, 4]], id="a", parameters={"priority": 1})
    assert status == 200
    assert said == {
        "model_name": "sums",
        "model_version": "1",
        "id": "a",
        "parameters": {"plan_id": "plan-1"},
        "outputs": [
            {"name": "sum", "datatype": "FP64", "shape": [2, 1], "data": [3.0, 7.0]},
            {"name": "parts", "datatype": "FP32", "shape": [2, 2], "data": [1.0, 2.0, 3.0, 4.0]},
        ],
    }
    assert [work.payload.tolist() for work in service.door.works] == [[1, 2], [3, 4]]
    assert {(work.task, work.priority, work.deadline_ns) for work in service.door.works} == {("", 0, None)}


def test_outputs_are_chosen(service: Service) -> None:
    """By name; one that is not there is an error that names those that are."""
    status, said = service.infer([[1, 2]], outputs=[{"name": "sum"}])
    assert (status, [one["name"] for one in said["outputs"]]) == (200, ["sum"])
    status, said = service.infer([[1, 2]], outputs=[{"name": "mean"}])
    assert (status, said["code"]) == (400, "oip.output")
    assert "sum, parts" in said["error"]


def test_a_failed_item_is_named(service: Service) -> None:
    """And the others' results go nowhere."""
    status, said = service.infer([[1, 2], [-1, 2], [3, 4]])
    assert (status, said["code"]) == (422, "decode.negative")
    assert said["error"].startswith("item 1 of 3: decode.negative")


def test_a_refused_item_refuses_the_request(service: Service) -> None:
    """What was let in before it is cancelled, and the client is told when to come again."""
    service.door.refuses_from = 1
    asker = Asker()
    one = {"name": "input", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}
    request = asker.request("POST", "/v2/models/sums/infer", json.dumps({"inputs": [one]}).encode())
    answer = service.routes.answer(request) or asker.wait()
    assert (answer.status, dict(answer.headers)["Retry-After"]) == (429, "3")
    assert service.door.cancelled == {"0"}
    assert len(asker.answers) <= 1


def test_what_was_not_done_says_when_to_come_again() -> None:
    """A service that stops, or has too little memory, ends items with 503."""
    with answering(Sums.add_up) as door:
        door._answer = lambda job_id, work: Ended(job_id, code="serve.stopping", reason="it stops", status=503)
        asker, service = Asker(), Service(door)
        one = {"name": "input", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
        request = asker.request("POST", "/v2/models/sums/infer", json.dumps({"inputs": [one]}).encode())
        answer = service.routes.answer(request) or asker.wait()
    assert (answer.status, dict(answer.headers)["Retry-After"]) == (503, "1")


def test_a_timeout_is_a_deadline(service: Service) -> None:
    """From the first byte on, in microseconds."""
    before = time.monotonic_ns()
    service.infer([[1, 2]], parameters={"timeout": 3_000_000})
    after = time.monotonic_ns()
    deadline_ns = service.door.works[0].deadline_ns
    assert deadline_ns is not None
    assert before <= deadline_ns - 3_000_000_000 <= after


@pytest.mark.parametrize(("parameter", "left_ns"), [(900, 900_000), (3_000, 2_000_000)])
def test_the_earlier_of_two_times_counts(service: Service, parameter: int, left_ns: int) -> None:
    """That of the parameter and that of the header both begin with the first byte."""
    one = {"name": "input", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    body = json.dumps({"inputs": [one], "parameters": {"timeout": parameter}}).encode()
    request = Asker().request("POST", "/v2/models/sums/infer", body, request_timeout_ms="2")
    request.received_ns = 10**15
    service.routes.answer(request)
    assert [work.deadline_ns for work in service.door.works] == [10**15 + left_ns]


def test_a_client_that_goes_away_cancels_its_items() -> None:
    """Also if it went before its items were let in; an answer to it is not tried twice."""
    begun, may_end = threading.Event(), threading.Event()

    def wait(item: np.ndarray) -> dict[str, Any]:
        begun.set()
        assert may_end.wait(30)
        return {}

    one = {"name": "input", "datatype": "FP32", "shape": [3, 2], "data": [1] * 6}
    with answering(wait) as door:
        service = Service(door)
        request = Asker().request("POST", "/v2/models/sums/infer", json.dumps({"inputs": [one]}).encode())
        assert service.routes.answer(request) is None
        assert begun.wait(30)
        request.note_gone()
        assert door.cancelled == {"0", "1", "2"}
        request = Asker().request("POST", "/v2/models/sums/infer", json.dumps({"inputs": [one]}).encode())
        request.is_gone = True
        service.routes.answer(request)
        assert door.cancelled == {str(job) for job in range(6)}
        may_end.set()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v2/models/other", 404, "oip.unknown_model"),
        ("GET", "/v2/models/sums/versions/2", 404, "oip.unknown_version"),
        ("GET", "/v2/models/other/ready", 404, "oip.unknown_model"),
        ("POST", "/v2/models/other/infer", 404, "oip.unknown_model"),
        ("POST", "/v2/models/sums/versions/x/infer", 404, "oip.unknown_version"),
        ("POST", "/v2/models/sums/infer", 400, "oip.json"),
        ("GET", "/v2/models/sums/infer", 405, "http.method"),
        ("GET", "/v2/nothing", 404, "http.path"),
    ],
)
def test_errors_are_json(service: Service, method: str, path: str, status: int, code: str) -> None:
    """Clients of the protocol break on anything else."""
    got, said = service.ask(method, path)
    assert (got, said["code"]) == (status, code)
    assert isinstance(said["error"], str)


def test_a_compressed_body_is_refused(service: Service) -> None:
    """Nothing is unpacked that a stranger packed."""
    got, said = service.ask("POST", "/v2/models/sums/infer", {}, content_encoding="gzip")
    assert (got, said["code"]) == (415, "oip.encoding")


def test_the_service_and_its_model_describe_themselves(service: Service) -> None:
    """Server, health, model, configuration, index; with and without a version."""
    service.infer([[1, 2]])
    for root in ("/v2", "/v2/"):
        assert service.ask("GET", root)[1]["extensions"][0] == "binary_tensor_data"
    assert service.ask("GET", "/v2/health/live") == (200, {"live": True})
    assert service.ask("GET", "/v2/health/ready") == (200, {"ready": True})
    for place in ("/v2/models/sums", "/v2/models/sums/versions/1"):
        assert service.ask("GET", f"{place}/ready") == (200, {"name": "sums", "ready": True})
        assert [one["name"] for one in service.ask("GET", place)[1]["outputs"]] == ["sum", "parts"]
        assert service.ask("GET", f"{place}/config")[1]["output"][0]["data_type"] == "TYPE_FP64"
    index = [{"name": "sums", "version": "1", "state": "READY", "reason": ""}]
    for wanted in ({}, {"ready": True}, None):
        assert service.ask("POST", "/v2/repository/index", wanted) == (200, index)


def test_what_is_not_ready_says_why(service: Service) -> None:
    """With a status that takes it out of a load balancer."""
    service.health.why_not = "models are being loaded"
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/sums/ready"):
        status, said = service.ask("GET", path)
        assert (status, "models are being loaded" in said["error"]) == (503, True)
    assert service.ask("POST", "/v2/repository/index")[1][0]["state"] == "UNAVAILABLE"
    assert service.ask("POST", "/v2/repository/index", {"ready": True}) == (200, [])
    status, said = service.ask("POST", "/v2/repository/index", {"ready": "yes"})
    assert (status, said["code"]) == (400, "oip.json")


def test_requests_are_counted(service: Service) -> None:
    """By how they ended, with their items."""
    service.infer([[1, 2], [3, 4]])
    service.infer([[-1, 2]])
    for path in ("/v2/models/sums/stats", "/v2/models/stats"):
        (said,) = service.ask("GET", path)[1]["model_stats"]
        counts = said["inference_stats"]
        assert (said["name"], said["version"], said["inference_count"]) == ("sums", "1", 2)
        assert (counts["success"]["count"], counts["fail"]["count"]) == (1, 1)
        assert counts["success"]["ns"] > 0

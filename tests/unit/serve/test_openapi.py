"""The OpenAPI document tells of the routes that there are, and of no others."""

import json
from typing import Any

from openapi_spec_validator import OpenAPIV31SpecValidator

import headrace as hr
from headrace.serve.http.routes import Routes
from headrace.serve.openapi.document import describe
from headrace.serve.openapi.operations import OPERATIONS, QUEUED, find_operation
from headrace.serve.queue_api import QueueApi
from headrace.serve.service import Service
from headrace.testing import MemoryQueue
from tests.unit.serve.asking import Asker, Later


class Texts(hr.Module):
    """Of two tasks."""

    input = hr.TextInput()

    def process(self, batch: list[str]) -> list[int]:
        """Return lengths."""
        return [len(one) for one in batch]


def routes_of_a_service() -> tuple[Routes, list[dict[str, Any]]]:
    """Return all routes of a service, and what its page has to know of its tasks."""
    service = Service(hr.Pipeline(hr.items([]), modules={"long": Texts(), "short": Texts()}), {})
    service.begin(lambda call: None, lambda seconds, call: None, has_token=True)
    return service.routes, [model.outline() for model in service.inference.models.values()]


def test_every_route_is_told_and_every_row_is_a_route() -> None:
    """No route is forgotten in the table, and the table names none that is not there."""
    routes, _ = routes_of_a_service()
    assert [route for route in routes.listed() if find_operation(*route) is None] == []
    assert set(OPERATIONS) <= set(routes.listed())
    answer = routes.answer(Asker().request("GET", "/openapi.json"))
    told = json.loads(answer.body)
    assert {(method.upper(), path) for path, methods in told["paths"].items() for method in methods} == {
        (method, path.replace("*}", "}")) for method, path in routes.listed()
    }


def test_the_document_is_valid() -> None:
    """By the published validator, with a token and without; every reference leads somewhere."""
    routes, tasks = routes_of_a_service()
    for has_token in (True, False):
        document = json.loads(json.dumps(describe(routes, tasks, has_token=has_token)))
        assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []


def test_a_queues_front_tells_only_what_it_takes() -> None:
    """A generated client has no parameter that would be refused, and waits for no result."""
    routes = Routes()
    QueueApi(MemoryQueue(), 10, Later()).add_to(routes)
    told = describe(routes, (), has_token=False, instead=QUEUED)["paths"]
    job = told["/v1/jobs"]["post"]
    assert {one["name"] for one in job["parameters"] if one["in"] == "query"} == {"callback", "id", "task"}
    assert set(job["responses"]) == {"202", "400", "413", "415", "429", "503"}


def test_tasks_and_the_token_are_told() -> None:
    """A client knows which tasks there are, and which routes want a token."""
    routes, tasks = routes_of_a_service()
    told = describe(routes, tasks, has_token=True)
    job = told["paths"]["/v1/jobs"]["post"]
    assert next(one["schema"]["enum"] for one in job["parameters"] if one["name"] == "task") == ["long", "short"]
    assert [one["takes"] for one in told["x-headrace-tasks"]] == ["text", "text"]
    assert job["security"] == [{"token": []}]
    assert not any("security" in told["paths"][path]["get"] for path in ("/", "/livez", "/readyz"))


def test_a_service_in_front_of_a_queue_tells_only_what_it_has() -> None:
    """Jobs come in; there are no results to ask for, and no models."""
    routes = Routes()
    QueueApi(MemoryQueue(), 10, Later()).add_to(routes)
    assert set(describe(routes, (), has_token=False)["paths"]) == {"/v1/jobs", "/livez", "/readyz"}

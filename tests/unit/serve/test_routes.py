"""Paths find their handlers, and what has none gets a coded answer."""

import json

import pytest

from headrace.serve.http.request import Answer
from headrace.serve.http.routes import Routes
from tests.unit.serve.asking import Asker


@pytest.fixture
def routes() -> Routes:
    """Routes."""
    routes = Routes()
    routes.add("GET", "/a", lambda request: Answer(200, b"a"))
    routes.add("POST", "/a", lambda request: Answer(201))
    routes.add("GET", "/m/{model}", lambda request, model: Answer(200, model.encode()))
    routes.add(
        "GET", "/m/{model}/v/{version}", lambda request, model, version: Answer(200, f"{model}-{version}".encode())
    )
    routes.add("GET", "/j.x/{job_id*}", lambda request, job_id: Answer(200, job_id.encode()))
    return routes


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/a", 200, b"a"),
        ("HEAD", "/a", 200, b"a"),
        ("POST", "/a", 201, b""),
        ("GET", "/m/one", 200, b"one"),
        ("GET", "/m/one/v/2", 200, b"one-2"),
        ("GET", "/j.x/a/b", 200, b"a/b"),
    ],
)
def test_a_path_finds_its_handler(routes: Routes, method: str, path: str, status: int, body: bytes) -> None:
    """A path finds its handler."""
    answer = routes.answer(Asker().request(method, path))
    assert (answer.status, answer.body) == (status, body)


@pytest.mark.parametrize("path", ["/", "/b", "/m/", "/m/one/v", "/m/one/v/2/3", "/jxx/a", "/a/"])
def test_what_is_nowhere_is_404(routes: Routes, path: str) -> None:
    """What is nowhere is 404."""
    answer = routes.answer(Asker().request("GET", path))
    assert (answer.status, json.loads(answer.body)["code"]) == (404, "http.path")


def test_a_wrong_method_is_told_which_are_right(routes: Routes) -> None:
    """A wrong method is told which are right."""
    answer = routes.answer(Asker().request("DELETE", "/a"))
    assert (answer.status, dict(answer.headers)["Allow"]) == (405, "GET, POST")

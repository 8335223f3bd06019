"""The OpenAPI document of the routes that a service has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from headrace import __version__
from headrace.serve.http.request import json_answer
from headrace.serve.http.routes import Routes
from headrace.serve.openapi.operations import Operation, find_operation
from headrace.serve.openapi.schemas import SCHEMAS

_Rows = Mapping[tuple[str, str], Operation]
_NONE: _Rows = {}
_PLACE = re.compile(r"\{([a-z_]+)\*?\}")
_RETRY = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}


def add_openapi(routes: Routes, tasks: Sequence[Mapping[str, Any]], *, has_token: bool, instead: _Rows = _NONE) -> None:
    """Add `/openapi.json`, which tells of all routes that were added before.

    Args:
        routes: Of the service.
        tasks: What the page at `/` has to know of each task: `task`, `model`, `takes` (image, text, bytes or array), `input`.
        has_token: Whether clients must send a token.
        instead: Rows that take the place of those in the table of operations.
    """
    routes.add("GET", "/openapi.json", lambda request: answer)
    answer = json_answer(200, describe(routes, tasks, has_token=has_token, instead=instead))


def describe(
    routes: Routes, tasks: Sequence[Mapping[str, Any]], *, has_token: bool, instead: _Rows = _NONE
) -> dict[str, Any]:
    """Return the document; see `add_openapi`. Routes without a row in the table of operations are left out."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path in routes.listed():
        operation = instead.get((method, path)) or find_operation(method, path)
        if operation is not None:
            told = _operation(operation, _PLACE.findall(path), tasks, has_token=has_token)
            paths.setdefault(_PLACE.sub(r"{\1}", path), {})[method.lower()] = told
    components: dict[str, Any] = {"schemas": SCHEMAS}
    if has_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "headrace serve", "version": __version__},
        "servers": [{"url": "./"}],  # relative: the service may be mounted in another
        "paths": paths,
        "components": components,
        "x-headrace-tasks": list(tasks),
    }


def _operation(
    operation: Operation, places: Sequence[str], tasks: Sequence[Mapping[str, Any]], *, has_token: bool
) -> dict[str, Any]:
    query = dict(operation.query)
    if "task" in query and tasks:
        query["task"] = {**query["task"], "enum": [one["task"] for one in tasks]}
    told: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": [
            *(_parameter(name, "path", {"type": "string"}) for name in places),
            *(_parameter(name, "query", schema) for name, schema in query.items()),
            *(_parameter(name, "header", schema) for name, schema in operation.headers.items()),
        ],
        "responses": {str(status): _answer(status, schema) for status, schema in operation.answers.items()},
    }
    if operation.bodies:
        told["requestBody"] = {"content": {kind: _content(schema) for kind, schema in operation.bodies.items()}}
    if has_token and not operation.is_open:
        told["security"] = [{"token": []}]
        told["responses"]["401"] = _answer(401, "Error")
    return told


def _parameter(name: str, place: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _answer(status: int, schema: str | None) -> dict[str, Any]:
    kind = "application/json" if schema else "text/html"
    told: dict[str, Any] = {"description": HTTPStatus(status).phrase, "content": {kind: _content(schema)}}
    return {**told, "headers": _RETRY} if status in (429, 503) else told


def _content(schema: str | None) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{schema}"}} if schema else {}

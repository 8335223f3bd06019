"""One row for each route that a service may have: what it does, takes and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_JSON, _BYTES = "application/json", "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What is told of a method of a path."""

    summary: str
    answers: Mapping[int, str | None]
    """{status: name of the schema of its JSON}; None: not JSON. Errors that every route may answer are not named."""
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """{parameter: its schema}."""
    headers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bodies: Mapping[str, str | None] = field(default_factory=dict)
    """{Content-Type: name of the schema}; None: bytes. Empty: it takes no body."""
    is_open: bool = False
    """Whether it is answered without a token."""


_FLAG = {"type": "string", "enum": ["0", "1"]}
_FAILED = {400: "Error", 413: "Error", 422: "Error", 429: "Error", 500: "Error", 503: "Error", 504: "Error"}
_TIMEOUT = {
    "Request-Timeout-Ms": {
        "type": "integer",
        "minimum": 1,
        "description": "how long the client waits for its answer, ms",
    }
}
_HEALTH = {200: "Health", 503: "Health"}
_TOLD_MODEL = {200: "ModelMetadata", 404: "Error"}

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/"): Operation(summary="A page on which to try the service", answers={200: None}, is_open=True),
    ("GET", "/openapi.json"): Operation(summary="This document", answers={200: "OpenApi"}),
    ("GET", "/livez"): Operation(summary="Whether no call of a stage hangs", answers=_HEALTH, is_open=True),
    ("GET", "/readyz"): Operation(summary="Whether items go through the whole pipeline", answers=_HEALTH, is_open=True),
    ("POST", "/v1/jobs"): Operation(
        summary="Do a job: its result comes back now, or later",
        query={
            "callback": {"type": "string", "description": "address that is sent the result; the answer is 202"},
            "id": {"type": "string", "description": "the job's id; one is made if it is left out"},
            "task": {"type": "string", "description": "which module of the pipeline"},
            "wait": {"type": "string", "description": "time, such as 2s, after which 202 with the id is answered"},
            "priority": {**_FLAG, "default": "1", "description": "0: before all others"},
            "timings": {**_FLAG, "default": "0", "description": "1: `Server-Timing` says how long each stage took"},
        },
        headers={
            **_TIMEOUT,
            "Idempotency-Key": {"type": "string", "description": "the job's id where the request names none"},
            "Prefer": {"type": "string", "description": "respond-async: answer 202 with the id at once"},
        },
        bodies={_BYTES: None, "image/*": None, "multipart/form-data": "Form", _JSON: "Job"},
        answers={200: "Result", 202: "Working", 409: "Error", 415: "Error", 424: "Error", **_FAILED},
    ),
    ("GET", "/v1/jobs/{job_id*}"): Operation(
        summary="How it stands with a job that was answered 202",
        answers={200: "ResultOrWorking", 404: "Error", **_FAILED},
    ),
    ("POST", "/v1/feedback"): Operation(
        summary="What users say of an answer: counts for or against a canary",
        bodies={_JSON: "Feedback"},
        answers={202: "Working", 400: "Error", 404: "Error"},
    ),
    ("GET", "/v2"): Operation(summary="The server, by the Open Inference Protocol", answers={200: "Anything"}),
    ("GET", "/v2/health/live"): Operation(summary="As /livez", answers={200: "Anything", 503: "Error"}),
    ("GET", "/v2/health/ready"): Operation(summary="As /readyz", answers={200: "Anything", 503: "Error"}),
    ("GET", "/v2/models/stats"): Operation(summary="Counts and times of all models", answers={200: "Anything"}),
    ("POST", "/v2/repository/index"): Operation(
        summary="Which models there are", bodies={_JSON: "Anything"}, answers={200: "List"}
    ),
    ("GET", "/v2/models/{model}"): Operation(summary="What a model takes and gives", answers=_TOLD_MODEL),
    ("GET", "/v2/models/{model}/config"): Operation(
        summary="A model's configuration, as Triton's clients read it", answers={200: "Anything", 404: "Error"}
    ),
    ("GET", "/v2/models/{model}/stats"): Operation(
        summary="Counts and times of a model", answers={200: "Anything", 404: "Error"}
    ),
    ("GET", "/v2/models/{model}/ready"): Operation(
        summary="Whether a model answers", answers={200: "Anything", 404: "Error", 503: "Error"}
    ),
    ("POST", "/v2/models/{model}/infer"): Operation(
        summary="Infer: each item of the first axis is a job",
        headers={
            **_TIMEOUT,
            "Inference-Header-Content-Length": {
                "type": "integer",
                "description": "bytes of the JSON, where tensors follow it as bytes",
            },
        },
        bodies={_JSON: "InferRequest", _BYTES: None},
        answers={200: "InferResponse", 404: "Error", 415: "Error", 424: "Error", **_FAILED},
    ),
}


_JOB = OPERATIONS["POST", "/v1/jobs"]
#: Other rows for a service that only puts jobs into a queue: there is no result to wait for, and no line to jump.
QUEUED: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/jobs"): replace(
        _JOB,
        summary="Put a job into a queue: whoever does it sends the result to its callback",
        query={name: _JOB.query[name] for name in ("callback", "id", "task")},
        headers={name: told for name, told in _JOB.headers.items() if name != "Prefer"},
        answers={
            202: "Working",
            **{status: said for status, said in _JOB.answers.items() if status in (400, 413, 415, 429, 503)},
        },
    ),
}


def find_operation(method: str, path: str) -> Operation | None:
    """Return the row of a route; one that names a model's version, or ends in a slash, has that of the route without it."""
    return OPERATIONS.get((method, path.replace("/versions/{version}", "").rstrip("/") or "/"))

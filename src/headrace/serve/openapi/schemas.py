"""What goes in and out of the routes, as JSON schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXT = {"type": "string"}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list_of(name: str) -> dict[str, Any]:
    return {"type": "array", "items": _ref(name)}


SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "Anything": {"type": "object"},
    "List": {"type": "array", "items": {"type": "object"}},
    "OpenApi": {"type": "object", "description": "OpenAPI 3.1"},
    "Error": _object(
        {"error": {**_TEXT, "description": "what happened, what was expected, what to do"},
         "code": {**_TEXT, "examples": ["decode.corrupt", "serve.busy"]}}
    ),
    "Health": _object({"status": _TEXT}, {"reason": _TEXT}),
    "Result": _object({"id": _TEXT, "result": {"description": "what the pipeline makes of the job"}}),
    "Working": _object({"id": _TEXT, "state": {**_TEXT, "enum": ["working", "queued", "counted"]}}),
    "ResultOrWorking": {"oneOf": [_ref("Result"), _ref("Working")]},
    "Form": _object(
        {"image": {"type": "string", "contentMediaType": "application/octet-stream",
                   "description": "the one file; any name will do"}},
        {"id": _TEXT, "task": _TEXT, "callback": _TEXT},
    ),
    "Job": {
        **_object(
            {},
            {
                "url": {**_TEXT, "format": "uri"},
                "data": {**_TEXT, "contentEncoding": "base64"},
                "id": _TEXT,
                "task": _TEXT,
                "callback": {**_TEXT, "format": "uri"},
                "attributes": {"type": "object"},
                "deadline": {"type": "number", "description": "Unix seconds"},
            },
        ),
        "oneOf": [{"required": ["url"]}, {"required": ["data"]}],
    },
    "Feedback": _object({"id": _TEXT, "good": {"type": "boolean"}}),
    "Tensor": _object(
        {"name": _TEXT, "datatype": {**_TEXT, "examples": ["FP32", "BYTES"]},
         "shape": {"type": "array", "items": {"type": "integer"}}},
        {"data": {"type": "array"}, "parameters": {"type": "object"}},
    ),
    "ModelMetadata": _object(
        {"name": _TEXT, "platform": _TEXT, "inputs": _list_of("Tensor"), "outputs": _list_of("Tensor")},
        {"versions": {"type": "array", "items": _TEXT}},
    ),
    "InferRequest": _object(
        {"inputs": _list_of("Tensor")},
        {"id": _TEXT, "parameters": {"type": "object"}, "outputs": {"type": "array", "items": {"type": "object"}}},
    ),
    "InferResponse": _object(
        {"model_name": _TEXT, "outputs": _list_of("Tensor")},
        {"model_version": _TEXT, "id": _TEXT, "parameters": {"type": "object"}},
    ),
}  # fmt: skip

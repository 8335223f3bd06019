"""The routes of the Open Inference Protocol over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.base.errors import BadMessage
from headrace.base.log_events import read_trace
from headrace.serve.http.request import Answer, Request, error_answer, json_answer
from headrace.serve.http.routes import Handler, Routes
from headrace.serve.oip.about import SaysWhyNot, describe_server, list_models
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.http_request import read_http_request
from headrace.serve.oip.http_response import JSON_LENGTH, write_http_response
from headrace.serve.oip.inference import Inference
from headrace.serve.oip.messages import InferRequest, InferResponse
from headrace.serve.oip.models import ServedModel
from headrace.serve.timeouts import read_deadline

logger = logging.getLogger("headrace")


class _IndexRequest(msgspec.Struct):
    ready: bool = False
    """Whether only models that are ready are wanted."""


_index_decoder = msgspec.json.Decoder(_IndexRequest)
_MODEL = "/v2/models/{model}"


class OipRoutes:
    """The routes.

    Args:
        inference: Answers the requests.
        health: Of the service.
    """

    def __init__(self, inference: Inference, health: SaysWhyNot) -> None:
        self._inference = inference
        self._health = health

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
        for root in ("/v2", "/v2/"):  # the protocol's text has the one, its OpenAPI the other
            routes.add("GET", root, lambda request: json_answer(200, describe_server()))
        routes.add("GET", "/v2/health/live", lambda request: _say(self._health.why_not_live(), "live", {"live": True}))
        routes.add("GET", "/v2/health/ready", lambda request: self._say_ready({"ready": True}))
        routes.add("GET", "/v2/models/stats", self._tell_statistics)
        routes.add("POST", "/v2/repository/index", self._tell_index)
        for place in (_MODEL, f"{_MODEL}/versions/{{version}}"):
            routes.add("GET", place, self._for_model(lambda model: json_answer(200, model.describe())))
            routes.add("GET", f"{place}/config", self._for_model(lambda model: json_answer(200, model.configure())))
            routes.add("GET", f"{place}/stats", self._for_model(self._tell_model_statistics))
            routes.add("GET", f"{place}/ready", self._for_model(self._tell_model_ready))
            routes.add("POST", f"{place}/infer", self._infer)

    def _for_model(self, tell: Callable[[ServedModel], Answer]) -> Handler:
        def handle(request: Request, model: str, version: str = "") -> Answer:
            try:
                return tell(self._inference.find(model, version))
            except OipError as error:
                return refuse(error)

        return handle

    def _tell_model_ready(self, model: ServedModel) -> Answer:
        return self._say_ready({"name": model.name, "ready": True})

    def _tell_model_statistics(self, model: ServedModel) -> Answer:
        return json_answer(200, self._inference.statistics.describe([model.name]))

    def _tell_statistics(self, request: Request) -> Answer:
        return json_answer(200, self._inference.statistics.describe(list(self._inference.models)))

    def _tell_index(self, request: Request) -> Answer:
        try:
            asked = _index_decoder.decode(bytes(request.body) or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return error_answer(400, "oip.json", f'expected JSON such as {{"ready": true}}, or no body: {error}')
        return json_answer(200, list_models(self._inference, self._health, only_ready=asked.ready))

    def _say_ready(self, value: dict[str, Any]) -> Answer:
        return _say(self._health.why_not_ready(), "ready", value)

    def _infer(self, request: Request, model: str, version: str = "") -> Answer | None:
        try:
            asked = self._inference.find(model, version)
            _refuse_encodings(request)
            read = read_http_request(request.body, request.header(JSON_LENGTH.lower()), asked.check_input)
            running = self._inference.start(
                asked,
                read,
                lambda outcome: request.answer(_answer(outcome, read)),
                received_ns=request.received_ns,
                deadline_ns=read_deadline(request.headers, request.received_ns),
                attributes=read_trace(request.headers),
            )
        except BadMessage as error:
            return error_answer(400, error.code, error.reason)
        except OipError as error:
            return refuse(error)
        request.call_when_gone(running.cancel)
        return None


def refuse(error: OipError) -> Answer:
    """Return the answer that says why there is no response."""
    retry = error.retry_after_seconds
    headers = () if retry is None else (("Retry-After", str(max(1, round(retry)))),)
    return error_answer(error.status, error.code, error.reason, *headers)


def _answer(outcome: InferResponse | OipError, request: InferRequest) -> Answer:
    if isinstance(outcome, OipError):
        return refuse(outcome)
    try:
        return write_http_response(outcome, request)
    except OipError as error:
        return refuse(error)
    except Exception:  # called by the run: it must hear of nothing, and the client of something
        logger.exception("a response of model %s could not be written", outcome.model)
        return error_answer(500, "oip.internal", "the response could not be written; the server's log says why")


def _refuse_encodings(request: Request) -> None:
    encoding = request.header("content-encoding").strip().lower()
    if encoding not in ("", "identity"):
        raise OipError("oip.encoding", f"the body is encoded as {encoding:.40}; send it as it is", 415)


def _say(why_not: str, state: str, value: dict[str, Any]) -> Answer:
    return error_answer(503, f"oip.not_{state}", f"not {state}: {why_not}") if why_not else json_answer(200, value)

"""The gRPC server of the protocol: one event loop in a thread of its own, in which calls wait for their answers."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import MissingExtra, SettingsError
from headrace.base.log_events import read_trace
from headrace.serve.http.limits import Limits
from headrace.serve.http.listening import tls_context
from headrace.serve.oip.about import SaysWhyNot, describe_server, list_models
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.grpc_codec import read_grpc_request, write_grpc_response
from headrace.serve.oip.grpc_messages import make_messages
from headrace.serve.oip.grpc_relay import GrpcRelay
from headrace.serve.oip.inference import Inference
from headrace.serve.oip.messages import InferResponse
from headrace.serve.oip.models import ServedModel

try:
    import grpc
    import grpc.aio
    from google.protobuf.json_format import ParseDict
    from google.protobuf.message import DecodeError
except ImportError as error:
    raise MissingExtra("the Open Inference Protocol over gRPC", "grpc") from error

logger = logging.getLogger("headrace")

_SERVICE = "inference.GRPCInferenceService"
#: What else a message holds beside its tensors.
_MESSAGE_ROOM = 64 * 1024
_START_SECONDS = 30.0

_CODES = {
    404: grpc.StatusCode.NOT_FOUND,
    401: grpc.StatusCode.UNAUTHENTICATED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

#: Answers the message of a call, given what it is called with.
_Handler = Callable[[Any, "grpc.aio.ServicerContext"], Awaitable[bytes]]


class GrpcFront:
    """Serves models over gRPC.

    Args:
        inference: Answers the requests.
        health: Of the service.
        host: Address to listen on.
        port: 0: any free one.
        limits: `body_bytes` bounds a message, `total_bytes` the messages of all calls that are being answered, `connections`
            how many these are, `idle_seconds` connections without a call.
        token: What clients send as `authorization: Bearer TOKEN`; None: nothing is asked for.
        tls: Files of the certificate and its key; None: nothing is encrypted.
        listening: A listening socket that processes share, instead of `host` and `port`; see `grpc_relay`.
        clock: For deadlines; the run's.
    """

    def __init__(
        self,
        inference: Inference,
        health: SaysWhyNot,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        token: str | None = None,
        tls: tuple[str, str] | None = None,
        listening: socket.socket | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._calls = _Calls(inference, health, token, clock or SystemClock(), self._limits.total_bytes)
        self._place = (host, port)
        self._relay: GrpcRelay | None = None
        self._is_encrypted = tls is not None
        self._credentials = None if tls is None or listening is not None else _read_credentials(*tls)
        if listening is not None:
            self._place = listening.getsockname()[:2]
            context = None if tls is None else _speak_http2(tls_context(*tls))
            self._relay = GrpcRelay(listening, context, self._limits.connections)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: Any = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; once started the port that the system chose for 0."""
        return self._place

    @property
    def url(self) -> str:
        """Its address, for people: clients of gRPC take it without `grpc://`."""
        host, port = self._place
        return f"{'grpcs' if self._is_encrypted else 'grpc'}://{_join(host, port)}"

    @property
    def counts(self) -> dict[str, int]:
        """How many calls were refused before the run heard of them, by code."""
        return dict(self._calls.counts)

    def start(self) -> None:
        """Bind and begin to serve.

        Raises:
            SettingsError: `grpc.address`: the address cannot be listened on.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc-front", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_START_SECONDS)
        except BaseException:
            self.close()
            raise

    def drain(self, seconds: float) -> None:
        """Let no new call in, and return when all are answered or time is up."""
        server, loop = self._server, self._loop
        if server is not None and loop is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._stop(server, seconds), loop).result()

    def close(self) -> None:
        """Cut off what is left and end the thread; repeating it does nothing."""
        self.drain(0)
        if self._loop is not None and self._thread is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _stop(self, server: Any, seconds: float) -> None:
        ends = asyncio.get_running_loop().time() + seconds
        if self._relay is not None:
            await self._relay.let_go(seconds)
        await server.stop(max(0.0, ends - asyncio.get_running_loop().time()))
        if self._relay is not None:
            await self._relay.close()

    async def _start(self) -> None:
        options = [
            ("grpc.max_receive_message_length", self._limits.body_bytes + _MESSAGE_ROOM),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            # A client that calls again opens another by itself.
            ("grpc.max_connection_idle_ms", round(self._limits.idle_seconds * 1e3)),
        ]
        if self._limits.connection_seconds is not None:
            options.append(("grpc.max_connection_age_ms", round(self._limits.connection_seconds * 1e3)))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=self._limits.connections)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, self._calls.handlers()),))
        host, port = self._place
        place = _join(host, port) if self._relay is None else self._relay.place
        try:
            bound = (
                server.add_insecure_port(place)
                if self._credentials is None
                else server.add_secure_port(place, self._credentials)
            )
        except RuntimeError as error:
            raise SettingsError(
                f"grpc.address: cannot listen on {place}: {error}; choose an address of this machine and a free port"
            ) from error
        await server.start()
        self._place, self._server = (host, bound if self._relay is None else port), server
        if self._relay is not None:
            self._relay.start()


class _Calls:
    """What each call of the protocol does; in the loop's thread."""

    def __init__(
        self, inference: Inference, health: SaysWhyNot, token: str | None, clock: Clock, total_bytes: int
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._used_bytes, self._total_bytes = 0, total_bytes
        self._inference = inference
        self._health = health
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._clock = clock
        self._messages = make_messages()

    def handlers(self) -> dict[str, Any]:
        """Return the handler of each call."""
        statistics = self._inference.statistics
        models = self._inference.models
        tells: dict[str, Callable[[Any], Mapping[str, Any]]] = {
            "ServerLive": lambda asked: {"live": not self._health.why_not_live()},
            "ServerReady": lambda asked: {"ready": not self._health.why_not_ready()},
            "ModelReady": lambda asked: {"ready": self._is_model_ready(asked)},
            "ServerMetadata": lambda asked: describe_server(),
            "ModelMetadata": lambda asked: self._find(asked).describe(),
            "ModelConfig": lambda asked: {"config": self._find(asked).configure()},
            "ModelStatistics": lambda asked: statistics.describe(
                [self._find(asked).name] if asked.name else list(models)
            ),
            "RepositoryIndex": lambda asked: {
                "models": list_models(self._inference, self._health, only_ready=asked.ready)
            },
        }
        answers: dict[str, _Handler] = {name: partial(self._tell, name, tell) for name, tell in tells.items()}
        answers["ModelInfer"] = self._infer
        return {
            name: grpc.unary_unary_rpc_method_handler(partial(self._answer, name, handle))
            for name, handle in answers.items()
        }

    async def _answer(self, name: str, handle: _Handler, raw: bytes, context: Any) -> bytes:
        """Answer a call; whatever fails has a status and a code."""
        try:
            self._check_token(context)
            with self._counted(len(raw)):
                return await handle(self._read(f"{name}Request", raw), context)
        except OipError as error:
            failure = error
        except Exception:
            logger.exception("a call of %s failed", name)
            failure = OipError("oip.internal", "the call could not be answered; the server's log says why", 500)
        trailing = [("headrace-code", failure.code)]
        if failure.retry_after_seconds is not None:
            trailing.append(("retry-after", str(max(1, round(failure.retry_after_seconds)))))
        await context.abort(_code_of(failure.status), str(failure), tuple(trailing))
        raise AssertionError("abort raises")

    async def _tell(self, name: str, tell: Callable[[Any], Mapping[str, Any]], asked: Any, context: Any) -> bytes:
        written: bytes = ParseDict(tell(asked), self._messages[f"{name}Response"]()).SerializeToString()
        return written

    async def _infer(self, asked: Any, context: Any) -> bytes:
        received_ns = self._clock.now_ns()
        model = self._inference.find(asked.model_name, asked.model_version)
        request = read_grpc_request(asked, model.check_input)
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[InferResponse | OipError] = loop.create_future()
        running = self._inference.start(
            model,
            request,
            lambda ended: _tell_loop(loop, outcome, ended),
            received_ns=received_ns,
            deadline_ns=_deadline_of(context, received_ns),
            attributes=read_trace(dict(context.invocation_metadata() or ())),
        )
        try:
            ended = await outcome
        except asyncio.CancelledError:  # the client went away, or its deadline passed
            running.cancel()
            raise
        if isinstance(ended, OipError):
            raise ended
        return write_grpc_response(ended, self._messages)

    @contextlib.contextmanager
    def _counted(self, num_bytes: int) -> Iterator[None]:
        """Count a message until its call is answered; raise OipError if there is no room for it."""
        if self._used_bytes + num_bytes > self._total_bytes:
            self.counts["oip.total_bytes"] += 1
            held = f"the calls in flight hold {self._used_bytes:,} bytes of {self._total_bytes:,}"
            raise OipError("oip.total_bytes", f"{held}; no room for {num_bytes:,} more; try again later", 503, 1.0)
        self._used_bytes += num_bytes
        try:
            yield
        finally:
            self._used_bytes -= num_bytes

    def _is_model_ready(self, asked: Any) -> bool:
        """Return whether there is such a model, and it is ready: who asks that of one that is not there is told no."""
        try:
            self._find(asked)
        except OipError:
            return False
        return not self._health.why_not_ready()

    def _find(self, asked: Any) -> ServedModel:
        return self._inference.find(asked.name, asked.version)

    def _read(self, name: str, raw: bytes) -> Any:
        try:
            return self._messages[name].FromString(raw)
        except DecodeError as error:
            raise OipError("oip.message", f"the message is no {name}: {error}") from None

    def _check_token(self, context: Any) -> None:
        if self._authorization is None:
            return
        given = next((value for key, value in context.invocation_metadata() or () if key == "authorization"), "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._authorization):
            raise OipError("http.token", "the call needs the metadata authorization: Bearer TOKEN", 401)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tell_loop(
    loop: asyncio.AbstractEventLoop,
    outcome: asyncio.Future[InferResponse | OipError],
    ended: InferResponse | OipError,
) -> None:
    """Bring an outcome to whoever waits for it in the loop; from any thread."""

    def settle() -> None:
        if not outcome.done():
            outcome.set_result(ended)

    with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
        loop.call_soon_threadsafe(settle)


def _deadline_of(context: Any, now_ns: int) -> int | None:
    left = context.time_remaining()
    return None if left is None else now_ns + round(left * 1e9)


def _code_of(status: int) -> Any:
    usual = grpc.StatusCode.INVALID_ARGUMENT if status < 500 else grpc.StatusCode.INTERNAL
    return _CODES.get(status, usual)


def _speak_http2(context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_alpn_protocols(["h2"])
    return context


def _read_credentials(certificate: str, key: str) -> Any:
    tls_context(certificate, key)  # says what is wrong with them, which gRPC does not
    return grpc.ssl_server_credentials([(Path(key).read_bytes(), Path(certificate).read_bytes())])

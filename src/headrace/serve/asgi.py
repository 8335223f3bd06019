"""The same service inside a web application of one's own: an ASGI app for Starlette, FastAPI and others.

    service = headrace.serve.asgi.App(pipeline, "plan.toml")

    app = FastAPI(lifespan=lambda app: service.running())
    app.mount("/images", service)        # POST /images/v1/jobs

How this works: the pipeline runs in a thread from the beginning of `running` to its end; a request is a task of the
application's loop, which waits for the answer and for the client's going away. This costs several times as much per request as
`headrace serve`, whose front knows nothing of applications.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import HeadraceError
from headrace.base.plan import Plan
from headrace.pipeline.definition import Pipeline
from headrace.serve.http.limits import Limits
from headrace.serve.http.request import Answer, Request, error_answer
from headrace.serve.service import Service

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_STARTING = error_answer(
    503, "serve.starting", "the pipeline does not run; enter `running` in the application's lifespan"
)
_GONE = Answer(499)


class App:
    """An ASGI application (3.0) that answers with a pipeline.

    Args:
        pipeline: What is done with each request; see `headrace.serve.service.serve`.
        plan: How.
        limits: Of a request's body; connections and headers are the server's.
        probes: {task: payload} with which the service tries itself; see `headrace.serve.health`.
        tells_failures: Whether a 500 says what failed, with files and lines of this machine. The log always says it.
        clock: None: the host's.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        plan: Plan | str | Path | None = None,
        *,
        limits: Limits | None = None,
        probes: Mapping[str, Any] | None = None,
        tells_failures: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._plan = plan
        self._limits = limits or Limits()
        self._probes = probes or {}
        self._tells_failures = tells_failures
        self._clock = clock or SystemClock()
        self._service: Service | None = None
        self._num_bytes = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the pipeline within this block: the application's lifespan.

        Raises:
            HeadraceError: At the end, if the run broke.
        """
        loop = asyncio.get_running_loop()
        service, stop = Service(self._pipeline, self._probes), threading.Event()
        service.source.tells_failures = self._tells_failures
        service.begin(loop.call_soon_threadsafe, lambda seconds, call: _call_later(loop, seconds, call))
        running = loop.run_in_executor(None, lambda: service.run(self._plan, stop=stop))
        self._service = service
        try:
            yield
        finally:
            self._service = None
            stop.set()
            await running

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or run for the length of an application that has nothing else."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await _send(send, await self._answer(scope, receive))
        else:
            raise HeadraceError(f"headrace.serve.asgi takes http and lifespan, got {scope['type']!r}")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Message, receive: Receive) -> Answer:
        if self._service is None:
            return _STARTING
        received_ns, held = self._clock.now_ns(), bytearray()
        try:
            refused = await self._read(receive, held)
            if refused is not None:
                return refused
            return await _handle(self._service, scope, bytes(held), received_ns, receive)
        finally:
            self._num_bytes -= len(held)

    async def _read(self, receive: Receive, held: bytearray) -> Answer | None:
        """Read a request's body; return why it is refused."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return _GONE
            piece = message.get("body", b"")
            held += piece
            self._num_bytes += len(piece)
            more = message.get("more_body", False)
            if len(held) > self._limits.body_bytes:
                return error_answer(
                    413,
                    "http.body_size",
                    f"the body has more than {self._limits.body_bytes:,} bytes, which is the limit",
                )
            if self._num_bytes > self._limits.total_bytes:
                retry = ("Retry-After", "1")
                return error_answer(
                    503, "http.bodies", "the bodies of all requests are too large together; try again", retry
                )
        return None


class _Waiting:
    """Stands for a request's connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[Answer] = self._loop.create_future()

    def answer(self, request: Request, answer: Answer) -> None:
        """Bring the answer to the loop; any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the connection
            self._loop.call_soon_threadsafe(self._note, answer)

    def _note(self, answer: Answer) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)


async def _handle(service: Service, scope: Message, body: bytes, received_ns: int, receive: Receive) -> Answer:
    """Give a request to its handler, and wait for the answer or until its client is gone."""
    waiting = _Waiting()
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    query = scope.get("query_string", b"").decode("latin-1")
    request = Request(waiting, scope["method"], _path(scope), query, headers, body, received_ns)
    answer = service.routes.answer(request)
    if answer is not None:
        return answer
    gone: asyncio.Future[Any] = asyncio.ensure_future(_wait_until_gone(receive))
    ends: set[asyncio.Future[Any]] = {waiting.answered, gone}
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not waiting.answered.done():
            request.note_gone()
    return waiting.answered.result() if waiting.answered.done() else _GONE


def _path(scope: Message) -> str:
    """Return a request's path below the place where the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _call_later(loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], object]) -> None:
    loop.call_soon_threadsafe(lambda: loop.call_later(seconds, call))


async def _send(send: Send, answer: Answer) -> None:
    headers = [(b"content-type", answer.content_type.encode()), (b"content-length", str(len(answer.body)).encode())]
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})

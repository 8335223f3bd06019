"""The HTTP front: a thread with its own event loop and a listening socket.

How this works. `start` binds in the caller's thread, so that a port in use is the caller's error, and starts the front's. That
thread owns connections, deadlines, buffers and counts. Handlers are called in it and must not block; their answers come from
any thread through one outbox, and one wake of the loop serves many answers. `drain` stops listening and waits; `close` cuts
off what is left and ends the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import SettingsError
from headrace.serve.http.limits import Limits
from headrace.serve.http.listening import Acceptor, listen, tls_context
from headrace.serve.http.routes import Routes
from headrace.serve.http.shared import Shared
from headrace.serve.http.turns import TurnSelector

logger = logging.getLogger("headrace")

#: How often deadlines are looked at, and the loop shows that it turns.
_TICK_SECONDS = 0.25
#: How often a drain looks whether all is answered.
_DRAIN_TICK_SECONDS = 0.02
#: A draining front closes a connection after this long without a request; one that is on its way is still answered.
_DRAIN_IDLE_SECONDS = 1.0


class Front:
    """Serves routes over HTTP/1.1.

    Args:
        routes: Who answers what.
        host: Address to listen on; anything but loopback is seen by others.
        port: 0: the system chooses one, see `address`.
        limits: What clients may take up; None: the defaults.
        tls: Files of certificate and key; None: no TLS.
        token: What clients send as `Authorization: Bearer TOKEN`, except to `/`, `/livez` and `/readyz`; None: no token.
        reuse_port: Several processes may listen on the port, and the system shares connections among them.
        listening: A listening socket to take over instead of `host` and `port`; `close` closes it.
        clock: None: the host's.

    Attributes:
        on_broken: Called by the front's thread where that ends although nobody closed it: nobody is answered any more.

    Raises:
        SettingsError: `http.tls`: the files cannot be used; `http.token`: the token is empty.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        tls: tuple[str, str] | None = None,
        token: str | None = None,
        reuse_port: bool = False,
        listening: socket.socket | None = None,
        clock: Clock | None = None,
    ) -> None:
        if token == "":
            raise SettingsError(
                "http.token: the token is empty, and any client could send that; expected a secret, or None"
            )
        self.on_broken: Callable[[str], object] = lambda why: None
        self._place = (host, port)
        self._reuse_port = reuse_port
        self._listening = listening
        self._tls = None if tls is None else tls_context(*tls)
        self._clock = clock or SystemClock()
        self._shared = Shared(routes, limits or Limits(), self._clock, token, self._wake)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ident = 0
        self._acceptor: Acceptor | None = None
        self._turned_ns = 0
        self._is_closing = self._is_ending = False
        self._is_serving = threading.Event()

    def start(self) -> None:
        """Bind and begin to serve.

        Raises:
            SettingsError: `http.address`: the address is in use, not this machine's, or not allowed.
        """
        listener = self._listening or listen(*self._place, reuse_port=self._reuse_port)
        self._place = listener.getsockname()[:2]
        self._turned_ns = self._clock.now_ns()
        self._loop = asyncio.SelectorEventLoop(TurnSelector(self._shared.turn))
        self._thread = threading.Thread(target=self._run, args=(self._loop, listener), name="http-front", daemon=True)
        self._thread.start()
        self._is_serving.wait()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; once started the port that the system chose for 0."""
        return self._place

    @property
    def url(self) -> str:
        """Where clients find it."""
        host, port = self._place
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def counts(self) -> dict[str, int]:
        """How often what happened since the start.

        `requests` handed to handlers; answers as `2xx` to `5xx`; refusals by their code, such as `http.body_size`; `gone`
        clients that did not wait for their answer; `cut_off.idle`, `cut_off.reading` and `cut_off.sending` by the deadlines;
        `spared.idle` connections that would have been, had their next request not been there already, still unread;
        `connections` that are open now, and `body_bytes` in flight.
        """
        now = {"connections": len(self._shared.connections), "body_bytes": self._shared.bodies.used_bytes}
        return self._shared.count() | now

    @property
    def lateness(self) -> float:
        """Seconds by which the loop is late with its next turn; 0 while it turns in time."""
        return max(0.0, (self._clock.now_ns() - self._turned_ns) / 1e9 - _TICK_SECONDS)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the front's thread; any thread. Nothing happens unless the front runs."""
        if self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if threading.get_ident() == self._ident:
                self._loop.call_soon(function)
            else:
                self._loop.call_soon_threadsafe(function)

    def call_after_reading(self, function: Callable[[], object]) -> None:
        """Call a function in the front's thread once all that is ready was read; at once, if that is what is being read now."""
        if self._shared.turn.is_last and threading.get_ident() == self._ident:
            function()
        else:
            self.call_soon(function)

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function in the front's thread after so many seconds; any thread."""
        loop = self._loop
        if loop is not None:
            self.call_soon(lambda: loop.call_later(seconds, function))

    def stop_accepting(self) -> None:
        """Let no new connection in; those that are there are served as before. Any thread."""
        self.call_soon(self._close_listener)

    def drain(self, seconds: float) -> bool:
        """Let no new connection in, and close each after its next answer; return whether that was done within so many seconds.

        A connection without a request is closed after a second: a request that was on its way is answered, not reset.
        """
        if self._loop is None:
            return True
        done = threading.Event()
        self.call_soon(lambda: self._begin_drain(done))
        return done.wait(seconds)

    def close(self) -> None:
        """Cut off what is left and end the thread; repeating it does nothing."""
        if self._loop is not None and self._thread is not None:
            self.call_soon(self._stop)
            self._thread.join()

    # --- In the front's thread ---

    def _wake(self) -> None:
        self.call_soon(self._shared.empty_outbox)

    def _stop(self) -> None:
        if self._loop is not None and not self._is_ending:
            self._loop.stop()

    def _run(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        self._ident = threading.get_ident()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(_log_error)
        try:
            self._acceptor = Acceptor(loop, listener, self._shared, self._tls)
            self._tick(loop)
            loop.call_soon(self._is_serving.set)
            loop.run_forever()
        except BaseException as error:
            logger.error("http.front: the thread that serves HTTP ended: %r", error, exc_info=error)
            self.on_broken(f"its thread that serves HTTP ended: {error!r}")
        finally:
            self._is_ending = True
            self._is_serving.set()  # also if it could not begin: `start` waits
            self._close_listener()
            loop.run_until_complete(self._cut_off_all())
            loop.close()

    async def _cut_off_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for connection in list(self._shared.connections):
            connection.cut_off()
        await asyncio.sleep(0)  # a closed connection says so in the loop's next turn

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(_TICK_SECONDS, self._tick, loop)
        self._turned_ns = self._clock.now_ns()
        if not self._is_closing:
            self._close_passed(loop)

    def _close_passed(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_closing = False  # should the next line fail
        pause = self._shared.tick(self._clock.now_ns())
        if pause is not None:
            self._is_closing = True
            loop.call_later(pause, self._close_passed, loop)

    def _close_listener(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    def _begin_drain(self, done: threading.Event) -> None:
        self._shared.is_draining = True
        self._shared.empty_outbox()
        self._shared.idle.shorten(_DRAIN_IDLE_SECONDS, self._clock.now_ns())
        self._close_listener()
        self._look_drained(done)

    def _look_drained(self, done: threading.Event) -> None:
        is_entering = self._acceptor is not None and self._acceptor.num_entering > 0
        if not is_entering and all(connection.is_over for connection in self._shared.connections):
            done.set()
        else:
            asyncio.get_running_loop().call_later(_DRAIN_TICK_SECONDS, self._look_drained, done)


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    logger.error("http.loop: %s: %r", context["message"], error, exc_info=error)

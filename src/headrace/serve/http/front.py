"""The HTTP front: a thread with its own event loop and a listening socket.

How this works. `start` binds in the caller's thread, so that a port in use is the caller's error, and starts the front's. That
thread owns connections, deadlines, buffers and counts. Handlers are called in it and must not block; their answers come from
any thread through one outbox, and one wake of the loop serves many answers. `drain` stops listening and waits; `close` cuts
off what is left and ends the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import SettingsError
from headrace.serve.http.connection import Connection
from headrace.serve.http.limits import Limits
from headrace.serve.http.routes import Routes
from headrace.serve.http.shared import Shared

_BACKLOG = 1024
#: How often deadlines are looked at, and the loop shows that it turns.
_TICK_SECONDS = 0.25


class Front:
    """Serves routes over HTTP/1.1."""

    def __init__(
        self,
        routes: Routes,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        token: str | None = None,
        reuse_port: bool = False,
        listening: socket.socket | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._listening = listening
        self._place = (host, port)
        self._reuse_port = reuse_port
        self._clock = clock or SystemClock()
        self._shared = Shared(routes, limits or Limits(), self._clock, token, self._wake)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._turned_ns = 0
        self._is_serving = threading.Event()

    def start(self) -> None:
        """Bind and begin to serve.

        Raises:
            SettingsError: `http.address`: the address is in use, not this machine's, or not allowed.
        """
        listener = self._listening or listen(*self._place, reuse_port=self._reuse_port)
        self._place = listener.getsockname()[:2]
        self._turned_ns = self._clock.now_ns()
        self._loop = asyncio.new_event_loop()
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
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def counts(self) -> dict[str, int]:
        """How often what happened since the start: `requests`, `2xx`, `gone`, `cut_off`, and the codes of refusals."""
        return dict(self._shared.counts)

    @property
    def lateness(self) -> float:
        """Seconds by which the loop is late with its next turn; 0 while it turns in time."""
        return max(0.0, (self._clock.now_ns() - self._turned_ns) / 1e9 - _TICK_SECONDS)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the front's thread; any thread. Nothing happens unless the front runs."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if self._loop is None:
                return
            if threading.current_thread() is self._thread:
                self._loop.call_soon(function)
            else:
                self._loop.call_soon_threadsafe(function)

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function in the front's thread after so many seconds; any thread."""
        loop = self._loop
        if loop is not None:
            self.call_soon(lambda: loop.call_later(seconds, function))

    def stop_accepting(self) -> None:
        """Let no new connection in; those that are there are served as before. Any thread."""
        self.call_soon(self._close_listener)

    def drain(self, seconds: float) -> bool:
        """Let no new connection in and close each after its present answer; return whether all were answered in time."""
        done = threading.Event()
        self.call_soon(lambda: self._begin_drain(done))
        return done.wait(seconds)

    def close(self) -> None:
        """Cut off what is left and end the thread; repeating it does nothing."""
        if self._loop is not None and self._thread is not None:
            self.call_soon(self._loop.stop)
            self._thread.join()

    # --- In the front's thread ---

    def _wake(self) -> None:
        self.call_soon(self._shared.empty_outbox)

    def _run(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        asyncio.set_event_loop(loop)
        try:
            self._server = loop.run_until_complete(
                loop.create_server(lambda: Connection(self._shared), sock=listener, backlog=_BACKLOG)
            )
            self._tick(loop)
            loop.call_soon(self._is_serving.set)
            loop.run_forever()
        finally:
            if self._server:
                self._server.close()
            for connection in list(self._shared.connections):
                connection.cut_off()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turned_ns = now_ns = self._clock.now_ns()
        shared = self._shared
        for name, deadlines in (("idle", shared.idle), ("slow", shared.reading), ("unread", shared.sending)):
            for connection in deadlines.pop_passed(now_ns):
                shared.counts[f"cut_off.{name}"] += 1
                connection.cut_off()
        loop.call_later(_TICK_SECONDS, self._tick, loop)

    def _begin_drain(self, done: threading.Event) -> None:
        self._shared.is_draining = True
        self._close_listener()
        self._look_drained(done)

    def _close_listener(self) -> None:
        if self._server:
            self._server.close()

    def _look_drained(self, done: threading.Event) -> None:
        shared = self._shared
        for connection in list(shared.idle):
            connection.cut_off()
        if not shared.connections:
            done.set()
            return
        asyncio.get_running_loop().call_later(0.01, self._look_drained, done)


def listen(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """Return a listening socket; raises `SettingsError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except (OSError, OverflowError) as error:
        listener.close()
        raise SettingsError(f"http.address: cannot listen on {host}:{port}: {error}; {_hint(error)}") from error
    return listener


def _hint(error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    hints = {
        errno.EADDRINUSE: "another program has this port: stop it or choose another port",
        errno.EACCES: "ports below 1024 are root's: choose another port",
        errno.EADDRNOTAVAIL: "the host is none of this machine's addresses: choose 127.0.0.1 or 0.0.0.0",
    }
    return hints.get(code or 0, "choose an address of this machine and a port from 0 to 65535")

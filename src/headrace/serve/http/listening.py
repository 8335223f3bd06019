"""The listening socket: making it, and letting connections in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl

from headrace.base.errors import SettingsError
from headrace.serve.http.connection import Connection
from headrace.serve.http.refusal import BadRequest
from headrace.serve.http.shared import Shared
from headrace.serve.http.wire import head_bytes

logger = logging.getLogger("headrace")

_BACKLOG = 1024
#: Connections that are let in before others are served again.
_AT_ONCE = 64
#: How long nobody is let in after the system had no descriptor left.
_PAUSE_SECONDS = 0.25
#: A TLS client's goodbye is not waited for longer.
_GOODBYE_SECONDS = 2.0

_HINTS = {
    errno.EADDRINUSE: "another program has this port: stop it or choose another port",
    errno.EACCES: "ports below 1024 are root's: choose another port",
    errno.EADDRNOTAVAIL: "the host is none of this machine's addresses: choose 127.0.0.1, or 0.0.0.0 for all of them",
}


def listen(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """Return a listening socket; port 0: the system chooses one.

    Raises:
        SettingsError: `http.address`: in use, not this machine's, not allowed, or no address.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        listener.close()
        number = error.errno if isinstance(error, OSError) else None
        hint = _HINTS.get(number or 0, "choose an address of this machine and a port from 0 to 65535")
        raise SettingsError(f"http.address: cannot listen on {host}:{port}: {error}; {hint}") from error
    return listener


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return how a server speaks TLS 1.2 or newer.

    Args:
        certificate: PEM file with the certificate and those between it and the root.
        key: PEM file with its private key, without a password.

    Raises:
        SettingsError: `http.tls`: a file cannot be read, or they do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"http.tls: certificate {certificate} and key {key} cannot be used: {error};"
            " expected PEM files that belong together, the key without a password"
        ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")  # else OpenSSL would ask for it on the terminal


class Acceptor:
    """Lets connections in, in the front's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listener: socket.socket, shared: Shared, tls: ssl.SSLContext | None
    ):
        listener.setblocking(False)
        self._loop = loop
        self._listener = listener
        self._shared = shared
        self._tls = tls
        self._entering: set[asyncio.Task[None]] = set()
        #: The last try found no descriptor: that is said once.
        self._is_short = False
        self._resume()

    @property
    def num_entering(self) -> int:
        """Connections that are accepted and not yet read from."""
        return len(self._entering)

    def close(self) -> None:
        """Let in who is connected already, and close; repeating it does nothing."""
        if self._listener.fileno() < 0:
            return
        self._loop.remove_reader(self._listener)
        while self._accept():
            pass
        self._listener.close()

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept_some)

    def _accept_some(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._accept():
                return

    def _accept(self) -> bool:
        """Let one in; return whether there may be another."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionError:
            return True
        except OSError as error:
            if error.errno == errno.EINVAL:  # a process that shares the socket has shut it: nobody comes any more
                self._loop.remove_reader(self._listener)
            else:
                self._pause(error)
            return False
        self._is_short = False
        shared = self._shared
        if (
            len(shared.connections) + len(self._entering) >= shared.limits.connections
            and not shared.close_oldest_idle()
        ):
            self._refuse(connection)
            return True
        task = self._loop.create_task(self._enter(connection))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)
        return True

    async def _enter(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(
                lambda: Connection(self._shared),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._shared.limits.request_seconds if self._tls else None,
                ssl_shutdown_timeout=_GOODBYE_SECONDS if self._tls else None,
            )
        except OSError:  # no TLS, another version, or gone meanwhile
            self._shared.counts["http.tls"] += 1
            connection.close()

    def _refuse(self, connection: socket.socket) -> None:
        limit = self._shared.limits.connections
        reason = f"{limit:,} connections are open, none of them idle; try again later"
        refusal = BadRequest(503, "http.connections", reason, ("Retry-After", "1"))
        self._shared.counts[refusal.code] += 1
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            if self._tls is None:
                connection.send(head_bytes(refusal.answer, self._shared.date, closes=True) + refusal.answer.body)

    def _pause(self, error: OSError) -> None:
        """Wait before the next try: a socket that nobody accepts would wake the loop without end."""
        self._shared.counts["http.accept"] += 1
        if not self._is_short:
            hint = f"the next try is in {_PAUSE_SECONDS:g} s; allow more files: ulimit -n"
            logger.error("http.accept: no connection can be let in: %s; %s", error, hint)
        self._is_short = True
        self._shared.close_oldest_idle()
        self._loop.remove_reader(self._listener)
        self._loop.call_later(_PAUSE_SECONDS, self._resume)

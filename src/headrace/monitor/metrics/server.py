"""Answers `GET /metrics` over HTTP, so that no client can do harm: few connections, short requests, one deadline for each.

How this works: one thread accepts; each connection has a thread of its own, at most `_MOST_CONNECTIONS` at once, and ends after
one answer or `_SECONDS`, whichever is first. For one more, the oldest whose request has not come yet is closed, so that clients
that hang keep nobody away; where all are being answered, the new one is.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus

from headrace.base.errors import SettingsError

logger = logging.getLogger("headrace")

_MOST_CONNECTIONS = 8
#: For a request and its answer.
_SECONDS = 5.0
_MOST_REQUEST_BYTES = 8_192
#: After an error of `accept`, such as one file too many.
_PAUSE_SECONDS = 0.2
#: Makes a scrape of a request's `Accept`.
Scrape = Callable[[str], tuple[bytes, str]]


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, or of a port alone: this machine.

    Raises:
        SettingsError: If it is neither.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise SettingsError(
            f"--metrics {text}: expected HOST:PORT or PORT, such as 9400, 127.0.0.1:9400 or 0.0.0.0:9400 (every address of "
            "this machine); port 0 takes any that is free"
        )
    return host, int(port)


def listen(text: str) -> socket.socket:
    """Return a socket that listens on what --metrics names.

    Raises:
        SettingsError: If it cannot be listened on.
    """
    host, port = parse_address(text)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=64)
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"--metrics {text} cannot be listened on: {getattr(error, 'strerror', None) or error}. Another program, or another "
            "run, may have that port: name another one, or 0 for any that is free"
        ) from error


def url_of(listening: socket.socket) -> str:
    """Return where scrapes are answered."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"


class MetricsServer:
    """Serves until the socket is closed.

    Args:
        listening: The socket; closed with the server.
        scrape: Makes an answer.
    """

    def __init__(self, listening: socket.socket, scrape: Scrape) -> None:
        self._listening = listening
        self._scrape = scrape
        self._room = threading.Semaphore(_MOST_CONNECTIONS)
        self._silent: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def start(self) -> None:
        """Serve in a thread of its own."""
        threading.Thread(target=self.serve, name="metrics-server", daemon=True).start()

    def serve(self) -> None:
        """Serve in this thread."""
        while not self._is_closed:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                if self._is_closed or self._listening.fileno() < 0:
                    return
                time.sleep(_PAUSE_SECONDS)
                continue
            if not self._room.acquire(blocking=False) and not (
                self._close_oldest_silent() and self._room.acquire(timeout=_PAUSE_SECONDS)
            ):
                connection.close()
                continue
            with self._lock:
                self._silent[connection] = None
            try:
                threading.Thread(target=self._answer, args=(connection,), name="scrape", daemon=True).start()
            except RuntimeError:  # no thread to be had
                self._note_heard(connection)
                self._room.release()
                connection.close()

    def _close_oldest_silent(self) -> bool:
        """Return whether there was one."""
        with self._lock:
            for connection in self._silent:
                with contextlib.suppress(OSError):  # it just left
                    connection.shutdown(socket.SHUT_RDWR)  # its thread ends
                del self._silent[connection]
                return True
        return False

    def _note_heard(self, connection: socket.socket) -> None:
        with self._lock:
            self._silent.pop(connection, None)

    def close(self) -> None:
        """Answer nobody any more."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listening.close()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                ends = time.monotonic() + _SECONDS
                try:
                    request = _read_request(connection, ends)
                finally:
                    self._note_heard(connection)
                if request:
                    answer = self._answer_to(request)
                    connection.settimeout(max(0.01, ends - time.monotonic()))  # `sendall` takes no longer in all
                    connection.sendall(answer)
        except OSError:  # a client that is gone, or was too slow
            pass
        except Exception:
            logger.exception("a scrape of the metrics failed; the run goes on")
        finally:
            self._room.release()

    def _answer_to(self, request: bytes) -> bytes:
        head = request.decode("latin-1").split("\r\n")
        method, _, rest = head[0].partition(" ")
        path = rest.split(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _make_answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n")
        if path != "/metrics":
            found = HTTPStatus.OK if path == "/" else HTTPStatus.NOT_FOUND
            return _make_answer(found, b"headrace: metrics for Prometheus are at /metrics\n", is_head=method == "HEAD")
        accepts = [line.partition(":")[2] for line in head[1:] if line[:7].lower() == "accept:"]
        body, content_type = self._scrape(",".join(accepts))
        return _make_answer(HTTPStatus.OK, body, content_type, is_head=method == "HEAD")


def _read_request(connection: socket.socket, ends: float) -> bytes:
    """Return a request without its body; empty if it does not come in time, or is no request."""
    request = b""
    while b"\r\n\r\n" not in request:
        connection.settimeout(max(0.01, ends - time.monotonic()))
        part = connection.recv(_MOST_REQUEST_BYTES)
        request += part
        if not part or len(request) > _MOST_REQUEST_BYTES or time.monotonic() >= ends:
            return b""
    return request


def _make_answer(
    status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8", *, is_head: bool = False
) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if is_head else body)

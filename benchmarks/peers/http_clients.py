"""Blocking HTTP clients under one interface: what threaded peers usually take, and what costs least.

CPU of one GET of 127 KiB on the loopback: urllib3 0.6 ms, http.client and pycurl 0.1 ms.
"""

# ruff: noqa: D102 - the methods are described once, in Client

import http.client
import io
import json
import threading
from typing import Protocol
from urllib.parse import urlsplit

import pycurl
import urllib3

TIMEOUT_SECONDS = 30


class Client(Protocol):
    """Keep-alive connections, usable from many threads."""

    def get(self, url: str) -> bytes:
        """Return the body."""

    def post(self, url: str, answer: dict[str, object]) -> None:
        """Send JSON and wait for the reply."""


def make_client(kind: str, num_connections: int) -> Client:
    """Return a client: "urllib3", "http.client" or "pycurl"."""
    if kind == "urllib3":
        return Urllib3Client(num_connections)
    return {"http.client": HttpClientClient, "pycurl": PycurlClient}[kind]()


class Urllib3Client:
    """One pool for all threads."""

    def __init__(self, num_connections: int) -> None:
        self._pool = urllib3.PoolManager(maxsize=num_connections, timeout=TIMEOUT_SECONDS)

    def get(self, url: str) -> bytes:
        return self._pool.request("GET", url).data

    def post(self, url: str, answer: dict[str, object]) -> None:
        self._pool.request("POST", url, body=json.dumps(answer), headers={"Content-Type": "application/json"})


class HttpClientClient:
    """The standard library's, one connection per thread."""

    def __init__(self) -> None:
        self._local = threading.local()

    def get(self, url: str) -> bytes:
        return self._request("GET", url, None)

    def post(self, url: str, answer: dict[str, object]) -> None:
        self._request("POST", url, json.dumps(answer))

    def _request(self, method: str, url: str, body: str | None) -> bytes:
        parts = urlsplit(url)
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS)
            self._local.connection = connection
        connection.request(method, parts.path, body, {"Content-Type": "application/json"} if body else {})
        return connection.getresponse().read()


class PycurlClient:
    """libcurl, one handle per thread and direction, so that options are set once."""

    def __init__(self) -> None:
        self._local = threading.local()

    def get(self, url: str) -> bytes:
        if not hasattr(self._local, "getter"):
            self._local.getter = _handle()
        return self._perform(self._local.getter, url)

    def post(self, url: str, answer: dict[str, object]) -> None:
        if not hasattr(self._local, "poster"):
            self._local.poster = _handle()
            self._local.poster.setopt(pycurl.HTTPHEADER, ["Content-Type: application/json"])
        self._local.poster.setopt(pycurl.POSTFIELDS, json.dumps(answer))
        self._perform(self._local.poster, url)

    def _perform(self, handle: pycurl.Curl, url: str) -> bytes:
        body = io.BytesIO()
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.WRITEDATA, body)
        handle.perform()
        return body.getvalue()


def _handle() -> pycurl.Curl:
    handle = pycurl.Curl()
    handle.setopt(pycurl.TIMEOUT, TIMEOUT_SECONDS)
    handle.setopt(pycurl.NOSIGNAL, 1)  # signals and threads do not mix
    handle.setopt(pycurl.TCP_NODELAY, 1)
    return handle

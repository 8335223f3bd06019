"""Address or path -> bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from headrace.base.errors import FetchFailed, FetchRejected
from headrace.base.http_client import HttpClient, HttpError, HttpSettings, is_permanent, without_secrets
from headrace.base.settings import build
from headrace.stages.stage import Stage, StageContext


class FetchStage(Stage):
    """Downloads http(s) addresses, reads paths and file addresses; bytes and arrays pass as they are.

    Counts `NAME.connections`, those it had to open, and `NAME.connect_microseconds`, what setting them up took.

    Options (`[stages.fetch.options]`): `timeout_seconds`, `connect_timeout_seconds`, `max_bytes`, `max_redirects`.
    """

    kind = "io"
    releases_gil = True
    work = "download"

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return a fetcher with a connection of its own, kept alive."""
        settings = build(HttpSettings, context.options, f"[stages.{self.name}.options]")

        def count_connection(number: int, seconds: float) -> None:
            context.count(f"{self.name}.connections", number)
            context.count(f"{self.name}.connect_microseconds", round(seconds * 1e6))

        client = HttpClient(settings, count_connection)

        def fetch_one(payload: Any) -> Any:
            if isinstance(payload, bytes | np.ndarray):
                return payload
            if isinstance(payload, Path):
                return read_path(payload, settings.max_bytes)
            scheme = payload.partition(":")[0].lower()
            if scheme == "file":
                return read_path(Path(unquote(urlsplit(payload).path)), settings.max_bytes)
            if scheme in ("http", "https"):
                return download(client, payload)
            raise FetchRejected(f"address {without_secrets(payload)!r} cannot be fetched; expected http, https or file")

        return fetch_one


def download(client: HttpClient, url: str) -> bytes:
    """Return the body behind an address.

    Raises:
        FetchFailed: Worth another try.
        FetchRejected: Not.
    """
    try:
        response = client.get(url)
    except HttpError as error:
        raise (FetchRejected if error.permanent else FetchFailed)(str(error)) from None
    if 200 <= response.status < 300:
        return response.body
    kind = FetchRejected if is_permanent(response.status) else FetchFailed
    raise kind(f"{without_secrets(url)} answered {response.status}, expected 200")


def read_path(path: Path, max_bytes: int) -> bytes:
    """Return a file's bytes.

    Raises:
        FetchFailed: If reading fails on the way (a network file system, a worn disk).
        FetchRejected: If there is no such file, it may not be read, or it is too large.
    """
    try:
        with path.open("rb") as file:  # buffered: reads on where the system gives less than was asked for
            # Asking for max_bytes at once would allocate as much for each file.
            size = min(os.fstat(file.fileno()).st_size, max_bytes)
            data = file.read(size + 1)
            if size < len(data) <= max_bytes:  # it grew, or is of a kind that does not tell its size
                data += file.read(max_bytes + 1 - len(data))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise FetchRejected(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FetchRejected(f"{str(path)!r} is not a path: {error}") from None
    except OSError as error:
        raise FetchFailed(f"{path} cannot be read: {error}") from None
    if len(data) > max_bytes:
        raise FetchRejected(f"{path} is larger than max_bytes = {max_bytes}")
    return data
